"""Figures made from records, one file each: the paper's three, coefficients over training, and accuracies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.figures.accuracy import draw_final, draw_learning
from hullo.lab.analysis.figures.activations import draw_activations
from hullo.lab.analysis.figures.coefficients import draw_coefficients
from hullo.lab.analysis.figures.geometry import draw_geometry
from hullo.lab.analysis.figures.learned import check_layers
from hullo.lab.analysis.figures.pipeline import draw_pipeline
from hullo.lab.analysis.figures.style import FORMATS, drawing, save
from hullo.lab.analysis.names import label

__all__ = [
    "FIGURES",
    "FORMATS",
    "WITHOUT_RECORDS",
    "check_layers",
    "draw_activations",
    "draw_figures",
    "drawing",
    "save",
    "stem",
]

WITHOUT_RECORDS = ("geometry", "pipeline")
"""Figures that need no records."""
FIGURES = (*WITHOUT_RECORDS, "activations", "coefficients", "accuracy")
MAX_BYTES = 80
"""The largest length of a name in the name of a file, which may have two of them; file systems allow 255 bytes."""
_UNIQUE = re.compile(
    r"\w+(:\w+@\w+)?/(fashion-mnist(-sample)?|\w+(@\w+)?)( \w+=\w+(\.\d+)?)*"  # an experiment
    r"|[\w(),=. ]+"  # what the coefficients of a figure belong to
)
"""Names that no other name resembles in all but the characters that a file name does not have."""


def draw_figures(
    experiments: Iterable[Experiment],
    wanted: Collection[str] = FIGURES,
    seed: int | None = None,
    layers: Sequence[int] = (),
) -> Iterator[tuple[str, Figure | None]]:
    """Yield the wanted figures with their file names; None for a figure without learned activations.

    Args:
        experiments: runs to be compared.
        wanted: names of `FIGURES`.
        seed: whose activations and coefficients are shown; by default the first that did not diverge.
        layers: whose activations and coefficients are shown, counted from 1; by default all.
    """
    if "geometry" in wanted:
        yield "geometry", draw_geometry()
    if "pipeline" in wanted:
        yield "pipeline", draw_pipeline()
    for experiment in experiments:
        name, experiment = stem(experiment.name), replace(experiment, name=label(experiment))
        if "activations" in wanted:
            yield f"{name}-activations", draw_activations(experiment, seed, layers)
        if "coefficients" in wanted:
            figures: Mapping[str, Figure | None] = draw_coefficients(experiment, seed, layers) or {"": None}
            for about, figure in figures.items():
                yield "-".join([name, "coefficients", *map(stem, filter(None, [about]))]), figure
        if "accuracy" in wanted:
            yield f"{name}-accuracy-over-epochs", draw_learning(experiment)
            yield f"{name}-final-accuracy", draw_final(experiment)


def stem(name: str) -> str:
    """Return a name as a part of a file name, without dots: some programs take what follows one for the format.

    A hash is added where another name would give the same part, and to what is cut because it is long.

    >>> stem("lenet5/cifar10 coefficient_lr_scale=0.5"), stem("net/data margin=-1")
    ('lenet5-cifar10-coefficient_lr_scale-0-5', 'net-data-margin-1-8738e7c9')
    """
    text = re.sub(r"\W+", "-", name).strip("-")
    if _UNIQUE.fullmatch(name) and len(text.encode()) <= MAX_BYTES:
        return text
    short = text.encode()[:MAX_BYTES].decode(errors="ignore").rstrip("-")
    return f"{short}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
