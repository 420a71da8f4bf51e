"""Test that checkpoints are written atomically, and unusable ones are rejected by name."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest
import tiny_command
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hullo.lab.files import read_tensors, write_tensors
from hullo.lab.run.checkpoints import Checkpoints
from hullo.lab.run.loaders import InMemoryLoader
from hullo.lab.run.training import Training
from hullo.lab.spec.run_spec import Spec, identify
from hullo.population.kernels import choice

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


def test_kernels_that_were_chosen_are_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_chosen", {"('forward', 3)": "rows"})
    Checkpoints(tmp_path).save(after(1))
    monkeypatch.setattr(choice, "_chosen", {})
    Checkpoints(tmp_path).restore(after(0))
    assert choice.choices() == {"('forward', 3)": "rows"}


def test_population_without_checkpoint_starts_at_epoch_0(tmp_path: Path) -> None:
    Checkpoints(tmp_path).restore(training := after(0))
    assert (training.epoch, training.step) == (0, 0)


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


def test_other_file_is_rejected_by_name(tmp_path: Path) -> None:
    (tmp_path / "abc.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"abc.safetensors .*; delete it"):
        Checkpoints(tmp_path).started()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoint")
    Checkpoints(folder).save(after(2))
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_damaged_checkpoint_is_rejected_or_means_the_same(
    checkpoint: Path, tmp_path: Path, place: float, change: int
) -> None:
    (original,) = checkpoint.glob("*.safetensors")
    path, content = tmp_path / original.name, bytearray(original.read_bytes())
    header = int.from_bytes(content[:8], "little") + 8
    size = header if change % 2 else len(content)  # the header is small: damage it as often as the tensors
    content[int(place * size)] ^= change
    path.write_bytes(content)
    intact, damaged = after(0), after(0)
    Checkpoints(checkpoint).restore(intact)
    try:
        Checkpoints(tmp_path).restore(damaged)
    except ValueError as error:
        assert re.match(rf"{path} .*delete it to train its runs", str(error))  # noqa: PT017
    else:
        state = damaged.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in intact.state_dict().items())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", "4"),
        ("specs", "["),
        ("specs", "[1]"),
        ("specs", json.dumps([str(spec) for spec in SPECS[::-1]])),
        ("data", "1 training images"),
    ],
)
def test_checkpoint_of_something_else_is_rejected(checkpoint: Path, tmp_path: Path, key: str, value: str) -> None:
    path = tmp_path / f"{identify(SPECS)}.safetensors"
    state, metadata = read_tensors(checkpoint / path.name)
    write_tensors(path, state, metadata | {key: value})
    with pytest.raises(ValueError, match=f"^{path} .*delete"):
        Checkpoints(tmp_path).restore(after(0))


def test_state_of_another_network_is_rejected(checkpoint: Path, tmp_path: Path) -> None:
    """As that of a network whose code has changed elsewhere than in its own file."""
    path = tmp_path / f"{identify(SPECS)}.safetensors"
    state, metadata = read_tensors(checkpoint / path.name)
    state["population.stacked.conv1.weight"] = torch.zeros(2, 20, 1, 3, 3)
    write_tensors(path, state, metadata)
    with pytest.raises(ValueError, match=f"^{path} .*conv1.*delete"):
        Checkpoints(tmp_path).restore(after(0))
