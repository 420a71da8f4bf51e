"""Test exit codes: usage errors exit with 2 and have no side effects, runtime failures exit with 1."""

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
RAY = ("reproduce", "lenet5/fashion-mnist-sample", "--engine", "ray")


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


USAGE_ERRORS = {
    # an unknown name
    ("train", "vgg", "cifar10"): "unknown network 'vgg'; available: lenet5",
    ("train", "lenet5", "mnist"): "unknown data set 'mnist'; available:",
    ("reproduce", "lenet5/mnist"): "unknown data set 'mnist'",
    ("reproduce", "lenet5"): "invalid column 'lenet5'",
    ("reproduce", "/"): "invalid column '/': must be network/data",
    ("reproduce", "net.py:Mlp/"): "invalid column 'net.py:Mlp/': must be network/data",
    ("train", "lenet5", ""): "unknown data set ''; available:",
    (*TRAIN, "--activation", "swosh"): "invalid activation 'swosh'",
    (*TRAIN, "--activation", ""): "invalid activation ''",
    (*REPRODUCE, "--activation", "relu,tanh"): "invalid activation 'relu,tanh'",
    (*TRAIN, "--schedule", "linear"): "schedule='linear'",
    (*TRAIN, "--device", "tpu"): "unknown device 'tpu'",
    ("table", "sound", "--experiment", "lenet5/mnist"): "lenet5/mnist",
    ("figures", "sound", "--only", "histogram"): "unknown figure 'histogram'",
    ("data", "fetch", "nope"): "unknown data set 'nope'",
    ("data", "check", "nope"): "unknown data set 'nope'",
    ("data", "pack", "nope"): "cannot pack 'nope'",
    # a wrong number
    (*TRAIN, "--lr", "-1"): "lr=-1.0: must be a finite number",
    (*TRAIN, "--weight-decay", "nan"): "weight_decay=nan: must be a finite number",
    (*TRAIN, "--batch-size", "0"): "batch_size=0: must be an integer",
    (*TRAIN, "--val-size", "100000"): "give at most 5990",
    (*TRAIN, "--seed", "999999999999999999999"): "seed=999999999999999999999: must be an integer",
    (*REPRODUCE, "--val-size", "many"): "a fraction below 1",
    ("table", "sound", "--epoch", "9"): "9",
    ("figures", "sound", "--seed", "9"): "no run has seed 9",
    # images that are too small for a network
    ("train", "alexnet", "fashion-mnist-sample"): "image_size=28: alexnet needs images of at least 39",
    ("reproduce", "lenet5/fashion-mnist-sample", "alexnet/fashion-mnist-sample"): "image_size=28: alexnet",
    # options of a cluster
    (*RAY, "--ray-address", "127.0.0.1:1"): "no Ray cluster answers at 127.0.0.1:1: ",
    (*RAY, "--ray-address", "nowhere.invalid:6379"): "no Ray cluster answers at nowhere.invalid:6379: ",
    (*RAY, "--ray-address", "ray://127.0.0.1:10001"): "no Ray cluster answers at ray://127.0.0.1:10001: ",
    (*RAY, "--ray-address", "somewhere"): "no Ray cluster answers at somewhere: ",
    (*RAY, "--device", "cpu"): "device=cpu needs engine=local",
    (*RAY[:2], "--gpus-per-task", "1"): "ray_address and gpus_per_task need engine=ray",
    (*RAY[:2], "--ray-address", "auto"): "ray_address and gpus_per_task need engine=ray",
    # no records
    (*TRAIN, "--output", "broken"): "broken/records.jsonl, line 1",
    (*REPRODUCE, "--output", "broken"): "broken/records.jsonl, line 1",
    ("table", "nowhere"): "nowhere",
    ("figures", "nowhere"): "nowhere",
    ("report", "nowhere"): "nowhere",
    # an output that cannot be written to
    (*TRAIN, "--output", "taken"): "cannot write to taken: a file of that name",
    (*TRAIN, "--output", "taken/runs"): "cannot write to taken/runs",
    (*REPRODUCE, "--output", "taken"): "cannot write to taken: a file of that name",
    ("figures", "sound", "--output", "taken"): "cannot write to taken",
    ("report", "sound", "--output", "taken/page.html"): "taken",
    ("report", "sound", "--output", "sound"): "sound",
    ("data", "fetch", "cifar10", "--data", "taken"): "taken",
}


