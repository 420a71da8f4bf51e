"""Late rises of the training loss, which are caused by the optimizer and not by overfitting."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from hullo.lab.analysis.readings import WINDOW
from hullo.lab.spec.records import Record

RISE = 0.01
"""The least relative rise of the training loss that counts: losses averaged over ten epochs scatter by less."""


@dataclass(frozen=True)
class LateLoss:
    """The training loss of a run, averaged over ten epochs: where it was lowest, and how it ended.

    Args:
        lowest_at: the last of the ten epochs of the lowest mean, counted from 1.
        rise: of the last ten epochs over that, relative.
        accuracy_then, accuracy_last: mean accuracy of the same epochs, in percent.
    """

    lowest_at: int
    rise: float
    accuracy_then: float
    accuracy_last: float

    @property
    def rises(self) -> bool:
        return self.rise > RISE


def find_late_loss(record: Record, epochs: int) -> LateLoss | None:
    """Follow the training loss of the first `epochs` epochs; None if these are too few, or the run diverged in them."""
    losses = [loss for loss in record.train_loss[:epochs] if loss is not None]
    accuracy = record.test_accuracy or record.val_accuracy
    if epochs < 2 * WINDOW or len(losses) < epochs or (record.diverged_in or epochs + 1) <= epochs:
        return None
    means = {end: mean(losses[end - WINDOW : end]) for end in range(WINDOW, epochs + 1)}
    lowest_at = min(means, key=lambda end: means[end])
    then, last = (mean(accuracy[end - WINDOW : end]) for end in (lowest_at, epochs))
    return LateLoss(lowest_at, means[epochs] / means[lowest_at] - 1 if means[lowest_at] else 0.0, then, last)
