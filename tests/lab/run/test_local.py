"""Test that a process that was killed at any file operation is resumed with the same records."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_command
from rich.console import Console

from hullo.lab.progress import Progress
from hullo.lab.run.loaders import InMemoryLoader
from hullo.lab.run.local import LocalRunner
from hullo.lab.run.queue import RunQueue
from hullo.lab.spec.environment import environment
from hullo.lab.spec.paper import parse_column
from hullo.lab.spec.records import Record
from hullo.lab.spec.run_spec import Spec

SPECS = [
    Spec("lenet5", "fashion-mnist-sample", row, epochs=1, batch_size=35) for row in ("relu", "affine(identity,tanh)")
]
DATA = {("fashion-mnist-sample", 0, "flip,shift:0.1"): InMemoryLoader(tiny_command.load("fashion-mnist-sample"))}


class Death(BaseException):
    """A kill: no code catches it."""


def run(output: Path, checkpoint_every: float = 0.0) -> list[Record]:
    queue = RunQueue(SPECS, output, weights=True)
    with Progress(Console(), quiet=True) as progress:
        return LocalRunner(queue, DATA, environment("here"), checkpoint_every).run(progress)


def ends(records: list[Record]) -> list[object]:
    return [(record.spec, record.test_loss, record.test_accuracy, record.coefficients) for record in records]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return ends(run(tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("call", ["fsync", "replace", "unlink"])
def test_kill_before_any_file_operation_is_recovered(
    call: str, expected: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os if call == "fsync" else Path
    real, unlink = getattr(owner, call), Path.unlink
    for fatal in itertools.count(1):
        calls = 0

        def deadly(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls >= fatal:  # noqa: B023 (used within this iteration)
                raise Death
            return real(*arguments, **options)

        def leave(path: Path, missing_ok: bool = False) -> None:
            if calls < fatal:  # noqa: B023
                unlink(path, missing_ok)

        output = tmp_path / str(fatal)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", leave)  # a killed process does not clean up
            patch.setattr(owner, call, deadly)
            try:
                run(output)
            except Death:
                died = True
            else:
                died = False
        assert ends(run(output)) == expected
        assert len((output / "records.jsonl").read_text().splitlines()) == 2
        assert not list((output / "checkpoints").glob("[!.]*"))
        assert not [*output.rglob("*.part"), *output.rglob("*.pending")]
        if not died:
            break
    assert fatal > 1


def test_progress_within_an_epoch_is_a_fraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[float] = []
    monkeypatch.setattr("hullo.lab.run.local.REFRESH_SECONDS", -1.0)
    monkeypatch.setattr(Progress, "update", lambda self, fraction, name=None: shown.append(fraction))
    run(tmp_path, checkpoint_every=1e9)  # an epoch of two steps
    assert shown == [0.0, 0.5, 1.0, 1.0]


def test_a_network_that_diverges_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(Progress, "note", lambda self, text: notes.append(text))
    specs = [replace(SPECS[0], lr=lr, epochs=3, seed=seed) for seed, lr in enumerate((1e30, 1e-4))]
    with Progress(Console(), quiet=True) as progress:
        LocalRunner(RunQueue(specs, tmp_path), DATA, environment("here")).run(progress)
    (note,) = notes
    assert note.startswith("diverged in epoch 1: relu seed=0: ")


def test_population_of_another_command_is_finished_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("hullo.lab.spec.records.Records.add", lambda *_: (_ for _ in ()).throw(Death))
        with pytest.raises(Death):
            run(tmp_path, checkpoint_every=1e9)
    with Progress(Console(), quiet=True) as progress:
        (record,) = LocalRunner(RunQueue(SPECS[1:], tmp_path), DATA, environment("here")).run(progress)
    assert (record.spec, record.members) == (SPECS[1], 2)


@pytest.mark.parametrize("text", ["lenet5", "", "cifar10-lenet5"])
def test_experiment_without_a_slash_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=f"^invalid column '{text}'.*the paper's are lenet5/fashion"):
        parse_column(text)
