"""One rule for all commands: 2 for what was asked for wrongly, before anything is done; 1 for what then failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiny_command
from typer.testing import CliRunner, Result

from hullo.lab.cli import app
from hullo.lab.spec.records import Records
from made_records import make_record

TRAIN = ("train", "lenet5", "fashion-mnist-sample", "--device", "cpu", "--epochs", "1")
REPRODUCE = ("reproduce", "lenet5/fashion-mnist-sample", "--activation", "relu", "--seeds", "1", *TRAIN[3:])
BENCH = ("bench", "--device", "cpu", "--sizes", "512", "--activations", "relu", "--repeats", "3")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory with readable and unreadable records, a file, and no data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HULLO_DATA", "data")
    Records(Path("sound/records.jsonl")).add([make_record("relu", [80.0])])
    Path("broken").mkdir()
    Path("broken/records.jsonl").write_text("nonsense\n")
    Path("taken").write_text("a file")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def everything() -> list[Path]:
    return sorted(path for path in Path().rglob("*") if "lock" not in path.name)


@pytest.mark.parametrize(
    "command",
    [
        # an unknown name
        ("train", "vgg", "cifar10"),
        ("reproduce", "lenet5/mnist"),
        ("table", "sound", "--experiment", "lenet5/mnist"),
        ("figures", "sound", "--only", "histogram"),
        ("bench", "--activations", "swish"),
        ("data", "fetch", "nope"),
        ("data", "check", "nope"),
        ("data", "pack", "nope"),
        # a wrong number
        (*TRAIN, "--val-size", "100000"),
        (*TRAIN, "--seed", "999999999999999999999"),
        (*REPRODUCE, "--val-size", "7"),
        ("table", "sound", "--epoch", "9"),
        ("figures", "sound", "--seed", "9"),
        ("bench", "--repeats", "0"),
        # images that are too small for a network
        ("train", "alexnet", "fashion-mnist-sample"),
        ("reproduce", "lenet5/fashion-mnist-sample", "alexnet/fashion-mnist-sample"),
        # no records
        (*TRAIN, "--output", "broken"),
        (*REPRODUCE, "--output", "broken"),
        ("table", "taken"),
        ("figures", "nowhere"),
        ("report", "nowhere"),
        # an output that cannot be written to
        (*TRAIN, "--output", "taken"),
        (*TRAIN, "--output", "taken/runs"),
        (*TRAIN, "--output", "sound", "--tensorboard", "taken"),
        (*REPRODUCE, "--output", "taken"),
        ("figures", "--output", "taken"),
        ("report", "sound", "--output", "taken/page.html"),
        ("report", "sound", "--output", "sound"),
        (*BENCH, "--output", "taken"),
        ("data", "fetch", "cifar10", "--data", "taken"),
    ],
    ids=" ".join,
)
def test_usage_errors_exit_with_2_without_side_effects(command: tuple[str, ...]) -> None:
    before = everything()
    result = invoke(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("hullo: ")
    assert result.stderr.count("\n") == 1
    assert everything() == before


@pytest.mark.parametrize(
    "command",
    [
        ("train", "lenet5", "cifar10", "--output", "new"),
        ("reproduce", "lenet5/cifar10", "--output", "new"),
        ("data", "pack", "ilsvrc2012"),
        ("data", "fetch", "ilsvrc2012"),
        ("data", "check", "cifar10"),
        ("data", "check", "ilsvrc2012"),
    ],
    ids=" ".join,
)
def test_missing_data_exit_with_1(command: tuple[str, ...]) -> None:
    before = everything()
    result = invoke(*command)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert everything() == before


@pytest.mark.parametrize(
    "command",
    [
        (*TRAIN, "--output", "new"),
        (*REPRODUCE, "--output", "new"),
        ("figures", "--only", "pipeline", "--output", "new"),
        ("report", "sound", "--output", "new/page.html"),
        (*BENCH, "--output", "new"),
    ],
    ids=" ".join,
)
def test_full_disk_exits_with_1(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hullo.lab.data.load", tiny_command.load)
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr("hullo.lab.bench.results.RowFile.add", full)
    result = invoke(*command, *(["--quiet"] if command[0] in ("train", "reproduce", "bench") else []))
    assert result.exit_code == 1
    assert result.stderr.startswith("hullo: cannot write new")
    assert "No space left on device; " in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["table", "figures", "report"])
def test_unreadable_records_are_warned_about_and_hide_no_others(command: str) -> None:
    only = ("--only", "accuracy") if command == "figures" else ()
    result = invoke(command, "broken", *only)
    assert result.exit_code == 2
    warning, error = result.stderr.splitlines()
    assert warning.startswith("warning: broken/records.jsonl, line 1: invalid JSON")
    assert error.startswith("hullo: no records in broken")
    Path("broken/records.jsonl").write_bytes(b"nonsense\n" * 20 + Path("sound/records.jsonl").read_bytes())
    result = invoke(command, "broken", *only)
    assert result.exit_code == 0, result.output
    warnings = result.stderr.splitlines()
    assert all(line.startswith("warning: broken/records.jsonl") for line in warnings)
    assert (len(warnings), "10 more lines" in warnings[-1]) == (11, True)


@pytest.mark.parametrize("command", ["table", "figures", "report"])
def test_incomplete_line_is_noted_and_ignored(command: str) -> None:
    with Path("sound/records.jsonl").open("a") as file:
        file.write('{"version":1,')
    result = invoke(command, "sound")
    assert result.exit_code == 0, result.output
    left = "ignoring the last line of sound/records.jsonl, which is truncated after 13 bytes"
    assert result.stderr.startswith(f"note: {left}")
    assert result.stderr.count("truncated") == 1
