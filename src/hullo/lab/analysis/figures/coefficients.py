"""Figure of coefficients over training: the path of each layer through its hull."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.figures.learned import LearnedCoefficients, Pair, find_learned, spell_seeds, spell_span
from hullo.lab.analysis.figures.style import (
    FAINT,
    GRAY,
    MANY,
    TIME,
    WIDTH,
    Round,
    depth_bar,
    entitle,
    explain,
    shade,
)
from hullo.lab.analysis.figures.ternary import CORNERS, draw_plane, frame, name_corners, plane_key, project

WHERE = {"convex": "convex: in the triangle", "affine": "affine: in the plane"}
SUM_TO_ONE = {*WHERE, "prelu"}
START: dict[str, Any] = {"linestyle": "none", "marker": "o", "color": "black", "markersize": 4.5}
START |= {"markerfacecolor": "white"}
END: dict[str, Any] = {"linestyle": "none", "marker": "o", "color": "black", "markersize": 4.0, "markeredgewidth": 0.7}
RING = 1.2
"""By how much the marker of a layer's end is smaller than that of the layer before: ends in one place are rings."""
LINES = ("-", (0, (5, 1.5)), (0, (2, 1)), (0, (5, 1, 1, 1)))


def draw_coefficients(experiment: Experiment, seed: int | None = None) -> dict[str, Figure]:
    """Draw a figure for each set of bases, by what the rows have in their parentheses.

    Coefficients of three bases that sum to one are drawn as paths in a plane, others over epochs.
    """
    figures = {}
    for pair in find_learned(experiment, seed):
        title = f"{experiment.name}: coefficients of {pair.about} {spell_span(experiment)}, {spell_seeds([pair])}"
        on_plane = {kind: run for kind, run in pair.runs.items() if kind in WHERE and len(pair.bases) == 3}
        others = {kind: run for kind, run in pair.runs.items() if kind not in on_plane}
        if on_plane:
            figures[pair.about] = _draw_paths(replace(pair, runs=on_plane), title)
        if others:
            name = f"{pair.about} {' '.join(others)}" if on_plane else pair.about
            figures[name] = _draw_over_epochs(replace(pair, runs=others), title)
    return figures


def _draw_paths(pair: Pair, title: str) -> Figure:
    """Draw a row of panels per hull: the complete triangle, and a close-up; below them a key."""
    kinds = [kind for kind in WHERE if kind in pair.runs]
    room = ConstrainedLayoutEngine(h_pad=0.1)  # for the values around each panel
    figure = Figure(figsize=(WIDTH, 0.7 + (WIDTH - 0.4) / 2 * len(kinds)), layout=room)
    entitle(figure, title)
    panels = figure.subplots(len(kinds), 2, squeeze=False)
    epochs = Normalize(0, max(len(run.paths) for run in pair.runs.values()) - 1)
    for kind, (whole, close) in zip(kinds, panels, strict=True):
        run = pair.runs[kind]
        places = project(run.paths).reshape(-1, 2)
        cloud = project(np.concatenate(run.channels)) if run.channels else places[:0]
        for panel, seen in ((whole, np.concatenate([CORNERS, places, cloud])), (close, places)):
            square = frame(seen)
            draw_plane(panel, *square)
            panel.plot(*cloud.T, ".", color=GRAY, markersize=2, alpha=0.6, zorder=2)
            _draw_run(panel, run, epochs)
            name_corners(panel, pair.bases, *square)
        whole.set_title(WHERE[kind], loc="left", pad=12)
        close.set_title("close up", loc="left", pad=12)
    time = ScalarMappable(epochs, TIME)
    figure.colorbar(time, ax=panels, label="epoch", ticks=Round(integer=True), shrink=0.5, aspect=30, pad=0.02)
    few = run.layers <= MANY
    keys: list[Artist] = [
        Line2D([], [], **START, label="start"),
        *([] if few else [Line2D([], [], **END, label="end of a layer")]),
        *plane_key(pair.bases),
    ]
    if few:
        keys += [
            Line2D([], [], **_end(layer, run.layers), label=f"end: {name}") for layer, name in enumerate(run.names)
        ]
    else:
        depth_bar(figure, panels, run.layers)
    if any(run.channels for run in pair.runs.values()):
        keys.append(Line2D([], [], linestyle="none", marker=".", color=GRAY, label="the channels' ends; paths: means"))
    elif pair.of_channels:
        keys.append(Line2D([], [], linestyle="none", label=f"paths: {pair.of_channels}"))
    explain(figure, keys, ncols=int(WIDTH / 2.3), fontsize=7.0)
    return figure


