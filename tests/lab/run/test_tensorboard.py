"""Test that TensorBoard's reader finds the values of the records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny_command
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.run.tensorboard import TensorBoardLogger
from hullo.lab.run.training import Training
from hullo.lab.spec.records import Records

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's thread


def test_unwritable_log_directory_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_epoch = TensorBoardLogger.log_epoch

    def lose(board: TensorBoardLogger, training: Training) -> None:
        log_epoch(board, training)
        shutil.rmtree(tmp_path / "board", ignore_errors=True)

    monkeypatch.setattr("hullo.lab.data.load", tiny_command.load)
    monkeypatch.setattr(TensorBoardLogger, "log_epoch", lose)
    command = ("train", "lenet5", "fashion-mnist-sample", "--device", "cpu", "--epochs", "9", "--quiet")
    places = ("--output", str(tmp_path / "runs"), "--tensorboard", str(tmp_path / "board"))
    result = CliRunner().invoke(app, [*command, *places])
    assert result.exit_code == 1
    assert f"hullo: cannot write {tmp_path / 'board'}" in result.stderr


def test_every_epoch_of_every_member_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hullo.lab.data.load", tiny_command.load)
    rows = ("--activation", "prelu", "--activation", "affine(identity,relu)", "--val-size", "20")
    command = ("reproduce", "lenet5/fashion-mnist-sample", *rows, "--seeds", "1", "--epochs", "2", "--device", "cpu")
    places = ("--output", str(tmp_path / "runs"), "--tensorboard", str(tmp_path / "board"), "--quiet")
    result = CliRunner().invoke(app, [*command, *places])
    assert result.exit_code == 0, result.output
    records = Records(tmp_path / "runs" / "records.jsonl").read()
    for record in records:
        (folder,) = (tmp_path / "board").glob(f"**/*{record.spec.id}")
        events = accumulator.EventAccumulator(str(folder))
        events.Reload()
        for name in ("train_loss", "test_loss", "test_accuracy", "val_loss", "val_accuracy"):
            shown = events.Scalars(name)
            assert [event.step for event in shown] == [1, 2]
            assert [event.value for event in shown] == pytest.approx(getattr(record, name), rel=1e-5)
        tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("coefficients/")]
        assert len(tags) == 3 * len(record.bases)
        for tag in tags:
            _, layer, name = tag.split("/")
            expected = record.coefficients[-1][int(layer) - 1][record.bases.index(name)]
            assert events.Scalars(tag)[-1].value == pytest.approx(expected, rel=1e-5)
