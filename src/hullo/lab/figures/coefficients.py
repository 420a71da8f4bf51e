"""Coefficients over training: the way that each layer took through its hull."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hullo.lab.figures.learned import Learned, Pair, find_learned, spell_seeds
from hullo.lab.figures.style import DEPTH, FAINT, GREY, MANY, TIME, WIDTH, depth_bar, write
from hullo.lab.figures.ternary import CORNERS, HALO, draw_plane, frame, project
from hullo.lab.table.experiments import Experiment

WHERE = {"convex": "convex: in the triangle", "affine": "affine: in the plane"}

LINES = ("-", (0, (5, 1.5)), (0, (2, 1)), (0, (5, 1, 1, 1)))


def draw_coefficients(experiment: Experiment, seed: int | None = None) -> dict[str, Figure]:
    """A figure a set of bases, by what the rows have in their parentheses.

    Three bases: paths in the plane of coefficients that sum to one. Otherwise: coefficients over epochs.
    """
    figures = {}
    for pair in find_learned(experiment, seed):
        figures[pair.about] = figure = _draw_paths(pair) if len(pair.bases) == 3 else _draw_over_epochs(pair)
        figure.suptitle(
            f"{experiment.name}: coefficients of {pair.about} over {experiment.time}, {spell_seeds([pair])}"
        )
    return figures


def _draw_paths(pair: Pair) -> Figure:
    """A line of panels a hull: with the whole triangle, and close up."""
    kinds = [kind for kind in WHERE if kind in pair.runs]
    room = ConstrainedLayoutEngine(h_pad=0.1)  # for the values around each panel
    figure = Figure(figsize=(WIDTH, 0.6 + 3.4 * len(kinds)), layout=room)
    panels = figure.subplots(len(kinds), 2, squeeze=False)
    for kind, (whole, close) in zip(kinds, panels, strict=True):
        run = pair.runs[kind]
        places = project(run.paths).reshape(-1, 2)
        cloud = project(np.concatenate(run.channels)) if run.channels else places[:0]
        for panel, shown in ((whole, np.concatenate([CORNERS, places, cloud])), (close, places)):
            draw_plane(panel, pair.bases, *frame(shown))
            panel.plot(*cloud.T, ".", color=GREY, markersize=2, alpha=0.6, zorder=2)
            _draw_run(panel, run, labelled=panel is close)
        whole.set_title(WHERE[kind], loc="left", pad=12)
        close.set_title("close up", loc="left", pad=12)
    time = ScalarMappable(Normalize(0, len(run.paths) - 1), TIME)
    ticks = MaxNLocator(integer=True)
    figure.colorbar(time, ax=panels, label="epoch", ticks=ticks, shrink=0.5, aspect=30, pad=0.02)
    keys = [
        Line2D([], [], linestyle="none", marker="o", color="black", markerfacecolor="white", label="start"),
        Line2D([], [], linestyle="none", marker="o", color="black", label="end, with the activation's number"),
    ]
    if any(run.channels for run in pair.runs.values()):
        keys.append(Line2D([], [], linestyle="none", marker=".", color=GREY, label="the channels' ends; paths: means"))
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys))
    return figure


def _draw_run(panel: Axes, run: Learned, *, labelled: bool) -> None:
    places = project(run.paths)  # (1 + epochs, layers, 2)
    few = run.layers <= MANY
    for layer in range(run.layers):
        path = places[:, layer]
        segments = LineCollection(
            list(np.stack([path[:-1], path[1:]], axis=1)), cmap=TIME, linewidth=1.4 if few else 0.7
        )
        segments.set_array(np.arange(len(path) - 1))
        panel.add_collection(segments)
    size = 4.0 if few else 2.5
    for layer in range(run.layers):
        panel.plot(*places[0, layer], "o", color="black", markerfacecolor="white", markersize=size + 0.5, zorder=4)
        panel.plot(*places[-1, layer], "o", color="black", markersize=size, zorder=4)
    if labelled:
        for layer in range(run.layers) if few else np.linspace(0, run.layers - 1, 4).round().astype(int):
            _number(panel, layer, places[0, layer], places[-1, layer])


def _number(panel: Axes, layer: int, start: np.ndarray, end: np.ndarray) -> None:
    """The activation's number at its end, on the side to which it went."""
    away = end - start
    place = 8 * away / max(np.linalg.norm(away), 1e-9)
    look = {"fontsize": 7.5, "fontweight": "bold", "path_effects": HALO, "zorder": 6}
    write(panel, str(layer + 1), end, place, ha="center", va="center", **look)


def _draw_over_epochs(pair: Pair) -> Figure:
    """A line of panels a hull, a panel a base; of two bases the first says all."""
    kinds = [kind for kind in WHERE if kind in pair.runs]
    shown = pair.bases[: 1 if len(pair.bases) == 2 else None]
    layers = pair.runs[kinds[0]].layers
    grid = (1, len(kinds)) if len(shown) == 1 else (len(kinds), len(shown))
    figure = Figure(figsize=(WIDTH, 0.7 + (2.6 if len(shown) == 1 else 2.1) * grid[0]), layout="constrained")
    panels = figure.subplots(*grid, sharex=True, sharey=True, squeeze=False)
    every = [(kind, base) for kind in kinds for base in range(len(shown))]
    for panel, (kind, base) in zip(panels.flat, every, strict=True):
        _draw_lines(panel, pair.runs[kind], base)
        panel.set_title(f"{kind}: {shown[base]}")
    for panel in panels[:, 0]:
        panel.set_ylabel("coefficient")
    for panel in panels[-1]:
        panel.set_xlabel("epoch")
    panels[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    if layers > MANY:
        depth_bar(figure, panels, layers)
    else:
        keys, _ = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles=keys, loc="outside lower center", ncols=min(layers, 5), handlelength=3.0)
    return figure


def _draw_lines(panel: Axes, run: Learned, base: int) -> None:
    for bound in (0.0, 1.0):
        # an artist, not a line of the panel: it is to be seen where it is in view, and not to widen the view
        line = Line2D([0, 1], [bound] * 2, transform=panel.get_yaxis_transform(), color=FAINT, linewidth=0.8, zorder=0)
        panel.add_artist(line)
    for layer, path in enumerate(run.paths[:, :, base].T):
        few = run.layers <= MANY
        look = {"linestyle": LINES[layer % len(LINES)], "linewidth": 1.3} if few else {"linewidth": 0.7}
        panel.plot(path, color=DEPTH(layer / max(run.layers - 1, 1)), label=f"activation {layer + 1}", **look)
