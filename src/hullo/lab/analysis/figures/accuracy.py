"""Figures of accuracy: over epochs, and at the end beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.figures.style import (
    COLORS,
    FAINT,
    GRAY,
    KINDS,
    WIDTH,
    Round,
    entitle,
    wrap,
)
from hullo.lab.analysis.sources import ENOUGH_SEEDS
from hullo.lab.analysis.statistics import Interval
from hullo.lab.spec.activation import PRELU, ActivationSpec
from hullo.lab.spec.records import ACCURACY

FIXED_COLORS = (COLORS[2], COLORS[3], "black", COLORS[5], COLORS[4], GRAY)
FIXED_LINES = ((0, (1, 1)), (0, (4, 1, 1, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1)))
LOST: dict[str, Any] = {"marker": "x", "markersize": 5.0, "markeredgewidth": 1.2, "linestyle": "none"}


def draw_learning(experiment: Experiment) -> Figure:
    """Draw accuracy over epochs, means and 95 % intervals over seeds, with a panel per set of bases.

    Beside the hulls of the bases, a panel has the fixed activations that these hulls contain. Means are those of runs
    that did not diverge; those that did are counted above the panel. An interval of fewer than three seeds is too wide
    to show; the runs are thin lines instead. One epoch is a dot.
    """
    panels = arrange(experiment.accuracies)
    curves = {row: intervals(experiment, row) for row in experiment.accuracies}
    looks = _looks(experiment.accuracies)
    width = min(2, len(panels))
    height = -(-len(panels) // width)
    figure = Figure(figsize=(WIDTH, 0.8 + 2.3 * height), layout="constrained")
    places = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False)
    for place, (about, rows) in zip(places.flat, panels.items(), strict=False):
        counts = [f"{_short(row)}: {_count(experiment, row)}" for row in rows if experiment.cells[row].diverged]
        place.set_title("\n".join(wrap(text, WIDTH / width - 0.5, 8.0) for text in [about, *counts]))
        for row in rows:
            _draw_curve(place, curves[row], row, looks[row])
            if not _has_interval(curves[row]):
                _draw_runs(place, experiment, row, looks[row])
        place.grid(axis="y", color=FAINT, linewidth=0.5)
        place.tick_params(labelbottom=True)
    for place in places.flat[len(panels) :]:
        place.set_axis_off()
    for place in places[:, 0]:
        place.set_ylabel(f"{experiment.images} {experiment.metric}")
    for place in places.flat[-width:]:
        place.set_xlabel("epoch")
    places[0, 0].xaxis.set_major_locator(Round(integer=True))
    places[0, 0].yaxis.set_major_locator(Round())
    start = experiment.epoch // 10  # how curves began, far below, may leave the view
    seen = [value for curve in curves.values() for point in curve[start:] for value in _ends(point)]
    _set_range(places[0, 0].set_ylim, seen, experiment)
    several = any(point.half is not None for curve in curves.values() for point in curve)
    keys: list[Artist] = []
    if any(map(_has_interval, curves.values())):
        keys.append(Patch(color=GRAY, alpha=0.4, linewidth=0, label="95 % interval"))
    _explain(figure, looks, keys)
    entitle(figure, f"{experiment.name}: {'means of ' * several}{experiment.seeds}")
    return figure


def arrange(rows: Sequence[str] | Mapping[str, Any]) -> dict[str, list[str]]:
    """Arrange rows in panels: hulls of the same bases with the other activations in them; then those in none.

    >>> arrange(["relu", "gelu", "prelu", "convex(identity,relu)", "affine(identity,relu)"])
    {'identity,relu': ['convex(identity,relu)', 'affine(identity,relu)', 'relu', 'prelu'], 'fixed': ['gelu']}
    """
    parsed = {row: ActivationSpec.parse(row) for row in rows}
    fixed = [row for row in rows if not _is_hull(row)]
    panels: dict[str, list[str]] = {}
    for row in rows:
        if _is_hull(row):
            panels.setdefault(row.partition("(")[2].removesuffix(")"), []).append(row)
    for together in panels.values():
        bases = set(parsed[together[0]].bases)
        together += [row for row in fixed if bases.issuperset(parsed[row].span)]
    alone = [row for row in fixed if not any(row in together for together in panels.values())]
    return panels | ({"fixed": alone} if alone else {})


def intervals(experiment: Experiment, row: str) -> list[Interval]:
    """Return the accuracies after each epoch of the runs of a row that did not diverge."""
    own = (r for r in experiment.records if r.spec.activation == row and not experiment.lost(r))
    return [Interval.of(reached) for reached in zip(*map(experiment.curve, own), strict=True)]


def _count(experiment: Experiment, row: str) -> str:
    cell = experiment.cells[row]
    return f"{cell.diverged} of {cell.accuracy.count} diverged"


def _short(row: str) -> str:
    """Return a hull's kind, where its bases are known; another activation's name."""
    return ActivationSpec.parse(row).kind if _is_hull(row) else row


def _is_hull(row: str) -> bool:
    """Return whether a row is written as a hull, unlike PReLU."""
    return ActivationSpec.parse(row).learns and row != str(PRELU)


def _looks(rows: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the line styles: hulls by kind, each fixed activation the same in all panels."""
    looks = {row: KINDS[_short(row)] for row in rows if _is_hull(row)}
    for i, row in enumerate(row for row in rows if row not in looks):
        color, line = FIXED_COLORS[i % len(FIXED_COLORS)], FIXED_LINES[i % len(FIXED_LINES)]
        looks[row] = {"color": color, "linestyle": line, "linewidth": 1.1}
    return looks


