"""Figure of the learned activations, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.figures.learned import Pair, find_learned, spell_seeds, spell_time
from hullo.lab.analysis.figures.style import (
    GRAY,
    KINDS,
    MANY,
    REACH,
    WIDTH,
    X,
    cross,
    curves,
    depth_bar,
    entitle,
    explain,
    shade,
    wrap,
)

LOOKS = KINDS | {"prelu": {"color": "black", "linestyle": "-", "linewidth": 1.3}}
START = {"color": GRAY, "linestyle": ":", "linewidth": 0.9}
MIDDLE = (0.05, 0.95)
"""The fraction of the channels inside a band."""


def draw_activations(experiment: Experiment, seed: int | None = None) -> Figure | None:
    """Draw the learned activations, affine ones solid, convex ones dashed; None if nothing was learned.

    There is a row of panels per set of bases. For a shallow network it has a panel per layer; for a deep one, a panel
    per hull, with the layers colored by depth.
    """
    pairs = find_learned(experiment, seed)
    if not pairs:
        return None
    run = next(iter(pairs[0].runs.values()))
    figure = _draw_one_by_one(pairs, run.names) if run.layers <= MANY else _draw_by_depth(pairs, run.layers)
    entitle(figure, f"{experiment.name}: activations learned in {spell_time(experiment)}, {spell_seeds(pairs)}")
    return figure


def _draw_one_by_one(pairs: list[Pair], names: Sequence[str]) -> Figure:
    layers = len(names)
    width = min(WIDTH, 1.0 + 2.0 * layers)
    figure = Figure(figsize=(width, 0.8 + len(pairs) * max(1.2, 0.65 * width / layers)), layout="constrained")
    panels = _subplots(figure, pairs, layers)
    for pair, line in zip(pairs, panels, strict=True):
        for layer, panel in enumerate(line):
            panel.plot(X, curves(next(iter(pair.runs.values())).paths[0, layer : layer + 1], pair.bases)[0], **START)
            for kind in LOOKS:
                if kind in pair.runs:
                    _draw_layer(panel, pair, kind, layer)
    for name, panel in zip(names, panels[0], strict=True):
        panel.set_title(wrap(name, width / (layers + 1), 7.5), fontsize=7.5)
    looks = {kind: look for kind, look in LOOKS.items() if any(kind in pair.runs for pair in pairs)} | {"start": START}
    keys: list[Artist] = [Line2D([], [], label=name, **look) for name, look in looks.items()]
    if any(run.channels for pair in pairs for run in pair.runs.values()):
        keys.append(Patch(color=GRAY, alpha=0.4, linewidth=0, label="90 % of a layer's channels; line: their mean"))
    explain(figure, keys, ncols=min(len(keys), int(width / 1.6)), handlelength=3.5)
    return figure


def _draw_layer(panel: Axes, pair: Pair, kind: str, layer: int) -> None:
    run = pair.runs[kind]
    panel.plot(X, curves(run.paths[-1, layer : layer + 1], pair.bases)[0], **LOOKS[kind])
    if run.channels and len(run.channels[layer]) > 1:
        low, high = np.quantile(curves(run.channels[layer], pair.bases), MIDDLE, axis=0)
        panel.fill_between(X, low, high, color=LOOKS[kind]["color"], alpha=0.2, linewidth=0)


def _draw_by_depth(pairs: list[Pair], layers: int) -> Figure:
    figure = Figure(figsize=(WIDTH, 0.6 + 1.75 * len(pairs)), layout="constrained")
    kinds = [kind for kind in LOOKS if any(kind in pair.runs for pair in pairs)]
    panels = _subplots(figure, pairs, len(kinds))
    for pair, line in zip(pairs, panels, strict=True):
        for kind, panel in zip(kinds, line, strict=True):
            if kind in pair.runs:
                for layer, y in enumerate(curves(pair.runs[kind].paths[-1], pair.bases)):
                    look = {"color": shade(layer, layers), "linestyle": LOOKS[kind]["linestyle"]}
                    panel.plot(X, y, **look, linewidth=0.7)
    for kind, panel in zip(kinds, panels[0], strict=True):
        panel.set_title(kind)
    depth_bar(figure, panels, layers)
    return figure


def _subplots(figure: Figure, pairs: list[Pair], width: int) -> np.ndarray:
    """Return empty panels, a row per pair."""
    panels: np.ndarray = figure.subplots(len(pairs), width, sharex=True, sharey=True, squeeze=False)
    for panel in panels.flat:
        cross(panel)
        panel.set(xlim=(-REACH, REACH), xticks=[-2, 0, 2])
    for pair, panel in zip(pairs, panels[:, 0], strict=True):
        panel.set_ylabel(wrap(", ".join(filter(None, (pair.about, pair.of_channels))), 1.2, 7.0), fontsize=7.0)
    return panels
