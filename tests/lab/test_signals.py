"""Test that an interrupted command ends at once with one line and exit code 128 + the signal's number."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import command_cases
import pytest
from command_cases import CASES
from filelock import FileLock

from hullo.lab.files import locked
from hullo.lab.signals import REPEAT_SECONDS, stop_request

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")
PROMPT = 10.0
"""Seconds that stand for ever: what hangs, hangs for a minute."""


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    command = [sys.executable, command_cases.__file__, str(tmp_path_factory.mktemp("cases"))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr
    result = [json.loads(line) for line in run.stdout.splitlines()]
    return {ending["name"]: ending for ending in result}


WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.at])
def test_signal_ends_any_command_with_one_line(name: str, endings: dict[str, dict[str, Any]]) -> None:
    ending, number = endings[name], CASES[name].signals[0]
    assert ending["code"] == 128 + number, ending["stderr"]
    assert ending["seconds"] < PROMPT
    message = ending["stderr"].removeprefix("note: another process is fetching cifar10; waiting for it\n")
    expected = "stopped; progress is saved in new" if name.startswith("train waits") else WORDS[number]
    assert message.startswith(f"hullo: {expected}")
    assert message.count("\n") == 1
    assert not [file for file in ending["files"] if file.endswith((".part", ".png", ".html"))]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.output == "closed"])
def test_closed_pipe_ends_a_command_quietly(name: str, endings: dict[str, dict[str, Any]]) -> None:
    assert (endings[name]["code"], endings[name]["stderr"]) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_unwritable_stdout_is_one_line(endings: dict[str, dict[str, Any]]) -> None:
    ending = endings["table, full disk"]
    assert (ending["code"], ending["stderr"].count("\n")) == (1, 1)
    assert ending["stderr"].startswith("hullo: standard output: No space left")


def test_signals_ignored_by_the_parent_stay_ignored(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); from hullo.lab import signals\n"
        "signals.install(); os.kill(os.getpid(), signal.SIGHUP); print('alive', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (143, "alive\n", "hullo: terminated\n")


def test_second_ctrl_c_interrupts() -> None:
    saved = []

    def work() -> None:
        with stop_request() as stop:
            assert not stop.is_set()
            signal.raise_signal(signal.SIGINT)
            assert stop.is_set()
            signal.raise_signal(signal.SIGINT)
            saved.append("what was done")
            time.sleep(1.1 * REPEAT_SECONDS)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    default = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):  # what was asked for is not forgotten at the end
        work()
    assert saved
    assert signal.getsignal(signal.SIGINT) is default


@pytest.mark.parametrize(("requested", "expected"), [(True, KeyboardInterrupt), (False, RuntimeError)])
def test_an_error_after_a_request_to_stop_is_an_interruption(requested: bool, expected: type[BaseException]) -> None:
    def work() -> None:
        with stop_request():
            if requested:
                signal.raise_signal(signal.SIGINT)
            raise RuntimeError("the signal has ended a compiler, too")

    with pytest.raises(expected):
        work()


def test_stop_request_ends_a_wait_for_a_lock(tmp_path: Path) -> None:
    waited: list[int] = []

    def wait(attempt: int) -> None:
        waited.append(attempt)
        if attempt == 1:
            signal.raise_signal(signal.SIGINT)

    with FileLock(tmp_path / "lock"), pytest.raises(KeyboardInterrupt), stop_request(), locked(tmp_path / "lock", wait):
        pass
    assert waited == [0, 1]
    with locked(tmp_path / "lock", wait):  # nothing is left of it
        pass
