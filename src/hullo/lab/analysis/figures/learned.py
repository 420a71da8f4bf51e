"""Learned coefficients side by side: the affine and the convex hull of the same bases, or PReLU; one run each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.names import kind_and_bases, layer_names
from hullo.lab.spec.activation import PRELU
from hullo.lab.spec.records import Record
from hullo.modules import HULLS


@dataclass(frozen=True)
class LearnedCoefficients:
    """The coefficients of one run up to an epoch: `paths` is (1 + epochs, layers, bases), the start first.

    With one activation per channel these are the means over channels; `channels` then holds, if the run ended with that
    epoch, the coefficients (channels, bases) of each layer.
    """

    record: Record
    paths: np.ndarray
    channels: list[np.ndarray]
    names: list[str]  # of the layers

    @property
    def layers(self) -> int:
        return int(self.paths.shape[1])


@dataclass(frozen=True)
class Pair:
    """Runs whose rows differ only in the kind of hull, by kind: affine, convex, or both; PReLU is another kind."""

    about: str  # what the rows have in their parentheses, or "prelu"
    bases: tuple[str, ...]
    runs: Mapping[str, LearnedCoefficients]

    @property
    def of_channels(self) -> str:
        """Return ``mean over channels`` if that is what is drawn, else an empty text."""
        return "mean over channels" if any(run.record.spec.row.per == "channel" for run in self.runs.values()) else ""


def find_learned(experiment: Experiment, seed: int | None = None) -> list[Pair]:
    """Return all hulls of an experiment and PReLU, each with the run of the seed, by default the first not to diverge.

    Coefficients are those up to the epoch of the experiment's reading.
    """
    pairs: dict[str, dict[str, LearnedCoefficients]] = {}
    for row in experiment.runs:
        kind, about = kind_and_bases(row)
        runs = (r for r in experiment.sound_runs(row) if r.coefficients and seed in (None, r.spec.seed))
        if own := next(runs, None):
            epoch = experiment.read_epoch(own)
            paths = np.array(own.coefficients[: epoch + 1], dtype=float)
            ended = epoch == own.spec.epochs
            channels = [np.array(layer, dtype=float) for layer in own.channels] if ended else []
            names = layer_names(own.spec.network, paths.shape[1], own.layers)
            pairs.setdefault(about, {})[kind] = LearnedCoefficients(own, paths, channels, names)
    order = (*HULLS, str(PRELU))
    return [
        Pair(about, tuple(next(iter(runs.values())).record.bases), {kind: runs[kind] for kind in order if kind in runs})
        for about, runs in pairs.items()
    ]


def spell_time(experiment: Experiment) -> str:
    """Return which epochs are shown: ``200 epochs``, or ``200 epochs (chosen epoch)``."""
    return f"{experiment.time} ({experiment.reading.short})" if experiment.reading.chooses else experiment.time


def spell_seeds(pairs: list[Pair]) -> str:
    """Return which runs are shown: ``seed 0``, or ``seeds 0 and 1``."""
    seeds = sorted({run.record.spec.seed for pair in pairs for run in pair.runs.values()})
    return f"seed{'s' * (len(seeds) > 1)} {' and '.join(map(str, seeds))}"
