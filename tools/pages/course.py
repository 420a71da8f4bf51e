"""The course of a training, as Markdown: coefficients on the way, and training losses that rise late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.readings import WINDOW
from hullo.lab.analysis.tables.markdown import escape, grid, section
from hullo.lab.spec.records import Record
from pages.verdicts import known_layers

PARTS = 4
"""Parts of a training; coefficients are shown after each."""
CORNER = 0.99
"""The least coefficient of a base that makes up nearly all of an activation; the others' are below 1 - CORNER."""
RISE = 0.01
"""The least relative rise of the training loss that counts: losses averaged over ten epochs scatter by less."""


def quarters(experiment: Experiment) -> list[int]:
    """Return the epochs that are shown; the last is the experiment's."""
    return [max(1, experiment.epoch * part // PARTS) for part in range(1, PARTS + 1)]


def drift_tables(experiments: Sequence[Experiment]) -> str:
    """Return a table per experiment: how far each hull's coefficients are from their initial values.

    That is the largest change in a layer, mean over layers and runs; beside it how many layers ended at a corner. Runs
    that diverged are left out.
    """
    return "\n\n".join(filter(None, map(_drift, experiments)))


def _drift(experiment: Experiment) -> str:
    epochs, lines = quarters(experiment), []
    for row, runs in experiment.runs.items():
        sound = [record for record in runs if record.bases and not record.diverged]
        if ends := [layer for record in sound for layer in known_layers(record, experiment.epoch)]:
            corners = sum(max(layer) >= CORNER and sum(abs(c) > 1 - CORNER for c in layer) == 1 for layer in ends)
            lines.append([escape(row), *(f"{_move(sound, e):.2f}" for e in epochs), f"{corners} of {len(ends)}"])
    head = ["after epoch", *map(str, epochs), "layers at a corner"]
    return section(f"{experiment.name}: drift of coefficients", head, lines) if lines else ""


def _move(records: Sequence[Record], epoch: int) -> float:
    """Return the largest change of a layer's coefficients up to an epoch, mean over layers and runs."""
    layers = (pair for r in records for pair in zip(known_layers(r, 0), known_layers(r, epoch), strict=True))
    return mean(max(abs(new - old) for old, new in zip(*pair, strict=True)) for pair in layers)


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
        for row, runs in experiment.runs.items():
            found = [late for record in runs if (late := find_late_loss(record, experiment.epoch))]
            rising = [late for late in found if late.rises]
            others += bool(found) and not rising
            if rising:
                then, last = (mean(getattr(late, f"accuracy_{when}") for late in rising) for when in ("then", "last"))
                figures = [
                    f"{len(rising)} of {len(found)}",
                    f"{median(late.lowest_at for late in rising):.0f}",
                    f"+{100 * mean(late.rise for late in rising):.0f} %",
                    *(f"{then:.2f}", f"{last:.2f}", f"{last - then:+.2f}"),
                ]
                lines.append([escape(experiment.name), escape(row), *figures])
    heads = ["lowest at epoch", "rise by the end", "accuracy then", "at the end", "change"]
    table = grid(["column", "activation", "runs", *heads], lines) if lines else ""
    text = f"No run's training loss rises by more than {100 * RISE:.0f} % in the other {others} cells of the table."
    return f"{table}\n\n{text}".strip()
