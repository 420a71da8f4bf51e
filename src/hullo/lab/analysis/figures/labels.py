"""Place text labels in a panel so that they do not overlap, and cover as little of the drawing as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

HALO = [withStroke(linewidth=2.0, foreground="white")]
LOOK: dict[str, Any] = {"fontweight": "bold", "ha": "center", "va": "center", "path_effects": HALO, "zorder": 6}
GAPS = (4.0, 7.0, 11.0, 16.0, 23.0)
"""Candidate distances in points between a spot and its text; nearer is better."""
ANGLES = np.linspace(0, 2 * np.pi, 24, endpoint=False)
SIDES = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
SAME = 5.0
"""Distance in points within which two spots look like one."""
FORBIDDEN = 1e4


@dataclass(frozen=True)
class Label:
    """A text, its spot in data coordinates, and the preferred side."""

    text: str
    spot: np.ndarray
    side: np.ndarray
    size: float


def place_labels(panel: Axes, labels: Sequence[Label], lines: Sequence[np.ndarray], dots: np.ndarray) -> None:
    """Write labels, one after the other, each clear of those before it, and of lines and dots where there is room.

    The figure must have been laid out: what is near is known in points on the page alone.
    """
    crowd = np.concatenate([*(_along(_points(panel, line)) for line in lines), _around(_points(panel, dots))])
    edges = _points(panel, np.array([[bound[end] for bound in (panel.get_xlim(), panel.get_ylim())] for end in (0, 1)]))
    taken: list[np.ndarray] = []
    for label in labels:
        spot = _points(panel, label.spot)
        text = panel.annotate(
            label.text, tuple(label.spot), (0, 0), textcoords="offset points", fontsize=label.size, **LOOK
        )
        half = np.array(text.get_window_extent().size) * 36 / panel.figure.dpi
        boxes = [_box(spot, side, gap, half) for gap in GAPS for side in SIDES]
        costs = [
            crowd_in(crowd, box)
            + FORBIDDEN * any(overlap(box, other) for other in taken)
            + FORBIDDEN * bool((box[0] < edges[0]).any() or (box[1] > edges[1]).any())
            + 0.2 * np.linalg.norm(box.mean(0) - spot - (GAPS[0] + half.min()) * label.side)
            for box in boxes
        ]
        best = boxes[int(np.argmin(costs))]
        text.set_position(tuple(best.mean(0) - spot))
        taken.append(best)


def merge(panel: Axes, labels: Sequence[Label]) -> list[Label]:
    """Merge labels whose spots look like one: ``3, 5``."""
    groups: list[list[Label]] = []
    for label in labels:
        near = (g for g in groups if np.linalg.norm(_points(panel, label.spot) - _points(panel, g[0].spot)) < SAME)
        if group := next(near, None):
            group.append(label)
        else:
            groups.append([label])
    return [Label(", ".join(label.text for label in g), g[0].spot, g[0].side, g[0].size) for g in groups]


def overlap(box: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two boxes overlap, each given by its lower left and upper right corner."""
    return bool((box[0] < other[1]).all() and (other[0] < box[1]).all())


def crowd_in(crowd: np.ndarray, box: np.ndarray) -> int:
    return int(((crowd > box[0]) & (crowd < box[1])).all(1).sum())


def _box(spot: np.ndarray, side: np.ndarray, gap: float, half: np.ndarray) -> np.ndarray:
    """Return the box of a text, given half its size, at a gap from the spot."""
    with np.errstate(divide="ignore"):
        middle = spot + side * (gap + (half / np.abs(side)).min())
    return np.stack([middle - half, middle + half])


def _points(panel: Axes, places: np.ndarray) -> np.ndarray:
    """Convert data coordinates of a panel to points on the page."""
    found: np.ndarray = panel.transData.transform(places) * 72 / panel.figure.dpi
    return found


def _along(line: np.ndarray) -> np.ndarray:
    """Return a line as dots, one per point of its length."""
    length = np.concatenate([[0.0], np.linalg.norm(np.diff(line, axis=0), axis=1).cumsum()])
    steps = np.arange(0.0, length[-1])
    return np.stack([np.interp(steps, length, line[:, i]) for i in (0, 1)], axis=1)


def _around(dots: np.ndarray) -> np.ndarray:
    """Return dots as rings of smaller ones, which count more than a line that crosses a text."""
    rings: np.ndarray = dots[:, None, None] + np.array([1.0, 2.0, 3.0])[:, None, None] * SIDES
    return rings.reshape(-1, 2)
