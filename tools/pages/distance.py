"""Distance from the paper's results, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from hullo.lab.analysis.distance import Distance, best_of, measure_distance, under
from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.readings import BEST, READINGS
from hullo.lab.analysis.statistics import Interval
from hullo.lab.analysis.tables.markdown import escape, grid

APART = "convex(identity,tanh)"
"""The row that is far from the paper's figure in the first column, and is left out in a second line."""
EPOCHS = (50, 100, 150, 200, 250, 300)


def distance_table(experiments: Sequence[Experiment]) -> str:
    """Return the root mean square distance of each column from the paper's figures, under each reading."""
    readings = list(READINGS.values())
    lines = []
    for experiment in experiments:
        found = under(experiment, readings)
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
        found = under(experiment, [BEST])
        if (distance := measure_distance(found[BEST]) if found else None) and distance.scatter is not None:
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


def best_of_table(experiments: Sequence[Experiment]) -> str:
    """Return the distance of the best epoch within the first N from the paper's figures, in a column per N."""
    lengths = [number for number in EPOCHS if any(number <= experiment.epoch for experiment in experiments)]
    lines = []
    for experiment in experiments:
        if BEST in experiment.readings:
            found = best_of(experiment, lengths)
            for about, without in (("all rows", ()), (f"without {APART}", (APART,))):
                distances = (measure_distance(found[n], without) if n in found else None for n in lengths)
                lines.append([escape(experiment.name), escape(about), *map(_figure, distances)])
    return grid(["best of the first", "rows", *map(str, lengths)], lines)


def _figure(distance: Distance | None) -> str:
    return "" if distance is None else f"{distance.root_mean_square:.2f}"
