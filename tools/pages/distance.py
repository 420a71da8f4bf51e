"""Distance from the paper's results, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.readings import BEST, READINGS
from hullo.lab.analysis.statistics import Interval, pooled_deviation
from hullo.lab.analysis.tables.markdown import escape, grid

APART = "convex(identity,tanh)"
"""The row that is far from the paper's figure in the first column, and is left out in a second line."""
EPOCHS = (50, 100, 150, 200, 250, 300)


@dataclass(frozen=True)
class Distance:
    """The distance of an experiment's means from the paper's results.

    Args:
        root_mean_square: of the differences, in points.
        scatter: of one run around the mean of ours, in points: what chance alone would make of single runs; None
            with one seed.
        inside: published figures inside the 95 % prediction intervals of one more run.
        count: figures compared.
    """

    root_mean_square: float
    scatter: float | None
    inside: int
    count: int


def measure_distance(experiment: Experiment, without: Collection[str] = ()) -> Distance | None:
    """Compare all published results of a column, except for some rows; None if there are none."""
    reached = ((row, list(runs.values())) for row, runs in experiment.accuracies.items() if row not in without)
    pairs = [(runs, value) for row, runs in reached if (value := experiment.published(row)) is not None]
    if not pairs:
        return None
    squares = [(Interval.of(runs).mean - value) ** 2 for runs, value in pairs]
    deviation = pooled_deviation(runs for runs, _ in pairs)
    seeds = min(len(runs) for runs, _ in pairs)
    scatter = None if deviation is None else deviation * math.sqrt(1 + 1 / seeds)
    inside = sum(Interval.of(runs, "next").covers(value) for runs, value in pairs if len(runs) > 1)
    return Distance(math.sqrt(math.fsum(squares) / len(squares)), scatter, inside, len(pairs))


def distance_table(experiments: Sequence[Experiment]) -> str:
    """Return the root mean square distance of each column from the paper's figures, under each reading."""
    readings = list(READINGS.values())
    lines = []
    for experiment in experiments:
        found = experiment.by_reading
        for about, without in (("all rows", ()), (f"without {APART}", (APART,))):
            distances = [measure_distance(found[r], without) if r in found else None for r in readings]
            if any(distances):
                lines.append([*map(escape, (experiment.name, experiment.time, about)), *map(_figure, distances)])
    return grid(["column", "epochs", "rows", *(reading.short for reading in readings)], lines) if lines else ""


def prediction_part(experiments: Sequence[Experiment], all_runs: Sequence[Experiment]) -> str:
    """Return how the paper's figures compare with single runs of ours under the paper's probable reading.

    Args:
        experiments: one per column.
        all_runs: these and others, among them runs without held-out images.
    """
    lines, inside, count = [], 0, 0
    for experiment in experiments:
        found = experiment.by_reading.get(BEST)
        if (distance := measure_distance(found) if found else None) and distance.scatter is not None:
            inside, count = inside + distance.inside, count + distance.count
            cost = cost_of_holding_out(experiment, all_runs)
            figures = [_figure(distance), cost.spell("+.2f") if cost else "", f"{distance.scatter:.2f}"]
            lines.append([escape(experiment.name), *figures, f"{distance.inside} of {distance.count}"])
    head = [
        "column",
        "distance",
        "what all images would add",
        "scatter of one run",
        "published figures that one run of ours could give",
    ]
    said = (
        f"In all, {inside} of {count} published figures lie in the 95 % prediction intervals of one more run of ours."
    )
    return f"{grid(head, lines)}\n\n{said}"


def cost_of_holding_out(experiment: Experiment, all_runs: Sequence[Experiment]) -> Interval | None:
    """Return what training on all images would add to the best test accuracy, from shorter runs that did so.

    Both are read after as many epochs as the shorter runs have; the mean over activations is taken seed by seed.
    """
    alike = replace(experiment.setting, epochs=1, val_size=0)
    plain = [e for e in all_runs if not e.setting.val_size and replace(e.setting, epochs=1) == alike]
    if not plain or not experiment.setting.val_size:
        return None
    other = max(plain, key=lambda e: e.epoch)
    epochs = min(experiment.epoch, other.epoch)
    ours, theirs = (replace(e, reading=BEST, epoch=epochs).accuracies for e in (experiment, other))
    rows = [row for row in ours if row in theirs]
    seeds = set.intersection(*(set(found[row]) for row in rows for found in (ours, theirs))) if rows else set()
    return Interval.of(mean(theirs[row][s] - ours[row][s] for row in rows) for s in sorted(seeds)) if seeds else None


def best_of(experiment: Experiment, epoch: int) -> Experiment:
    """Return the experiment under the paper's probable reading, as if it had ended after an epoch."""
    return replace(experiment, reading=BEST, epoch=epoch)


def best_of_table(experiments: Sequence[Experiment]) -> str:
    """Return the distance of the best epoch within the first N from the paper's figures, in a column per N."""
    lengths = [number for number in EPOCHS if any(number <= experiment.epoch for experiment in experiments)]
    lines = []
    for experiment in experiments:
        if BEST in experiment.readings:
            known = [best_of(experiment, length) if length <= experiment.epoch else None for length in lengths]
            for about, without in (("all rows", ()), (f"without {APART}", (APART,))):
                distances = (measure_distance(found, without) if found else None for found in known)
                lines.append([escape(experiment.name), escape(about), *map(_figure, distances)])
    return grid(["best of the first", "rows", *map(str, lengths)], lines)


def _figure(distance: Distance | None) -> str:
    return "" if distance is None else f"{distance.root_mean_square:.2f}"
