"""Would longer training change the table? What each activation had reached on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from hullo.lab.intervals import Interval
from hullo.lab.table.experiments import Experiment
from hullo.lab.table.markdown import escape, grid

PARTS = 4
"""Of a training, after each of which accuracies are shown."""


def quarters(experiment: Experiment) -> list[int]:
    """The epochs after which accuracies, and what led to them, are shown; the last is the experiment's."""
    return [max(1, experiment.epoch * part // PARTS) for part in range(1, PARTS + 1)]


def epochs_tables(experiments: Sequence[Experiment]) -> str:
    """Under a heading each, as Markdown: mean accuracies after each part of a training, and what the last part gained.

    The gain is the mean of differences between a run's accuracies, with its 95 % interval over seeds.
    """
    return "\n\n".join(_table(experiment) for experiment in experiments)


def _table(experiment: Experiment) -> str:
    epochs = quarters(experiment)
    stages = [replace(experiment, epoch=epoch).accuracies for epoch in epochs]
    lines = []
    for row, cell in experiment.cells.items():
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
    return f"### {escape(experiment.name)}: accuracy on the way, in %\n\n{grid(heads, lines)}"


def losses_tables(experiments: Sequence[Experiment]) -> str:
    """Under a heading each, as Markdown: mean losses on training pictures, in the first epoch and in the last of each
    part of a training; of runs that had not diverged by then."""
    return "\n\n".join(_losses(experiment) for experiment in experiments)


def _losses(experiment: Experiment) -> str:
    epochs = sorted({1, *quarters(experiment)})
    lines = []
    for row in experiment.cells:
        curves = [record.train_loss for record in experiment.records if record.spec.activation == row]
        known = ([loss for curve in curves if (loss := curve[epoch - 1]) is not None] for epoch in epochs)
        lines.append([escape(row), *(f"{mean(losses):.3f}" if losses else "" for losses in known)])
    heads = ["in epoch", *map(str, epochs)]
    return f"### {escape(experiment.name)}: loss on training pictures\n\n{grid(heads, lines)}"
