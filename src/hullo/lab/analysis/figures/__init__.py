"""Figures, one file each: learned activations, coefficients over training, accuracies, and the geometry of hulls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from matplotlib.figure import Figure

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.figures.accuracy import draw_final, draw_learning
from hullo.lab.analysis.figures.activations import draw_activations
from hullo.lab.analysis.figures.coefficients import draw_coefficients
from hullo.lab.analysis.figures.geometry import draw_geometry
from hullo.lab.analysis.figures.style import FORMATS, drawing, save
from hullo.lab.analysis.names import label

__all__ = [
    "FIGURES",
    "FORMATS",
    "GEOMETRY",
    "draw_activations",
    "draw_figures",
    "drawing",
    "save",
    "stem",
]

FIGURES = ("activations", "coefficients", "accuracy")
GEOMETRY = "geometry"
"""A figure that needs no records, and is drawn only when asked for."""
MAX_LENGTH = 80
"""The largest number of characters of a name in the name of a file, which may have two of them."""


def draw_figures(
    experiments: Iterable[Experiment],
    wanted: Collection[str] = FIGURES,
    seed: int | None = None,
) -> Iterator[tuple[str, Figure | None]]:
    """Yield the wanted figures with their file names; None for a figure without learned activations.

    Args:
        experiments: runs to be compared.
        wanted: names of `FIGURES`, or `GEOMETRY`.
        seed: whose activations and coefficients are shown; by default the first that did not diverge.
    """
    if GEOMETRY in wanted:
        yield GEOMETRY, draw_geometry()
    taken: Counter[str] = Counter()
    for experiment in experiments:
        name, experiment = stem(experiment), replace(experiment, name=label(experiment))
        name = _number(name, taken)
        if "activations" in wanted:
            yield f"{name}-activations", draw_activations(experiment, seed)
        if "coefficients" in wanted:
            figures: Mapping[str, Figure | None] = draw_coefficients(experiment, seed) or {"": None}
            for about, figure in figures.items():
                yield _number("-".join(filter(None, [name, "coefficients", _slug(about)])), taken), figure
        if "accuracy" in wanted:
            metric = experiment.records[0].metric
            yield f"{name}-{metric}-over-epochs", draw_learning(experiment)
            yield f"{name}-final-{metric}", draw_final(experiment)


def stem(experiment: Experiment) -> str:
    """Return the start of the names of an experiment's files: its network, its data and what sets it apart."""
    network, data = experiment.setting.column.without_hashes
    _, *settings = experiment.name.split()
    return _slug(" ".join([network.rpartition(":")[2], data, *settings]))


def _slug(text: str) -> str:
    """Return a text as a part of a file name, without dots: some programs take what follows one for the format.

    >>> _slug("lenet5 cifar10 coefficient_lr_scale=0.5")
    'lenet5-cifar10-coefficient_lr_scale-0-5'
    """
    return re.sub(r"\W+", "-", text)[:MAX_LENGTH].strip("-")


def _number(name: str, taken: Counter[str]) -> str:
    """Return a name that is not taken yet: with a number if it is."""
    taken[name] += 1
    return name if taken[name] == 1 else _number(f"{name}-{taken[name]}", taken)
