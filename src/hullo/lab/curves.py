"""Learned activations as a picture: what each layer of a network made of its bases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hullo.bases import base
from hullo.functional import combine
from hullo.lab.records import Record

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart by every kind of colour vision; one a set of bases."""
STYLES: dict[str, dict[str, Any]] = {
    "affine": {"linestyle": "-", "linewidth": 1.2},
    "convex": {"linestyle": "--", "linewidth": 3.0, "alpha": 0.5},  # seen behind an affine one that is the same
}
REACH = 3.0
WIDEST = 5
"""Panels beside each other at most."""


def draw_curves(records: Sequence[Record], path: Path) -> bool:
    """The activations that one column's runs ended with, one panel a layer, those of the first seed of each row.

    Whether there is a picture: without runs that learned an activation there is none.
    """
    learned = {r.spec.activation: r for r in reversed(records) if r.coefficients and not r.diverged}
    if not learned:
        return False
    chosen = [learned[row] for row in dict.fromkeys(r.spec.activation for r in records) if row in learned]
    layers, spec = len(chosen[0].coefficients[-1]), chosen[0].spec
    width = min(layers, WIDEST)
    height = math.ceil(layers / width)
    with rc_context({"font.family": "DejaVu Sans", "font.size": 9.0}):
        figure = Figure(figsize=(1 + 3.2 * width, 1.7 + 3.0 * height), layout="constrained", dpi=150)
        canvas = FigureCanvasAgg(figure)
        panels = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False).flat
        for layer, panel in enumerate(panels):
            panel.set_visible(layer < layers)
            panel.axhline(0, color="#bbbbbb", linewidth=0.6)
            panel.axvline(0, color="#bbbbbb", linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
            panel.set_title(f"activation {layer + 1}", fontsize=9.0)
            for record in chosen[: len(chosen) * (layer < layers)]:
                panel.plot(*_points(record, layer), label=record.spec.activation, **_look(record, chosen))
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=min(width, 2), handlelength=4.0, frameon=False)
        epochs = f"{spec.epochs} epoch{'s' * (spec.epochs > 1)}"
        figure.suptitle(f"{spec.column}: learned activations after {epochs}", fontsize=10.0)
        canvas.print_png(path, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return True


def _points(record: Record, layer: int) -> tuple[list[float], list[float]]:
    x = torch.linspace(-REACH, REACH, 241)
    y = combine(x, torch.tensor(record.coefficients[-1][layer]), [base(name) for name in record.bases])
    return x.tolist(), y.tolist()


def _look(record: Record, beside: Sequence[Record]) -> dict[str, Any]:
    """A colour a set of bases, a line style a kind of hull: the two hulls of the same bases are easily compared."""
    sets = list(dict.fromkeys(tuple(other.bases) for other in beside))
    colour = COLOURS[sets.index(tuple(record.bases)) % len(COLOURS)]
    return {"color": colour} | STYLES[record.spec.activation.partition("(")[0]]