def _explain(figure: Figure, looks: Mapping[str, dict[str, Any]], others: list[Artist]) -> None:
    """Draw one legend for all panels, below them."""
    named = {_short(row): look for row, look in looks.items()}
    keys = [*(Line2D([], [], label=name, **look) for name, look in named.items()), *others]
    ncols = min(max(1, int(figure.get_figwidth() / 1.6)), -(-len(keys) // (1 + (len(keys) > 5))))
    figure.legend(handles=keys, loc="outside lower center", ncols=ncols, handlelength=3.0)


def _draw_curve(panel: Axes, curve: Sequence[Interval], name: str, look: dict[str, Any]) -> None:
    epochs = range(1, len(curve) + 1)
    panel.plot(epochs, [point.mean for point in curve], label=name, **look, marker=_mark(curve))
    if _has_interval(curve):
        low, high = ([getattr(point, end) for point in curve] for end in ("low", "high"))
        if len(curve) == 1:
            panel.vlines(epochs, low, high, color=look["color"], alpha=0.3, linewidth=3)
        else:
            panel.fill_between(epochs, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _mark(curve: Sequence[Any]) -> str:
    """Return the marker of a curve: one epoch makes no line."""
    return "o" if len(curve) == 1 else "none"


def _has_interval(curve: Sequence[Interval]) -> bool:
    """Return whether intervals have enough seeds to be drawn."""
    return bool(curve) and curve[0].count >= ENOUGH_SEEDS


def _draw_runs(panel: Axes, experiment: Experiment, row: str, look: dict[str, Any]) -> None:
    """Draw the runs of a row as thin lines, if there are several."""
    own = [r for r in experiment.records if r.spec.activation == row and not experiment.lost(r)]
    for record in own if len(own) > 1 else ():
        reached = experiment.curve(record)
        thin: dict[str, Any] = {"color": look["color"], "linewidth": 0.5, "alpha": 0.5}
        panel.plot(range(1, len(reached) + 1), reached, **thin, marker=_mark(reached), markersize=3)


def _ends(point: Interval) -> tuple[float, ...]:
    """Return what is drawn of a mean: itself, and the ends of its interval if it has one."""
    return (point.low, point.mean, point.high) if point.count >= ENOUGH_SEEDS else (point.mean,)


def _set_range(set_limits: Callable[[float, float], Any], seen: Sequence[float], experiment: Experiment) -> None:
    """Show all of these values; an accuracy is from 0 to 100 %."""
    if seen:
        least, most = (0.0, 100.0) if experiment.records[0].metric == ACCURACY else (-math.inf, math.inf)
        margin = max(0.05 * (max(seen) - min(seen)), 0.3 if experiment.records[0].metric == ACCURACY else 1e-9)
        set_limits(max(least, min(seen) - margin), min(most, max(seen) + margin))


def draw_final(experiment: Experiment) -> Figure:
    """Draw the accuracies of the experiment's reading: every run, their mean with its 95 % interval, and the paper's.

    Runs that diverged count as in the table; those that lie far off are counted, not shown. Intervals of fewer than
    three seeds are not drawn.
    """
    cells = list(experiment.cells.values())
    width = 0.85 * WIDTH
    remarks = wrap(" ".join([experiment.reading.sentence, *experiment.remarks]), 0.62 * width, 6.5)
    names = [wrap(cell.row, 0.34 * width, 7.0) for cell in cells]
    lines = sum(name.count("\n") for name in names) + len(remarks.splitlines())
    figure = Figure(figsize=(width, 1.1 + 0.25 * len(cells) + 0.13 * lines), layout="constrained")
    panel = figure.subplots()
    several = any(cell.accuracy.count > 1 for cell in cells)
    with_interval = [cell for cell in cells if cell.accuracy.count >= ENOUGH_SEEDS]
    seen = []
    for y, cell in enumerate(cells):
        runs = [r for r in experiment.records if r.spec.activation == cell.row]
        sound = [experiment.accuracies[cell.row][r.spec.seed] for r in runs if not experiment.lost(r)]
        color = KINDS.get(_short(cell.row), {"color": "black"})["color"]
        shape = LOST if cell.is_lost else {"fmt": "o", "markersize": 4.5}
        kind = "mean and 95 % interval" if with_interval else "mean"
        mean = "diverged" if shape is LOST else kind if several else "the run"
        look = {"color": color, "capsize": 2.5, "zorder": 3}
        half = cell.accuracy.half if cell in with_interval else None
        panel.errorbar(cell.accuracy.mean, y, xerr=half, **look, **shape, label=mean)
        if several:
            panel.plot(sound, [y + 0.25] * len(sound), ".", color=GRAY, markersize=4, label="a run")
        if cell.published is not None:
            look = {"color": COLORS[3], "markerfacecolor": "white", "markersize": 4.5, "zorder": 4}
            panel.plot(cell.published, y, "D", **look, label="the paper")
        seen += [*_ends(cell.accuracy), *sound, cell.published or cell.accuracy.mean]
    counts = [f"\n({_count(experiment, cell.row)})" if cell.diverged else "" for cell in cells]
    panel.set_yticks(range(len(cells)), [name + count for name, count in zip(names, counts, strict=True)])
    panel.set_ylim(len(cells) - 0.5, -0.5)
    _set_range(panel.set_xlim, seen, experiment)
    panel.xaxis.set_major_locator(Round(nbins=min(10, int(2 * width))))
    panel.grid(axis="x", color=FAINT, linewidth=0.5)
    panel.set_xlabel(f"{experiment.images} {experiment.metric}")
    panel.set_title(remarks, fontsize=6.5)
    handles, labels = panel.get_legend_handles_labels()
    keys = dict(zip(reversed(labels), reversed(handles), strict=True))  # one per name: the first that was drawn
    ncols = min(len(keys), max(1, int(width / 1.6)))
    figure.legend(keys.values(), keys.keys(), loc="outside lower center", ncols=ncols, handletextpad=0.3)
    about = dict.fromkeys([*experiment.name.split(", "), experiment.time, experiment.seeds])  # each once
    entitle(figure, f"{', '.join(about)}: {experiment.reading.short}")
    return figure
