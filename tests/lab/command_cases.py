"""Commands that are interrupted, or that nobody reads from, each in its own process: python command_cases.py FOLDER

Modules are imported once; each case is a fork. One line of JSON per case has its name, its exit code, its standard
error, the time from the signal to its end, and the files that it left.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tiny_command
from filelock import FileLock

from hullo.__main__ import main
from hullo.lab.spec.records import Records
from made_records import make_record

PRELOADED = (
    "cli",
    "analysis.figures",
    "analysis.report",
    "run.local",
    "data.fetch",
)
TRAIN = ("train", "lenet5", "fashion-mnist-sample", "--device", "cpu", "--epochs", "1", "--output", "new", "--quiet")
FETCH = ("data", "fetch", "cifar10", "--data", "data", "--quiet")
READ = "hullo.lab.spec.records.Records.scan"


@dataclass
class Case:
    """A command, and what becomes of it."""

    arguments: tuple[str, ...]
    at: str = ""  # the function in which it is when signals come; it hangs there, if it waits for nothing
    swallows: bool = True  # whether the function swallows exceptions, as those of some libraries do
    lock: str = ""  # a lock that another process holds
    signals: tuple[signal.Signals, ...] = (signal.SIGINT,)
    output: str = ""  # "closed": nobody reads standard output; "/dev/full": it cannot be written to


CASES = {
    "table": Case(("table", "runs"), READ),
    "table twice": Case(("table", "runs"), READ, signals=(signal.SIGINT, signal.SIGINT)),
    "table terminated": Case(("table", "runs"), READ, signals=(signal.SIGTERM,)),
    "table hung up": Case(("table", "runs"), READ, signals=(signal.SIGHUP,)),
    "report reads": Case(("report", "runs"), READ),
    "report writes": Case(("report", "runs"), "hullo.lab.analysis.report.page.render", swallows=False),
    "figures": Case(("figures", "runs", "--only", "accuracy"), "hullo.lab.analysis.figures.accuracy.arrange"),
    "data check": Case(("data", "check", "cifar10"), "hullo.lab.data.release.Copy.flaws"),
    "data fetch": Case(FETCH, "hullo.lab.data.fetch.urlopen"),
    "data fetch waits": Case(FETCH, "hullo.lab.files.check_stop", lock="data/.cifar10.lock"),
    "train loads": Case(TRAIN, "hullo.lab.data.load"),
    "train waits": Case(TRAIN, "hullo.lab.files.check_stop", lock="new/.records.lock"),
    "train waits terminated": Case(
        TRAIN, "hullo.lab.files.check_stop", lock="new/.records.lock", signals=(signal.SIGTERM, signal.SIGTERM)
    ),
    "table, nobody reads": Case(("table", "runs"), output="closed"),
    "table as CSV, nobody reads": Case(("table", "runs", "--format", "csv"), output="closed"),
    "figures, nobody reads": Case(("figures", "runs", "--only", "accuracy"), output="closed"),
    "table, full disk": Case(("table", "runs"), output="/dev/full"),
}


def hang(ready: int, swallows: bool) -> Callable[..., None]:
    """Return a function that says that it was called and never returns."""

    def function(*_: object, **__: object) -> None:
        os.write(ready, b"!")
        while True:
            try:
                time.sleep(60)
            except BaseException:
                if not swallows:
                    raise

    return function


def go_on(ready: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that says that it was called, and then does what it always did."""

    def wrapped(*arguments: Any) -> Any:
        os.write(ready, b"!")
        return function(*arguments)

    return wrapped


def run_command(case: Case, ready: int) -> None:
    """Run the command in this process, which ends with it."""
    for stream, name in ((1, case.output if case.output.startswith("/") else "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), stream)
    if case.output == "closed":
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(reading)
    sys.argv = ["hullo", *case.arguments]
    code = 0
    try:
        with ExitStack() as stack:
            if case.at and case.lock:
                module, _, name = case.at.rpartition(".")
                stack.enter_context(patch(case.at, go_on(ready, getattr(importlib.import_module(module), name))))
            elif case.at:
                stack.enter_context(patch(case.at, hang(ready, case.swallows)))
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stderr.flush()
        os._exit(code)


def observe(name: str, case: Case, folder: Path) -> dict[str, Any]:
    """Run a case in a folder of its own; how it ended."""
    for inner in ("new", "data/cifar-10-batches-bin"):
        (folder / inner).mkdir(parents=True)
    Records(folder / "runs" / "records.jsonl").add([make_record("relu", [80.0])])
    listening, ready = os.pipe()
    with ExitStack() as stack:
        if case.lock:
            stack.enter_context(FileLock(folder / case.lock))
        process = os.fork()
        if process == 0:
            os.chdir(folder)
            run_command(case, ready)
        os.close(ready)
        if case.at:
            assert os.read(listening, 1) == b"!", (folder / "stderr").read_text()
            for number in case.signals:
                os.kill(process, number)
                time.sleep(0.01)  # signals that are pending together count once
        start = time.monotonic()
        _, status = os.waitpid(process, 0)
    os.close(listening)
    return {
        "name": name,
        "code": os.waitstatus_to_exitcode(status),
        "seconds": time.monotonic() - start,
        "stderr": (folder / "stderr").read_text(),
        "files": sorted(path.name for path in folder.rglob("*") if path.is_file()),
    }


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and the command would, too
    for part in PRELOADED:
        importlib.import_module(f"hullo.lab.{part}")
    tiny_command.shrink()
    for number, item in enumerate(CASES.items()):
        print(json.dumps(observe(*item, Path(sys.argv[1], str(number)))), flush=True)
