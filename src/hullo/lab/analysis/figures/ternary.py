"""The plane of coefficients that sum to one, as a figure: three bases are the corners of a triangle.

Coefficients (a, b, c) with a + b + c = 1 lie at a A + b B + c C, where A, B, C are the corners. Those of a convex hull
lie in the triangle; those of an affine hull anywhere in the plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from hullo.lab.analysis.figures.style import COLORS, FAINT, write

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
OUTLINE = np.vstack([CORNERS, CORNERS[:1]])
GRID_COLORS = (COLORS[0], "#8A5A00", COLORS[2])
"""One color per base, dark enough for text."""
INSIDE = "#F2F2F2"
HALO = [withStroke(linewidth=2.0, foreground="white")]
SIDES = ("below", "above", "right")
"""Positions of the values of each coefficient."""


def project(coefficients: np.ndarray | Sequence[float]) -> np.ndarray:
    """Return the positions of coefficients in the figure.

    >>> project([0.0, 1.0, 0.0])
    array([1., 0.])
    """
    found: np.ndarray = np.asarray(coefficients) @ CORNERS
    return found


def unproject(places: np.ndarray) -> np.ndarray:
    """Return the coefficients at positions of the figure, of any shape (..., 2)."""
    ones = np.ones((*places.shape[:-1], 1))
    found: np.ndarray = np.concatenate([places, ones], -1) @ np.linalg.inv(np.column_stack([CORNERS, np.ones(3)]))
    return found


def frame(places: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the center and half the side of a square around positions, with a margin."""
    low, high = places.min(0), places.max(0)
    return (low + high) / 2, max(0.62 * (high - low).max(), 0.05)


def draw_plane(panel: Axes, middle: np.ndarray, half: float) -> None:
    """Show the square part of the plane around `middle`: the triangle, and lines of equal coefficients with values."""
    panel.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half), aspect="equal")
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set(visible=True, color=FAINT)
    panel.fill(*CORNERS.T, color=INSIDE, linewidth=0, zorder=0)
    panel.plot(*OUTLINE.T, color="black", linewidth=0.9, zorder=1.5)
    step = np.diff(MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(0.0, 2 * half))[0]
    for i, color in enumerate(GRID_COLORS):
        for value, line in grid_lines(i, middle, half, step):
            panel.plot(*line.T, color=color, linewidth=0.5, alpha=0.35, zorder=1)
            _label(panel, i, f"{value:g}".replace("-", "\N{MINUS SIGN}"), line, color)


def plane_key(bases: Sequence[str]) -> list[Artist]:
    """Return the key of the plane: what the triangle and the colored lines mean, and where their values stand."""
    lines = [
        Line2D([], [], color=color, linewidth=1.0, label=f"equal coefficient of {name}, values {side}")
        for name, side, color in zip(bases, SIDES, GRID_COLORS, strict=True)
    ]
    inside = Patch(facecolor=INSIDE, edgecolor="black", linewidth=0.9, label="convex hull; corner: one base alone")
    return [inside, *lines]


def name_corners(panel: Axes, bases: Sequence[str], middle: np.ndarray, half: float) -> None:
    """Write the names of the bases at the corners in the square around `middle`, outside of the triangle."""
    look: dict[str, Any] = {"fontweight": "bold", "fontsize": 7.0, "ha": "center", "va": "center", "zorder": 6}
    for name, corner, down in zip(bases, CORNERS, (True, True, False), strict=True):
        if (np.abs(corner - middle) < half).all():
            write(panel, name, corner, (0, -11 if down else 9), path_effects=HALO, **look)


def grid_lines(i: int, middle: np.ndarray, half: float, step: float) -> list[tuple[float, np.ndarray]]:
    """Return the grid lines of coefficient i inside the square: each multiple of `step` with both ends of its line."""
    square = middle + half * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    reach = unproject(square)[:, i]
    values = np.arange(np.ceil(reach.min() / step), np.floor(reach.max() / step) + 1) * step
    along = CORNERS[(i + 2) % 3] - CORNERS[(i + 1) % 3]  # the other two change, this one does not
    lines = []
    for value in values:
        rest = np.full(3, (1 - value) / 2)
        rest[i] = value
        start = project(rest)
        with np.errstate(divide="ignore", invalid="ignore"):  # along a side, or on it
            hits = np.sort((np.stack([middle - half, middle + half]) - start) / along, axis=0)
        first, last = hits[0].max(), hits[1].min()
        if first < last:
            lines.append((round(float(value), 6) + 0.0, np.stack([start + first * along, start + last * along])))
    return lines


def _label(panel: Axes, i: int, text: str, line: np.ndarray, color: str) -> None:
    """Write a value at the end of a grid line: below, above or right of the square, one side per base."""
    low, high = sorted(line.tolist(), key=lambda end: (end[1], end[0]))
    bottom, top = panel.get_ylim()
    spot, place, sides = (
        (low, (0, -2), {"ha": "center", "va": "top"}),
        (high, (0, 2), {"ha": "center", "va": "bottom"}),
        (high, (2, 0), {"ha": "left", "va": "center"}),
    )[i]
    if (i == 0 and spot[1] > bottom + 1e-9) or (i == 1 and spot[1] < top - 1e-9):
        return  # the line leaves through another side
    write(panel, text, spot, place, fontsize=6.0, color=color, **sides)
