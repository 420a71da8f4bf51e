"""The geometry of hulls: where the affine hull, the convex hull and the cone of three functions lie.

Three independent functions span a space of three dimensions, and a function of it is the point of its coefficients
(c1, c2, c3). There the affine hull is the plane c1 + c2 + c3 = 1, the cone is where no coefficient is negative, and the
convex hull is where both meet: a triangle whose corners are the functions themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hullo.lab.analysis.figures.style import COLORS, GRAY, KINDS, WIDTH, X, cross, curves
from hullo.properties import is_monotone

BASES = ("identity", "relu", "tanh")
MARKED = {
    "A": (0.3, 0.3, 0.4),  # in the convex hull
    "B": (-0.6, 1.2, 0.4),  # in the affine hull alone
    "C": (0.7, 0.3, 0.8),  # in the cone alone
}
_TURN = np.array([[np.cos(0.3), np.sin(0.3)], [-np.sin(0.3), np.cos(0.3)]])
ACROSS, BACK = _TURN @ (np.array([[-1.0, 1.0, 0.0], [-1.0, -1.0, 2.0]]) / np.sqrt([[2.0], [6.0]]))
UP = np.ones(3) / np.sqrt(3)
"""An orthonormal frame: two directions in the affine hull, and the one away from it."""
PAGE = np.stack([ACROSS, 0.5 * BACK + 1.5 * UP], axis=1)
"""The parallel projection onto the page: `coefficients @ PAGE`."""
RADIUS = 1.45
LENGTH = 1.7


def affine_hull() -> np.ndarray:
    """Return coefficients on a circle in the affine hull around its center; each row sums to one."""
    angles = np.linspace(0, 2 * np.pi, 181)[:, None]
    circle: np.ndarray = 1 / 3 + RADIUS * (np.cos(angles) * ACROSS + np.sin(angles) * BACK)
    return circle


def convex_hull() -> np.ndarray:
    """Return the coefficients of the corners of the convex hull: the functions themselves."""
    return np.eye(3)


def cone(start: float, end: float) -> list[np.ndarray]:
    """Return the coefficients of the corners of the cone's three faces, from `start` to `end` times the functions."""
    corners = np.eye(3)
    faces = zip(corners, np.roll(corners, -1, axis=0), strict=True)
    return [np.stack([start * a, end * a, end * b, start * b]) for a, b in faces]


def describe(coefficients: tuple[float, ...]) -> str:
    """Return which sets a function is in."""
    on_plane, in_cone = bool(np.isclose(sum(coefficients), 1)), min(coefficients) >= 0
    if on_plane and in_cone:
        return "in the convex hull"
    return "in the affine hull alone" if on_plane else "in the cone alone" if in_cone else "in neither"


def draw_geometry() -> Figure:
    """Draw the three sets of identity, ReLU and tanh, and a function of each set as a curve."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    panels = figure.subplot_mosaic(
        [["space", name] for name in MARKED], width_ratios=[3.4, 1], gridspec_kw={"wspace": 0.04, "hspace": 0.08}
    )
    _draw_space(panels["space"])
    for name, coefficients in MARKED.items():
        _draw_function(panels[name], name, coefficients)
    return figure


def _draw_space(panel: Axes) -> None:
    panel.set_aspect("equal")
    panel.set_axis_off()
    for zorder, (start, end) in ((1, (0.0, 1.0)), (4, (1.0, LENGTH))):  # beneath the plane, and above it
        for face in cone(start, end):
            panel.fill(*(face @ PAGE).T, color=COLORS[4], alpha=0.16, linewidth=0, zorder=zorder)
        for corner in convex_hull():
            line = np.stack([start * corner, end * corner]) @ PAGE
            panel.plot(*line.T, color="#A06A00", linewidth=1.3, linestyle="-" if start else ":", zorder=zorder + 1)
    circle = affine_hull() @ PAGE
    panel.fill(*circle.T, color=COLORS[5], alpha=0.22, linewidth=0, zorder=2)
    panel.plot(*circle.T, color=COLORS[0], linestyle="--", linewidth=1.0, zorder=3)
    panel.fill(*(convex_hull() @ PAGE).T, facecolor="#6E6E6E", alpha=0.55, edgecolor="black", linewidth=1.0, zorder=3)
    for i, place in enumerate(((-34, -8), (20, -12), (-26, 5))):
        spot, text = convex_hull()[i] @ PAGE, f"$f_{i + 1}$ {BASES[i]}"
        panel.plot(*spot, "o", color="black", markersize=4, zorder=8)
        _write(panel, text, spot, place, ha="center", zorder=8, fontweight="bold")
    for name, coefficients in MARKED.items():
        spot = np.array(coefficients) @ PAGE
        panel.plot(*spot, "o", color="white", markeredgecolor="black", markersize=11, zorder=9)
        _write(panel, name, spot, (0, 0), ha="center", va="center", fontsize=7.5, zorder=10)
    panel.plot(0, 0, "+", color="black", markersize=6, zorder=8)
    _write(panel, "0", (0, 0), (8, -4))
    _note(panel, "affine hull\n$c_1 + c_2 + c_3 = 1$", affine_hull()[72] @ PAGE, (-18, 30), COLORS[0])
    _note(panel, "cone\n$c_1, c_2, c_3 \\geq 0$", 1.5 * convex_hull()[2] @ PAGE, (50, 8), "#7A5100")
    _note(panel, "convex hull\nwhere both meet", np.array([0.8, 0.17, 0.03]) @ PAGE, (-62, -92), "black")


def _write(panel: Axes, text: str, spot: Any, place: Any, **look: Any) -> None:
    """Put a text at a distance, in points, from a spot of the panel."""
    panel.annotate(text, tuple(spot), tuple(place), textcoords="offset points", **look)


def _note(panel: Axes, text: str, spot: np.ndarray, place: tuple[float, float], color: str) -> None:
    line = {"arrowstyle": "-", "linewidth": 0.6, "color": color, "shrinkB": 0.0}
    _write(panel, text, spot, place, ha="center", va="center", color=color, arrowprops=line, zorder=11)


def _draw_function(panel: Axes, name: str, coefficients: tuple[float, ...]) -> None:
    cross(panel)
    for line in curves(convex_hull(), BASES):
        panel.plot(X, line, color=GRAY, linewidth=0.7, linestyle=":")
    panel.plot(X, curves([coefficients], BASES)[0], **KINDS["affine"] | {"color": "black"})
    panel.set(xlim=(-3, 3), ylim=(-3, 3), xticks=[-2, 0, 2], yticks=[-2, 0, 2])
    panel.set_title(f"{name}: {describe(coefficients)}", loc="left", fontweight="bold", fontsize=7.5)
    falls = {True: "never falls", False: "falls somewhere"}[is_monotone(coefficients, BASES)]  # type: ignore[index]
    panel.set_xlabel(f"{falls}; slope at 0+: {sum(coefficients):.3g}", fontsize=7.0)
