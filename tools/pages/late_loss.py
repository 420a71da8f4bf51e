"""Late rises of the training loss, which are caused by the optimizer and not by overfitting, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.readings import WINDOW
from hullo.lab.analysis.tables.markdown import escape, grid
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


def late_loss_table(experiments: Sequence[Experiment]) -> str:
    """Return a line per activation and column in which the training loss of any run rises again."""
    lines, others = [], 0
    for experiment in experiments:
        for row in experiment.accuracies:
            own = (record for record in experiment.records if record.spec.activation == row)
            found = [late for record in own if (late := find_late_loss(record, experiment.epoch))]
            rising = [late for late in found if late.rises]
            others += bool(found) and not rising
            if rising:
                accuracies = [
                    mean(getattr(late, name) for late in rising) for name in ("accuracy_then", "accuracy_last")
                ]
                figures = [
                    f"{len(rising)} of {len(found)}",
                    f"{median(late.lowest_at for late in rising):.0f}",
                    f"+{100 * mean(late.rise for late in rising):.0f} %",
                    *(f"{value:.2f}" for value in accuracies),
                    f"{accuracies[1] - accuracies[0]:+.2f}",
                ]
                lines.append([escape(experiment.name), escape(row), *figures])
    head = [
        "column",
        "activation",
        "runs",
        "lowest at epoch",
        "rise by the end",
        "accuracy then",
        "at the end",
        "change",
    ]
    table = grid(head, lines) if lines else ""
    text = f"No run's training loss rises by more than {100 * RISE:.0f} % in the other {others} cells of the table."
    return f"{table}\n\n{text}".strip()
