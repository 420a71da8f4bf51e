"""Test that checkpoints are written atomically, and unusable ones are rejected by name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import tiny_command
import torch
from safetensors.torch import save_file

from hullo.lab.run.checkpoints import Checkpoints
from hullo.lab.run.loaders import InMemoryLoader
from hullo.lab.run.training import Training
from hullo.lab.spec.run_spec import Spec

SPECS = tuple(Spec("lenet5", "fashion-mnist-sample", row, epochs=1) for row in ("relu", "affine(identity,tanh)"))


def after(steps: int) -> Training:
    training = Training(SPECS, InMemoryLoader(tiny_command.load("fashion-mnist-sample")))
    moments = training.advance()
    for _ in range(steps):
        next(moments)
    return training


def test_last_checkpoint_is_restored_and_deleted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for steps in (1, 2):
        checkpoints.save(training := after(steps))
    assert checkpoints.started() == [SPECS]
    checkpoints.restore(restored := after(0))
    expected = training.state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in restored.state_dict().items())
    checkpoints.delete(SPECS)
    assert list(tmp_path.iterdir()) == []


def test_population_without_checkpoint_starts_at_epoch_0(tmp_path: Path) -> None:
    Checkpoints(tmp_path).restore(training := after(0))
    assert (training.epoch, training.step) == (0, 0)


@pytest.mark.parametrize("place", [0.3, 0.6, 0.99])
def test_checkpoint_with_other_bytes_is_rejected_and_kept(place: float, tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(after(1))
    (path,) = tmp_path.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[int(place * len(damaged))] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=f"{path.name} is damaged: its tensors are not those that were saved; "):
        Checkpoints(tmp_path).restore(after(0))
    assert path.read_bytes() == damaged


def test_checkpoint_of_other_data_is_rejected_and_kept(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(training := after(1))
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    loader = training.loader
    assert isinstance(loader, InMemoryLoader)
    fewer = InMemoryLoader(loader.dataset.split_validation(10, seed=0))
    there = f"{loader.count} training, {len(loader.dataset.test_labels)} test images of 10 classes"
    now = f"{loader.count - 10} training, {len(loader.dataset.test_labels)} test, 10 val images of 10 classes"
    with pytest.raises(ValueError, match=f"saved with {there}, but the data set has {now}"):
        Checkpoints(tmp_path).restore(Training(SPECS, fewer))
    assert path.read_bytes() == before


def test_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(after(1))
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(after(2))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_checkpoint_of_another_version_is_rejected(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "abc.safetensors", {"version": "0"})
    with pytest.raises(ValueError, match=r"abc.safetensors is a checkpoint of version 0, this hullo reads version \d+"):
        Checkpoints(tmp_path).started()


def test_other_file_is_rejected_by_name(tmp_path: Path) -> None:
    (tmp_path / "abc.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"abc.safetensors is not a checkpoint: .*; delete it to train its runs"):
        Checkpoints(tmp_path).started()
