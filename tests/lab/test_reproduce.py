"""Test that commands that train can be killed, stopped, repeated and run concurrently without losing anything."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_command
import torch
from tiny_command import COLUMN, ROWS, Command, results
from typer.testing import CliRunner, Result

from hullo.lab.analysis.statistics import Interval
from hullo.lab.cli import app
from hullo.lab.cli.train import _show_network
from hullo.lab.run import training
from hullo.lab.run.checkpoints import Checkpoints
from hullo.lab.spec.records import Record, Records
from made_records import make_record

REPRODUCE = (*tiny_command.REPRODUCE, "4", "--device", "cpu")
TRAIN = ("train", "lenet5", "fashion-mnist-sample", "--device", "cpu", "--epochs", "1")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hullo.lab.data.load", tiny_command.load)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def checkpoint_times(output: Path) -> list[int]:
    return [path.stat().st_mtime_ns for path in (output / "checkpoints").glob("*.safetensors")]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("uninterrupted")
    message, _ = Command(*REPRODUCE, "--output", output).finish()
    for row in ROWS:
        assert row in message
    assert message.splitlines()[-1].startswith("LeNet-5 on a sample of Fashion-MNIST: ")  # the finding is last
    return output


def test_experiment_is_trained_recorded_tabulated_and_drawn(uninterrupted: Path) -> None:
    result = Records(uninterrupted / "records.jsonl").read()
    assert [record.spec.activation for record in result] == list(ROWS)
    assert all(record.ended == "finished" and len(record.test_accuracy) == 4 for record in result)
    assert (uninterrupted / "lenet5-fashion-mnist-sample-activations.png").read_bytes().startswith(b"\x89PNG")
    assert not checkpoint_times(uninterrupted)


def test_recorded_runs_are_not_trained_again(uninterrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.Training, "__init__", None)
    before = (uninterrupted / "records.jsonl").read_bytes()
    result = invoke(*REPRODUCE, "--output", uninterrupted)
    assert result.exit_code == 0, result.output
    assert (uninterrupted / "records.jsonl").read_bytes() == before
    assert result.stderr == ""
    for record in Records(uninterrupted / "records.jsonl").read():
        (line,) = (line for line in result.stdout.splitlines() if line.split()[:1] == [record.spec.activation])
        assert f"{record.accuracy:.2f}" in line


def test_a_directory_that_cannot_be_written_is_refused(uninterrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)  # a superuser may write anywhere
    assert invoke(*REPRODUCE, "--seeds", 2, "--output", uninterrupted).exit_code == 2


def test_killed_at_random_times_it_ends_with_the_same_records(uninterrupted: Path, tmp_path: Path) -> None:
    command = (*REPRODUCE, "--output", tmp_path, "--checkpoint-every", "0")
    for _ in range(3):
        before, process = checkpoint_times(tmp_path), Command(*command)
        while checkpoint_times(tmp_path) == before:  # each process gets a little further
            assert process.poll() is None
        time.sleep(random.uniform(0.0, 0.1))
        process.kill()
    Command(*command).finish()
    assert results(tmp_path) == results(uninterrupted)


def test_ctrl_c_saves_and_resuming_gives_the_same_records(uninterrupted: Path, tmp_path: Path) -> None:
    command = (*REPRODUCE, "--output", tmp_path)
    process = Command(*command)
    while "[1/4]" not in process.read()[1]:
        assert process.poll() is None
    for _ in range(2):  # as some launchers do
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.01)  # pending signals would count once
    code, _, errors = process.wait()
    assert code == 130
    last = errors.splitlines()[-1]
    assert last.startswith(f"hullo: stopped; progress is saved in {tmp_path}; resume with: hullo reproduce")
    assert "'convex(identity,relu)'" in last
    assert checkpoint_times(tmp_path)
    (begun,) = Checkpoints(tmp_path / "checkpoints").started()
    assert [spec.activation for spec in begun] == list(ROWS)
    Command(*command).finish()
    assert results(tmp_path) == results(uninterrupted)


def test_diverging_run_is_reported_once(tmp_path: Path) -> None:
    result = invoke(*TRAIN, "--lr", 1e30, "--output", tmp_path, "--quiet")
    assert result.exit_code == 0, result.output
    message = "diverged in epoch 1: relu seed=0: losses or weights are not finite; a smaller --lr may help"
    assert result.stderr == f"note: {message}\n"


def test_run_that_diverged_is_not_the_best_network(capsys: pytest.CaptureFixture[str]) -> None:
    sound, lost = make_record("relu", [80.0]), make_record("tanh", [90.0], ended="diverged in epoch 1")
    assert shown([lost, sound], capsys).startswith("saved network (relu, seed 0): ")  # not by test data
    assert shown([lost, lost], capsys) == "All runs of kerasnet/cifar10 diverged; a smaller --lr may help.\n"


def shown(runs: list[Record], capsys: pytest.CaptureFixture[str]) -> str:
    _show_network(runs, Path("nowhere"), "net.py:Net", wanted=True)
    return capsys.readouterr().out


def test_best_network_is_chosen_on_held_out_samples(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_record("relu", [90.0, 70.0]), make_record("tanh", [60.0, 99.0])]
    held_out = [[50.0, 80.0], [70.0, 60.0]]
    settings = {"val_size": 50, "epochs": 2}
    chosen = [
        replace(run, spec=replace(run.spec, **settings), val_accuracy=curve, val_loss=[1.0, 1.0])
        for run, curve in zip(runs[::-1], held_out[::-1], strict=True)
    ]
    assert shown(chosen, capsys).startswith("best network on held-out samples (relu, seed 0): ")
    kept = [make_record("own", [50.0], seed=seed, column="net:Net@12345678/images@12345678") for seed in range(2)]
    assert shown(kept, capsys).startswith("saved network (original, seed 0): ")


def test_two_processes_in_one_directory_share_the_work(uninterrupted: Path, tmp_path: Path) -> None:
    processes = [Command(*REPRODUCE, "--output", tmp_path) for _ in range(2)]
    output = [process.finish() for process in processes]
    assert results(tmp_path) == results(uninterrupted)
    tables = [text.partition("\n3 of 3 runs were already recorded")[0].strip() for text, _ in output]
    assert tables[0] == tables[1]
    assert sum("[1/4]" in errors for _, errors in output) == 1  # the other waits, and then has nothing to train


FULL = (
    torch.OutOfMemoryError("out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to ..."),
)


@pytest.fixture(params=FULL, ids=["GPU", "CPU"])
def small_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Limit the device to two networks; return the sizes of the populations that were tried."""
    tried: list[int] = []
    advance = training.Training.advance

    def limited(self: training.Training) -> Iterator[None]:
        tried.append(len(self.specs))
        for moment in advance(self):
            if len(self.specs) > 2 and self.step == 2:
                raise request.param
            yield moment

    monkeypatch.setattr(training.Training, "advance", limited)
    return tried