@pytest.mark.parametrize("command", USAGE_ERRORS, ids=" ".join)
def test_usage_errors_exit_with_2_without_side_effects(command: tuple[str, ...]) -> None:
    before = everything()
    output = ("--output", "new") if "--output" not in command and command[0] in ("train", "reproduce") else ()
    result = invoke(*command, *output)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("hullo: ")
    assert USAGE_ERRORS[command] in result.stderr
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
    assert "hullo data fetch cifar10" in result.output or "ILSVRC2012" in result.output  # what to do
    assert everything() == before


@pytest.mark.parametrize(
    "command",
    [
        (*TRAIN, "--output", "new"),
        (*REPRODUCE, "--output", "new"),
        ("figures", "sound", "--only", "accuracy", "--output", "new"),
        ("report", "sound", "--output", "new/page.html"),
    ],
    ids=" ".join,
)
def test_full_disk_exits_with_1(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hullo.lab.data.load", tiny_command.load)
    monkeypatch.setattr(os, "fsync", full)
    result = invoke(*command, *(["--quiet"] if command[0] in ("train", "reproduce") else []))
    assert result.exit_code == 1
    assert result.stderr.startswith("hullo: cannot write new")
    assert "No space left on device; " in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("folder", ["checkpoints", "weights"])
def test_unwritable_folders_are_refused_before_training(folder: str) -> None:
    Path("sound", folder).write_text("a file")
    before = everything()
    result = invoke(*TRAIN, "--output", "sound", "--quiet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"hullo: cannot write to sound/{folder}: a file of that name exists; choose another directory\n"
    )
    assert everything() == before


def test_records_that_cannot_be_written_are_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke(*REPRODUCE, "--output", "sound", "--quiet").exit_code == 0
    before = everything()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "records.jsonl")  # a superuser may write
    assert invoke(*REPRODUCE, "--output", "sound", "--quiet").exit_code == 0  # nothing is left to train
    for command in (TRAIN, REPRODUCE):
        result = invoke(*command, "--output", "sound", "--seed" + "s" * (command is REPRODUCE), "2", "--quiet")
        assert (result.exit_code, result.stdout) == (2, "")
        expected = "hullo: cannot write to sound/records.jsonl: Permission denied; choose another directory\n"
        assert result.stderr == expected
    assert everything() == before


@pytest.mark.parametrize("command", ["table", "figures", "report"])
def test_unreadable_records_are_warned_about_and_hide_no_others(command: str) -> None:
    only = ("--only", "accuracy") if command == "figures" else ()
    result = invoke(command, "broken", *only)
    assert result.exit_code == 2
    warning, error = result.stderr.splitlines()
    assert warning.startswith("warning: broken/records.jsonl, line 1: JSONDecodeError")
    assert error.startswith("hullo: no records in broken")
    Path("broken/records.jsonl").write_bytes(b"nonsense\n" * 20 + Path("sound/records.jsonl").read_bytes())
    result = invoke(command, "broken", *only)
    assert result.exit_code == 0, result.output
    (warning,) = result.stderr.splitlines()
    assert warning.startswith("warning: broken/records.jsonl, line 1: JSONDecodeError")
    assert "and so are 19 others" in warning


@pytest.mark.parametrize("command", ["table", "figures", "report"])
def test_incomplete_line_is_ignored(command: str) -> None:
    with Path("sound/records.jsonl").open("a") as file:
        file.write('{"version":1,')
    result = invoke(command, "sound", *(("--only", "accuracy") if command == "figures" else ()))
    assert result.exit_code == 0, result.output
    Path("sound/records.jsonl").write_text('{"version":1,')
    result = invoke(command, "sound/records.jsonl", *(("--only", "accuracy") if command == "figures" else ()))
    assert result.exit_code == 2
    assert result.stderr.startswith("hullo: no records in sound")