def _draw_run(panel: Axes, run: LearnedCoefficients, epochs: Normalize) -> None:
    places, few = project(run.paths), run.layers <= MANY  # (1 + epochs, layers, 2)
    for path in places.swapaxes(0, 1):
        segments = LineCollection(
            list(np.stack([path[:-1], path[1:]], axis=1)), cmap=TIME, norm=epochs, linewidth=1.4 if few else 0.7
        )
        segments.set_array(np.arange(len(path) - 1))
        panel.add_collection(segments)
    for layer in range(run.layers):
        panel.plot(*places[0, layer], **START, zorder=4)
        panel.plot(*places[-1, layer], **_end(layer, run.layers), zorder=4)


def _end(layer: int, layers: int) -> dict[str, Any]:
    """Return the look of the end of a layer's path, in the color of its depth."""
    size = END["markersize"] + RING * (layers - 1 - layer) if layers <= MANY else END["markersize"]
    return END | {"markerfacecolor": shade(layer, layers), "markersize": size}


def _draw_over_epochs(pair: Pair, title: str) -> Figure:
    """Draw a row of panels per hull, a panel per base; of two coefficients that sum to one the first is enough."""
    kinds = list(pair.runs)
    first, *others = pair.bases
    shown = [first] if len(others) == 1 and SUM_TO_ONE.issuperset(kinds) else pair.bases
    layers = pair.runs[kinds[0]].layers
    grid = (1, len(kinds)) if len(shown) == 1 else (len(kinds), len(shown))
    figure = Figure(figsize=(WIDTH, 0.7 + (2.6 if len(shown) == 1 else 2.1) * grid[0]), layout="constrained")
    entitle(figure, title)
    panels = figure.subplots(*grid, sharex=True, sharey=True, squeeze=False)
    every = [(kind, base) for kind in kinds for base in range(len(shown))]
    for panel, (kind, base) in zip(panels.flat, every, strict=True):
        _draw_lines(panel, pair.runs[kind], base)
        panel.set_title(kind if len(shown) == 1 else f"{kind}: {shown[base]}")
    for panel in panels[:, 0]:
        alone = len(shown) == len(others) == 1
        said = ", ".join(filter(None, (f"coefficient of {first}" if alone else "coefficient", pair.of_channels)))
        panel.set_ylabel(f"{said}\n({others[0]}: 1 minus it)" if alone else said)
    for panel in panels[-1]:
        panel.set_xlabel("epoch")
    panels[0, 0].xaxis.set_major_locator(Round(integer=True))
    if layers > MANY:
        depth_bar(figure, panels, layers)
    else:
        keys, _ = panels[0, 0].get_legend_handles_labels()
        explain(figure, keys, ncols=int(WIDTH / 2.3), handlelength=3.0)
    return figure


def _draw_lines(panel: Axes, run: LearnedCoefficients, base: int) -> None:
    for bound in (0.0, 1.0):
        # an artist, not a line of the panel: it is to be seen where it is in view, and not to widen the view
        line = Line2D([0, 1], [bound] * 2, transform=panel.get_yaxis_transform(), color=FAINT, linewidth=0.8, zorder=0)
        panel.add_artist(line)
    for layer, path in enumerate(run.paths[:, :, base].T):
        few, style = run.layers <= MANY, layer % len(LINES)
        # broken lines above whole ones, so that both are seen where coefficients are the same
        look = {"linestyle": LINES[style], "linewidth": 1.3, "zorder": 2 + style} if few else {"linewidth": 0.7}
        panel.plot(path, color=shade(layer, run.layers), label=run.names[layer], **look)
