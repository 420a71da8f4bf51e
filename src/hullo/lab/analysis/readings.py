"""Readings: which epochs of a run count. The four readings use the same records, and are never mixed.

====== ===========================================================================================
last   the accuracy after the last epoch
last10 the mean accuracy of the last ten epochs
chosen the test accuracy after the epoch that was best on held-out training images
best   the best test accuracy of any epoch: how the paper was probably read, not a result of ours
====== ===========================================================================================

Of epochs that share the best accuracy the earliest counts, as with Keras's ``ModelCheckpoint(save_best_only=True)``.
Epochs at or after divergence are never chosen, unless a run diverged in its first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from hullo.lab.spec.records import Record

WINDOW = 10
"""Epochs that `last10` averages. It takes twice as many to be read so, or most of the training would be in the mean."""


@dataclass(frozen=True)
class Reading:
    """A way to read the accuracy of a run.

    Args:
        name: as options, records of tables and functions spell it.
        short: in titles and heads of columns.
        meaning: in captions.
    """

    name: str
    short: str
    meaning: str

    def __str__(self) -> str:
        return self.name

    @property
    def chooses(self) -> bool:
        """Return whether epochs differ between runs."""
        return self in (CHOSEN, BEST)

    @property
    def sentence(self) -> str:
        """Return a description of the reading for captions."""
        return f"Reading {self.name}: {self.meaning}."


LAST = Reading("last", "last epoch", "the accuracy after the last epoch")
LAST10 = Reading("last10", f"last {WINDOW} epochs", f"the mean accuracy of the last {WINDOW} epochs")
CHOSEN = Reading("chosen", "chosen epoch", "the test score after the epoch that was best on held-out samples")
BEST = Reading(
    "best",
    "best test epoch (not a result)",
    "the best test accuracy of any epoch, which explains the paper and is not a result of ours",
)
READINGS = {reading.name: reading for reading in (LAST, LAST10, CHOSEN, BEST)}


def readings_of(records: Sequence[Record], epochs: int) -> list[Reading]:
    """Return the readings that all of the runs have within their first `epochs` epochs."""
    tested = all(record.test_scores for record in records)
    held_out = all(record.val_scores for record in records)
    there = {LAST: True, LAST10: epochs >= 2 * WINDOW, CHOSEN: tested and held_out, BEST: tested}
    return [reading for reading, known in there.items() if known]


def fairest(records: Sequence[Record], epochs: int) -> Reading:
    """Return the reading to report: `chosen`, else `last10`, else `last`, the first of these that the runs have.

    `chosen` is what somebody would deploy and looks at no test image to choose; without held-out images a rule that
    was fixed in advance is as fair, and a mean of ten epochs scatters less than one.
    """
    known = readings_of(records, epochs)
    return next(reading for reading in (CHOSEN, LAST10, LAST) if reading in known)


def read_epoch(record: Record, reading: Reading, epochs: int) -> int:
    """Return the epoch, counted from 1, whose coefficients belong to a reading of the first `epochs` epochs."""
    if not reading.chooses:
        return epochs
    sound = min(epochs, (record.diverged_in or epochs + 1) - 1) or epochs
    curve = (record.val_scores if reading is CHOSEN else record.test_scores)[:sound]
    return 1 + curve.index(min(curve) if record.lower_is_better else max(curve))


def read_accuracy(record: Record, reading: Reading, epochs: int, split: str = "test") -> float:
    """Return the accuracy of a run in its first `epochs` epochs, in percent, on the "test" or the "val" images."""
    curve = record.test_scores if split == "test" else record.val_scores
    last = read_epoch(record, reading, epochs)
    return mean(curve[last - WINDOW : last]) if reading is LAST10 else curve[last - 1]
