"""Set up the workers of a test's Ray cluster: a tiny sample, and limited memory."""

from __future__ import annotations

from collections.abc import Iterator

import tiny_command
import torch

from hullo.lab import data
from hullo.lab.data import Dataset
from hullo.lab.run.training import Training

_load, _advance = data.load, Training.advance


def set_up() -> None:
    data.load = load  # type: ignore[assignment]
    Training.advance = advance  # type: ignore[method-assign]


def load(name: str, data_dir: str | None = None, device: str = "cpu") -> Dataset:
    """Return a tiny sample; load other data sets as usual."""
    return tiny_command.load(name) if name == "fashion-mnist-sample" else _load(name, data_dir, device)


def advance(training: Training) -> Iterator[None]:
    """Run out of memory with more than two KerasNets."""
    for moment in _advance(training):
        if training.specs[0].network == "kerasnet" and len(training.specs) > 2:
            raise torch.OutOfMemoryError("out of memory")
        yield moment
