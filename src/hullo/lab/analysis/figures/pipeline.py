"""A layer with a hull as a pipeline of two stages.

The first stage is N layers that share their weights, each with one base function; the second a 1-D convolution of
kernel size 1 across these N, whose weights are the coefficients.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

from hullo.lab.analysis.figures.style import COLORS, GRAY, KINDS, WIDTH, X, cross, curves

BASES = ("identity", "relu", "tanh")
HULLS = {"affine": (-0.5, 0.6, 0.9), "convex": (0.2, 0.3, 0.5)}
"""The coefficients of each hull in the example."""
LANES = (33.0, 20.0, 7.0)
MIDDLE = LANES[1]


def draw_pipeline() -> Figure:
    """Draw the pipeline of a layer over identity, ReLU and tanh, with the functions as curves in their boxes."""
    figure = Figure(figsize=(WIDTH, 3.5))
    page = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, 100), ylim=(0, 48.6), aspect="equal")
    page.set_axis_off()
    _stage(page, (12, 57), COLORS[0], "stage 1: N layers that share their weights,\none base function each")
    _stage(page, (59, 83), COLORS[4], "stage 2: 1-D convolution\nacross the N, kernel size 1")
    _box(page, (5, MIDDLE), (8, 7), "$x$")
    for i, (name, y) in enumerate(zip(BASES, LANES, strict=True)):
        _arrow(page, (9, MIDDLE), (16, y))
        _box(page, (23, y), (14, 7), "$z = W x + b$", COLORS[0])
        _arrow(page, (30, y), (40.7, y))
        _curves(page, (46, y), 10.5, {"affine": curves([[float(name == other) for other in BASES]], BASES)[0]}, "black")
        page.text(40.7, y + 5.5, f"$f_{i + 1}$: {name}", fontsize=7.5, ha="left", va="bottom")
        _arrow(page, (51.3, y), (63, y), f"$f_{i + 1}(z)$")
        page.add_patch(Circle((66, y), 3, facecolor="white", edgecolor="black", linewidth=0.9))
        page.text(66, y, f"$c_{i + 1}$", ha="center", va="center")
        _arrow(page, (69, y), (76.2, MIDDLE + (y - MIDDLE) * 0.14))
    page.plot([23, 23], [LANES[2] + 3.5, LANES[1] - 3.5], color=COLORS[0], linestyle=":", linewidth=1.4)
    page.plot([23, 23], [LANES[1] + 3.5, LANES[0] - 3.5], color=COLORS[0], linestyle=":", linewidth=1.4)
    page.text(24, (LANES[0] + MIDDLE) / 2, "the same\n$W$ and $b$", fontsize=7.0, color=COLORS[0], va="center")
    page.add_patch(Circle((79, MIDDLE), 3, facecolor="white", edgecolor="black", linewidth=0.9))
    page.text(79, MIDDLE, "$\\Sigma$", ha="center", va="center")
    _arrow(page, (82, MIDDLE), (87.5, MIDDLE))
    _curves(page, (93, MIDDLE), 11.0, {kind: curves([c], BASES)[0] for kind, c in HULLS.items()})
    page.text(93, MIDDLE + 6.4, "$\\sum_i c_i\\, f_i(z)$", ha="center", va="bottom")
    rules = {"affine": "$\\Sigma_i\\, c_i = 1$", "convex": "also $c_i \\geq 0$"}
    for y, (kind, rule) in zip((MIDDLE - 9.0, MIDDLE - 14.5), rules.items(), strict=True):
        page.plot([85.5, 89.5], [y, y], **KINDS[kind])
        page.text(90.3, y + 0.7, f"{kind}:\n{rule}", fontsize=7.0, va="center")
    return figure


def _stage(page: Axes, reach: tuple[float, float], color: str, title: str) -> None:
    left, right = reach
    page.add_patch(
        FancyBboxPatch((left, 1), right - left, 40.5, "round,pad=0,rounding_size=1.5", color=color, alpha=0.10, lw=0)
    )
    page.text((left + right) / 2, 42.2, title, ha="center", va="bottom", fontsize=7.5, fontweight="bold")


def _box(page: Axes, center: tuple[float, float], size: tuple[float, float], text: str, color: str = "black") -> None:
    x, y = center[0] - size[0] / 2, center[1] - size[1] / 2
    page.add_patch(
        FancyBboxPatch((x, y), *size, "round,pad=0,rounding_size=0.8", facecolor="white", edgecolor=color, lw=0.9)
    )
    page.text(*center, text, ha="center", va="center")


def _arrow(page: Axes, start: tuple[float, float], end: tuple[float, float], text: str = "") -> None:
    line = {"arrowstyle": "-|>", "shrinkA": 0.0, "shrinkB": 0.0, "linewidth": 0.8, "color": GRAY, "mutation_scale": 7.0}
    page.annotate("", end, start, arrowprops=line)
    page.text((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.8, text, fontsize=7.0, ha="center", va="bottom")


def _curves(
    page: Axes, center: tuple[float, float], side: float, lines: dict[str, np.ndarray], color: str | None = None
) -> None:
    inset = page.inset_axes(
        (center[0] - side / 2, center[1] - side / 2, side, side), transform=page.transData, xticks=[], yticks=[]
    )
    inset.set(xlim=(-3, 3), ylim=(-3, 3))
    inset.spines[:].set_visible(True)
    cross(inset)
    for kind, line in lines.items():
        inset.plot(X, line, **KINDS[kind] | ({"color": color} if color else {}))
