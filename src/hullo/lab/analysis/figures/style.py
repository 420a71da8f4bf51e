"""Style of all figures: sizes and colors for print, dark variants, and byte-for-byte reproducible files."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps, image, style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hullo.functional import combine
from hullo.lab.files import atomic_write

WIDTH = 7.2
"""The text width of a page in inches, so that fonts are printed at their nominal size."""
FORMATS = ("png", "pdf", "svg")
GRAY = "#8C8C8C"
FAINT = "#D9D9D9"
DARK_PAGE = np.array([13, 17, 23]) / 255
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""The color-blind safe palette of Okabe and Ito, with line styles."""
KINDS: dict[str, dict[str, Any]] = {
    # wide and pale, so that it is seen behind an affine one that is the same
    "convex": {"color": COLORS[1], "linestyle": (0, (3.0, 1.5)), "linewidth": 2.4, "alpha": 0.75},
    "affine": {"color": COLORS[0], "linestyle": "-", "linewidth": 1.3},
    "conic": {"color": COLORS[2], "linestyle": (0, (5.0, 1.5, 1.0, 1.5)), "linewidth": 1.6},
    "linear": {"color": COLORS[3], "linestyle": (0, (1.0, 1.0)), "linewidth": 1.8},
}
DEPTH = ListedColormap(colormaps["viridis"](np.linspace(0.0, 0.8, 256)), "depth")
MANY = 8
"""Up to this number of layers, each has a panel; more are distinguished by color."""
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
    "svg.hashsalt": "hullo",  # the same names in the same figure
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the settings for drawing and saving figures, independent of the user's."""
    with style.context(["default", _SETTINGS]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box stands for it
        yield


def entitle(figure: Figure, text: str) -> None:
    """Give a figure a title, in as many lines as it needs."""
    title = wrap(text, figure.get_figwidth(), 9.0)
    figure.suptitle(title)
    figure.set_figheight(figure.get_figheight() + 0.15 * title.count("\n"))


def explain(figure: Figure, keys: Sequence[Artist], **options: Any) -> None:
    """Draw one legend for all panels, below them."""
    figure.legend(handles=keys, loc="outside lower center", **options)


def wrap(text: str, inches: float, size: float) -> str:
    r"""Break a text of a font size into lines that fit a width, at spaces and after commas.

    >>> wrap("affine(identity,relu,tanh)", 1.0, 9.0)
    'affine(identity,\nrelu,tanh)'
    """
    most, lines = max(8, int(inches * 72 / (0.6 * size))), [""]
    for part in re.split(r"(?<=[, ])(?=\S)", text):
        if lines[-1] and len(lines[-1] + part.rstrip()) > most:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def save(figure: Figure, stem: Path, formats: Sequence[str] = ("png", "pdf"), *, dark: bool = False) -> list[Path]:
    """Write the figure in each format, atomically; the same figure gives the same bytes.

    With `dark`, a PNG for dark pages, whose name ends in "-dark", is written too.
    """
    metadata: dict[str, dict[str, None]] = {
        "png": {"Software": None},
        "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
        "svg": {"Creator": None, "Date": None},
    }
    made = {}
    for kind in formats:
        buffer = made[stem.with_name(f"{stem.name}.{kind}")] = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=metadata[kind])
    if dark:
        light = io.BytesIO()
        figure.savefig(light, format="png")
        light.seek(0)
        buffer = made[stem.with_name(f"{stem.name}-dark.png")] = io.BytesIO()
        image.imsave(buffer, darken(image.imread(light)), format="png", metadata=metadata["png"])  # type: ignore[arg-type]
    for path, buffer in made.items():
        with atomic_write(path) as file:
            file.write(buffer.getbuffer())
    return list(made)


def darken(pixels: np.ndarray) -> np.ndarray:
    """Return an RGB image for dark pages: white becomes the color of dark pages on GitHub, hues stay.

    Inversion followed by a rotation of the hue by 180 degrees, and a gamma that lifts what was bright. It is opaque, as
    browsers that prefer dark images may show them on a light page.
    """
    turn = np.array([[-0.574, 1.430, 0.144], [0.426, 0.430, 0.144], [0.426, 1.430, -0.856]])
    rgb: np.ndarray = np.clip((1 - pixels[..., :3]) @ turn.T, 0, 1) ** 0.8
    return np.asarray(DARK_PAGE + (1 - DARK_PAGE) * rgb)


def curves(rows: Sequence[Sequence[float]] | np.ndarray, bases: Sequence[str]) -> np.ndarray:
    """Return the functions with the given rows of coefficients at the points `X`, one per row."""
    coefficients = torch.as_tensor(rows, dtype=torch.float64)
    values = combine(X.expand(len(coefficients), -1), coefficients, bases, channel_dim=0, backend="reference")
    return values.numpy()


def cross(panel: Axes) -> None:
    """Draw thin lines through the origin."""
    panel.axhline(0, color=FAINT, linewidth=0.6, zorder=0)
    panel.axvline(0, color=FAINT, linewidth=0.6, zorder=0)


def shade(layer: int, layers: int) -> tuple[float, float, float, float]:
    """Return the color of a layer: dark for the first, light for the last."""
    return DEPTH(layer / max(layers - 1, 1))


def depth_bar(figure: Figure, panels: Any, layers: int) -> None:
    """Draw a color bar of the layers."""
    ticks = np.linspace(1, layers, 4).round()
    shades = ScalarMappable(Normalize(1, layers), DEPTH)
    figure.colorbar(shades, ax=panels, label="layer", ticks=ticks, shrink=0.5, aspect=30, pad=0.02)
