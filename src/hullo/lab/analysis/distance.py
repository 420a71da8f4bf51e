"""Distance from the paper's results: under each reading, and for the best of fewer epochs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.readings import BEST, Reading
from hullo.lab.analysis.statistics import Interval, pooled_deviation


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


def best_of(experiment: Experiment, epochs: Iterable[int]) -> dict[int, Experiment]:
    """Return the experiment under the paper's probable reading, as if it had ended after fewer epochs."""
    return {number: replace(experiment, reading=BEST, epoch=number) for number in epochs if number <= experiment.epoch}


def under(experiment: Experiment, readings: Sequence[Reading]) -> dict[Reading, Experiment]:
    """Return the experiment under each of the given readings that its runs have."""
    return {reading: replace(experiment, reading=reading) for reading in readings if reading in experiment.readings}