def test_population_too_large_for_memory_is_split(uninterrupted: Path, tmp_path: Path, small_memory: list[int]) -> None:
    result = invoke(*REPRODUCE, "--output", tmp_path, "--checkpoint-every", "0")
    assert result.exit_code == 0, result.output
    assert small_memory == [3, 2, 1]
    assert "trying 2 at a time" in result.stderr
    for record, whole in zip(*(Records(p / "records.jsonl").read() for p in (tmp_path, uninterrupted)), strict=True):
        assert record.spec == whole.spec
        assert record.test_loss == pytest.approx(whole.test_loss, rel=1e-3)
        assert record.accuracy == pytest.approx(whole.accuracy, abs=100 / tiny_command.TEST + 1e-6)


@pytest.mark.parametrize("error", FULL, ids=["GPU", "CPU"])
def test_network_too_large_for_memory_is_a_clear_error(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> Iterator[None]:
        raise error

    monkeypatch.setattr(training.Training, "advance", full)
    result = invoke(*TRAIN, "--output", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--batch-size" in result.stderr


def test_train_command_trains_one_network(tmp_path: Path) -> None:
    result = invoke(*TRAIN, "--activation", "affine(tanh,relu)", "--seed", 3, "--batch-size", 20, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    (record,) = Records(tmp_path / "records.jsonl").read()
    name = "lenet5/fashion-mnist-sample, affine(relu,tanh), seed 3"
    assert result.stdout.startswith(f"{name}: test accuracy {record.accuracy:.2f} % after epoch 1 of 1\n")
    assert (record.spec.activation, record.spec.seed, record.spec.batch_size) == ("affine(relu,tanh)", 3, 20)
    assert "[1/1] lenet5/fashion-mnist-sample: 1 network" in result.stderr


def test_accuracies_shown_are_those_of_the_chosen_epoch(tmp_path: Path) -> None:
    result = invoke(*TRAIN[:-1], 6, "--lr", 3e-3, "--val-size", 0.3, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    (record,) = Records(tmp_path / "records.jsonl").read()
    assert record.spec.val_size == round(0.3 * tiny_command.TRAIN)
    epoch = 1 + record.val_accuracy.index(max(record.val_accuracy))
    assert f"test accuracy {record.test_accuracy[epoch - 1]:.2f} % after epoch {epoch} of 6" in result.stdout
    assert f"{record.val_accuracy[epoch - 1]:.2f} % on held-out samples" in result.stdout


def test_learning_rate_of_zero_is_warned_of(tmp_path: Path) -> None:
    result = invoke(*TRAIN, "--lr", 1e-3, "--lr", 0, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("warning: with a learning rate of 0")


def test_repeated_options_are_a_grid(tmp_path: Path) -> None:
    result = invoke(*TRAIN, "--lr", 1e-3, "--lr", 1e-4, "--optimizer", "AdamW", "--seed", 1, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    runs = [record.spec for record in Records(tmp_path / "records.jsonl").read()]
    assert [(spec.lr, spec.optimizer, spec.seed) for spec in runs] == [(1e-3, "adamw", 1), (1e-4, "adamw", 1)]
    assert "warning" not in result.stderr
    refused = invoke(*TRAIN, "--val-size", "1.5", "--output", tmp_path)
    assert (refused.exit_code, "fraction" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "schedule"),
    [
        ((*TRAIN[:-1], "3", "--activation"), "constant"),
        (("reproduce", COLUMN, "--seeds", "1", "--epochs", "3", "--activation"), "inverse:1e9"),
    ],
    ids=["train", "reproduce"],
)
def test_fast_decay_stops_learning(command: tuple[str, ...], schedule: str, tmp_path: Path) -> None:
    shared = ("--lr", 1e-3, "--schedule", schedule, "--device", "cpu", "--output", tmp_path, "--quiet")
    assert invoke(*command, "affine(identity,relu)", *shared).stderr == ""
    (record,) = Records(tmp_path / "records.jsonl").read()
    assert record.spec.schedule == schedule.replace("1e9", "1000000000")
    start, first, *later = record.coefficients
    assert start != first  # the first update is made at the full rate
    assert all((point == first) == (schedule != "constant") for point in later)


def test_more_seeds_extend_existing_records(tmp_path: Path) -> None:
    shared = ("reproduce", COLUMN, "--activation", "relu", *TRAIN[3:], "--output", tmp_path, "--quiet")
    assert invoke(*shared, "--seeds", 1).stderr == ""
    result = invoke(*shared, "--seeds", 3)
    actual = Records(tmp_path / "records.jsonl").read()
    assert [(record.spec.seed, record.members) for record in actual] == [(0, 1), (1, 2), (2, 2)]
    assert Interval.of(record.accuracy for record in actual).spell() in result.stdout


def test_failed_append_is_a_clear_error_and_leaves_no_partial_record(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        result = invoke(*TRAIN, "--output", tmp_path, "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("hullo: cannot write ")
    assert "File too large; choose another directory with --output; finished runs are kept" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not any((tmp_path / "checkpoints").glob("[!.]*"))
    assert invoke(*TRAIN, "--output", tmp_path, "--quiet").exit_code == 0
