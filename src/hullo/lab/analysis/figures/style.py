"""Style of all figures: sizes and colours for print, and byte-for-byte reproducible files."""

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
"""The text width of a page in inches, so that fonts are printed at their nominal size."""
GREY = "#8C8C8C"
FAINT = "#D9D9D9"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""The colour-blind safe palette of Okabe and Ito, with line styles."""
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
"""Up to this number of layers, each has a panel; more are distinguished by colour."""
REACH = 3.0
X = torch.linspace(-REACH, REACH, 241, dtype=torch.float64)
"""The points at which functions are drawn."""

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
    """Apply the settings for drawing and saving figures, independent of the user's."""
    with style.context(["default", _SETTINGS]):
        yield


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write the figure as PNG and as PDF, atomically; the same figure gives the same bytes."""
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    undated = {"Creator": None, "Producer": None, "CreationDate": None}
    for path, metadata in ((png, {"Software": None}), (pdf, undated)):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], metadata=metadata)
        with atomic_write(path) as file:
            file.write(buffer.getbuffer())
    return png, pdf


def curves(rows: Sequence[Sequence[float]] | np.ndarray, bases: Sequence[str]) -> np.ndarray:
    """Return the functions with the given rows of coefficients at the points `X`, one per row."""
    coefficients = torch.as_tensor(rows, dtype=torch.float64)
    values = combine(X.expand(len(coefficients), -1), coefficients, bases, channel_dim=0, backend="reference")
    return values.numpy()


def cross(panel: Axes) -> None:
    """Draw thin lines through the origin."""
    panel.axhline(0, color=FAINT, linewidth=0.6, zorder=0)
    panel.axvline(0, color=FAINT, linewidth=0.6, zorder=0)


def write(panel: Axes, text: str, spot: Any, place: Any, **look: Any) -> None:
    """Put a text at a distance, in points, from a spot of the panel."""
    panel.annotate(text, tuple(spot), tuple(place), textcoords="offset points", **look)


def shade(layer: int, layers: int) -> tuple[float, float, float, float]:
    """Return the colour of a layer: dark for the first, light for the last."""
    return DEPTH(layer / max(layers - 1, 1))


def depth_bar(figure: Figure, panels: Any, layers: int) -> None:
    """Draw a colour bar of the layers."""
    ticks = np.linspace(1, layers, 4).round()
    shades = ScalarMappable(Normalize(1, layers), DEPTH)
    figure.colorbar(shades, ax=panels, label="activation", ticks=ticks, shrink=0.5, aspect=30, pad=0.02)
