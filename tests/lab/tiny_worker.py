"""What the processes of a test's Ray cluster do first: the sample is tiny, and not all networks find enough memory."""

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
    """The sample is tiny; other data sets are what they are."""
    return tiny_command.load(name) if name == "fashion-mnist-sample" else _load(name, data_dir, device)


def advance(training: Training) -> Iterator[None]:
    """KerasNet fits into memory twice, not three times."""
    for moment in _advance(training):
        if training.specs[0].network == "kerasnet" and len(training.specs) > 2:
            raise torch.OutOfMemoryError("out of memory")
        yield moment
