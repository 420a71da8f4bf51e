"""Accuracy and training loss during training: would longer training change the table?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.readings import LAST
from hullo.lab.analysis.statistics import Interval
from hullo.lab.analysis.tables.markdown import escape, grid

PARTS = 4
"""Parts of a training; accuracies are shown after each."""


def quarters(experiment: Experiment) -> list[int]:
    """Return the epochs that are shown; the last is the experiment's."""
    return [max(1, experiment.epoch * part // PARTS) for part in range(1, PARTS + 1)]


def epochs_tables(experiments: Sequence[Experiment]) -> str:
    """Return a table per experiment: mean accuracies after each part of a training, and the gain of the last part.

    The gain is the mean of differences between a run's accuracies, with its 95 % interval over seeds.
    """
    return "\n\n".join(_table(experiment) for experiment in experiments)


def _table(experiment: Experiment) -> str:
    epochs = quarters(experiment)
    stages = [replace(experiment, epoch=epoch, reading=LAST).accuracies for epoch in epochs]
    lines = []
    for row, cell in replace(experiment, reading=LAST).cells.items():
        before, last = stages[-2][row], stages[-1][row]
        lines.append(
            [
                escape(row),
                *(f"{Interval.of(stage[row].values()).mean:.2f}" for stage in stages),
                Interval.of(last[seed] - before[seed] for seed in last).spell("+.2f"),
                "" if cell.over_published is None else f"{cell.over_published:+.2f}",
            ]
        )
    heads = ["after epoch", *map(str, epochs), f"from {epochs[-2]} to {epochs[-1]}", "at the end beside the paper"]
    return f"### {escape(experiment.name)}: {experiment.images} accuracy on the way, in %\n\n{grid(heads, lines)}"


def losses_tables(experiments: Sequence[Experiment]) -> str:
    """Return a table per experiment: mean training losses in the first epoch and in the last of each part.

    Runs that diverged count up to then.
    """
    return "\n\n".join(_losses(experiment) for experiment in experiments)


def _losses(experiment: Experiment) -> str:
    epochs = sorted({1, *quarters(experiment)})
    lines = []
    for row in experiment.cells:
        curves = [record.train_loss for record in experiment.records if record.spec.activation == row]
        known = ([loss for curve in curves if (loss := curve[epoch - 1]) is not None] for epoch in epochs)
        lines.append([escape(row), *(f"{mean(losses):.3f}" if losses else "" for losses in known)])
    heads = ["in epoch", *map(str, epochs)]
    return f"### {escape(experiment.name)}: training loss\n\n{grid(heads, lines)}"
