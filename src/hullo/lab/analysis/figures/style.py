"""What all figures share: sizes and colours that hold in print, and files that are the same byte for byte."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps, style
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hullo.functional import combine
from hullo.lab.files import atomic_write

WIDTH = 7.2
"""Inches: the width of a page's text, so that letters are printed at the size they have here."""
GREY = "#8C8C8C"
FAINT = "#D9D9D9"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, told apart by every kind of colour vision; line styles go with them."""
KINDS: dict[str, dict[str, Any]] = {
    # wide and pale, so that it is seen behind an affine one that is the same
    "convex": {"color": COLOURS[1], "linestyle": (0, (3.0, 1.5)), "linewidth": 2.4, "alpha": 0.75},
    "affine": {"color": COLOURS[0], "linestyle": "-", "linewidth": 1.3},
    "conic": {"color": COLOURS[2], "linestyle": (0, (5.0, 1.5, 1.0, 1.5)), "linewidth": 1.6},
    "linear": {"color": COLOURS[3], "linestyle": (0, (1.0, 1.0)), "linewidth": 1.8},
}
TIME = ListedColormap(colormaps["cividis_r"](np.linspace(0.08, 1.0, 256)), "time")
DEPTH = ListedColormap(colormaps["viridis"](np.linspace(0.0, 0.8, 256)), "depth")
MANY = 8
"""Layers up to this number are shown one by one; more are told apart by colour."""
REACH = 3.0
X = torch.linspace(-REACH, REACH, 241, dtype=torch.float64)
"""Where functions are drawn."""

Round = partial(MaxNLocator, nbins="auto", steps=[1, 2, 5, 10])
"""Ticks at round numbers: never at 2.5 or 15."""

_SETTINGS = {
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8.0,
    "figure.titlesize": 9.0,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8.0,
    "legend.frameon": False,
    "mathtext.fontset": "dejavusans",
    "pdf.fonttype": 42,  # letters as letters: publishers refuse Type 3
    "savefig.dpi": 200,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
}


@contextmanager
def drawing() -> Iterator[None]:
    """The settings under which figures are made and saved, whatever the user's own are."""
    with style.context(["default", _SETTINGS]):
        yield


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write the figure as PNG and as PDF, each whole or not at all; the same figure gives the same bytes."""
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    undated = {"Creator": None, "Producer": None, "CreationDate": None}
    for path, metadata in ((png, {"Software": None}), (pdf, undated)):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], metadata=metadata)
        with atomic_write(path) as file:
            file.write(buffer.getbuffer())
    return png, pdf


def curves(rows: Sequence[Sequence[float]] | np.ndarray, bases: Sequence[str]) -> np.ndarray:
    """The functions that rows of coefficients make, at the points `X`: one line a row."""
    coefficients = torch.as_tensor(rows, dtype=torch.float64)
    values = combine(X.expand(len(coefficients), -1), coefficients, bases, channel_dim=0, backend="reference")
    return values.numpy()


def cross(panel: Axes) -> None:
    """Thin lines through the origin."""
    panel.axhline(0, color=FAINT, linewidth=0.6, zorder=0)
    panel.axvline(0, color=FAINT, linewidth=0.6, zorder=0)


def write(panel: Axes, text: str, spot: Any, place: Any, **look: Any) -> None:
    """Put a text at a distance, in points, from a spot of the panel."""
    panel.annotate(text, tuple(spot), tuple(place), textcoords="offset points", **look)


def shade(layer: int, layers: int) -> tuple[float, float, float, float]:
    """The colour of an activation: dark in the first layer, light in the last."""
    return DEPTH(layer / max(layers - 1, 1))


def depth_bar(figure: Figure, panels: Any, layers: int) -> None:
    """Say which colour is which layer."""
    ticks = np.linspace(1, layers, 4).round()
    shades = ScalarMappable(Normalize(1, layers), DEPTH)
    figure.colorbar(shades, ax=panels, label="activation", ticks=ticks, shrink=0.5, aspect=30, pad=0.02)
