"""Distance from the paper's results, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hullo.lab.analysis.distance import Distance, best_of, measure_distance, under
from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.readings import BEST, READINGS
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


def prediction_table(experiments: Sequence[Experiment]) -> str:
    """Return how the paper's figures compare with single runs of ours under the paper's probable reading."""
    lines = []
    for experiment in experiments:
        found = under(experiment, [BEST])
        if (distance := measure_distance(found[BEST]) if found else None) and distance.scatter is not None:
            figures = [_figure(distance), f"{distance.scatter:.2f}", f"{distance.inside} of {distance.count}"]
            lines.append([escape(experiment.name), escape(experiment.time), *figures])
    head = ["column", "epochs", "distance", "scatter of one run", "published figures that one run of ours could give"]
    return grid(head, lines)


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
