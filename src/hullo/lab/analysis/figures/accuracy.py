"""Figures of accuracy: over epochs, and at the end beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hullo.lab.analysis.experiments import Cell, Experiment
from hullo.lab.analysis.figures.style import COLORS, FAINT, GRAY, KINDS, WIDTH, Round, entitle, explain, wrap
from hullo.lab.analysis.names import activation_label, is_hull, kind_and_bases
from hullo.lab.analysis.sources import ENOUGH_SEEDS
from hullo.lab.analysis.statistics import Interval
from hullo.lab.spec.activation import ActivationSpec

FIXED_COLORS = (COLORS[2], COLORS[3], "black", COLORS[5], COLORS[4], GRAY)
FIXED_LINES = ((0, (1, 1)), (0, (4, 1, 1, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1)))
LOST: dict[str, Any] = {"marker": "x", "markersize": 5.0, "markeredgewidth": 1.2, "linestyle": "none"}


def draw_learning(experiment: Experiment) -> Figure:
    """Draw accuracy over epochs, means and 95 % intervals over seeds, with a panel per set of bases.

    Beside the hulls of the bases, a panel has the fixed activations that these hulls contain. Means are those of runs
    that did not diverge; those that did are counted above the panel. An interval of fewer than three seeds is too wide
    to show; the runs are thin lines instead. One epoch is a dot.
    """
    panels = arrange(experiment.runs)
    curves = {row: intervals(experiment, row) for row in experiment.runs}
    looks = _looks(experiment)
    width = min(2, len(panels))
    height = -(-len(panels) // width)
    figure = Figure(figsize=(WIDTH, 0.8 + 2.3 * height), layout="constrained")
    places = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False)
    for place, (about, rows) in zip(places.flat, panels.items(), strict=False):
        lost = (experiment.cells[row] for row in rows if experiment.cells[row].diverged)
        titles = [about, *(f"{kind_and_bases(cell.row)[0]}: {_count(cell)}" for cell in lost)]
        place.set_title("\n".join(wrap(title, WIDTH / width - 0.5, 8.0) for title in titles))
        for row in rows:
            _draw_curve(place, curves[row], looks[row] | {"label": row})
            if not _has_interval(curves[row]):
                _draw_runs(place, [*map(experiment.curve, experiment.sound_runs(row))], looks[row])
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
    named = {activation_label(kind_and_bases(row)[0]): look for row, look in looks.items()}
    keys: list[Artist] = [Line2D([], [], label=name, **look) for name, look in named.items()]
    if any(map(_has_interval, curves.values())):
        keys.append(Patch(color=GRAY, alpha=0.4, linewidth=0, label="95 % interval"))
    ncols = min(int(WIDTH / 1.6), -(-len(keys) // (1 + (len(keys) > 5))))
    explain(figure, keys, ncols=ncols, handlelength=3.0)
    several = any(point.half is not None for curve in curves.values() for point in curve)
    entitle(figure, f"{experiment.name}: {'means of ' * several}{experiment.seeds}")
    return figure


def arrange(rows: Iterable[str]) -> dict[str, list[str]]:
    """Arrange rows in panels: hulls of the same bases with the other activations in them; then those in none.

    >>> arrange(["relu", "gelu", "prelu", "convex(identity,relu)", "affine(identity,relu)"])
    {'identity,relu': ['convex(identity,relu)', 'affine(identity,relu)', 'relu', 'prelu'], 'fixed': ['gelu']}
    """
    panels: dict[str, list[str]] = {}
    for row in filter(is_hull, rows := list(rows)):
        panels.setdefault(kind_and_bases(row)[1], []).append(row)
    fixed = {row: ActivationSpec.parse(row).span for row in rows if not is_hull(row)}
    for together in panels.values():
        bases = set(ActivationSpec.parse(together[0]).bases)
        together += [row for row, span in fixed.items() if bases.issuperset(span)]
    alone = [row for row in fixed if not any(row in together for together in panels.values())]
    return panels | ({"fixed": alone} if alone else {})


def intervals(experiment: Experiment, row: str) -> list[Interval]:
    """Return the accuracies after each epoch of the runs of a row that did not diverge."""
    return [Interval.of(reached) for reached in zip(*map(experiment.curve, experiment.sound_runs(row)), strict=True)]


def _count(cell: Cell) -> str:
    return f"{cell.diverged} of {cell.accuracy.count} diverged"


def _looks(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return the line styles: hulls by kind, each fixed activation the same in all panels; one epoch makes no line."""
    looks = {row: KINDS[kind_and_bases(row)[0]] for row in experiment.runs if is_hull(row)}
    for i, row in enumerate(row for row in experiment.runs if row not in looks):
        color, line = FIXED_COLORS[i % len(FIXED_COLORS)], FIXED_LINES[i % len(FIXED_LINES)]
        looks[row] = {"color": color, "linestyle": line, "linewidth": 1.1}
    return {row: look | {"marker": "o" if experiment.epoch == 1 else "none"} for row, look in looks.items()}


def _draw_curve(panel: Axes, curve: Sequence[Interval], look: Mapping[str, Any]) -> None:
    epochs = range(1, len(curve) + 1)
    panel.plot(epochs, [point.mean for point in curve], **look)
    if _has_interval(curve):
        low, high = ([getattr(point, end) for point in curve] for end in ("low", "high"))
        edge = 3 if len(curve) == 1 else 0  # the band of one epoch is its edge
        panel.fill_between(epochs, low, high, color=look["color"], alpha=0.15, linewidth=edge)


def _has_interval(curve: Sequence[Interval]) -> bool:
    """Return whether intervals have enough seeds to be drawn."""
    return bool(curve) and curve[0].count >= ENOUGH_SEEDS


def _draw_runs(panel: Axes, runs: Sequence[Sequence[float]], look: Mapping[str, Any]) -> None:
    """Draw runs as thin lines, if there are several."""
    thin = {"color": look["color"], "marker": look["marker"], "linewidth": 0.5, "alpha": 0.5, "markersize": 3}
    for curve in runs if len(runs) > 1 else ():
        panel.plot(range(1, len(curve) + 1), curve, **thin)


def _ends(point: Interval) -> tuple[float, ...]:
    """Return what is drawn of a mean: itself, and the ends of its interval if it has one."""
    return (point.low, point.mean, point.high) if point.count >= ENOUGH_SEEDS else (point.mean,)


def _set_range(set_limits: Callable[[float, float], Any], seen: Sequence[float], experiment: Experiment) -> None:
    """Show all of these values; an accuracy is from 0 to 100 %."""
    if seen:
        least, most = (0.0, 100.0) if experiment.unit else (-math.inf, math.inf)
        margin = max(0.05 * (max(seen) - min(seen)), 0.3 if experiment.unit else 1e-9)
        set_limits(max(least, min(seen) - margin), min(most, max(seen) + margin))


def draw_final(experiment: Experiment) -> Figure:
    """Draw the accuracies of the experiment's reading: every run, their mean with its 95 % interval, and the paper's.

    Runs that diverged count as in the table; those that lie far off are counted, not shown. Intervals of fewer than
    three seeds are not drawn.
    """
    cells = list(experiment.cells.values())
    width = 0.85 * WIDTH
    remarks = wrap(" ".join([experiment.reading.sentence, *experiment.remarks]), 0.62 * width, 6.5)
    names = [wrap(activation_label(cell.row), 0.34 * width, 7.0) for cell in cells]
    lines = sum(name.count("\n") for name in names) + len(remarks.splitlines())
    figure = Figure(figsize=(width, 1.1 + 0.25 * len(cells) + 0.13 * lines), layout="constrained")
    panel = figure.subplots()
    several = any(cell.accuracy.count > 1 for cell in cells)
    with_interval = any(cell.accuracy.count >= ENOUGH_SEEDS for cell in cells)
    kind = "the run" if not several else "mean and 95 % interval" if with_interval else "mean"
    seen = []
    for y, cell in enumerate(cells):
        sound = [experiment.accuracies[cell.row][r.spec.seed] for r in experiment.sound_runs(cell.row)]
        color = KINDS.get(kind_and_bases(cell.row)[0], {"color": "black"})["color"]
        half = cell.accuracy.half if cell.accuracy.count >= ENOUGH_SEEDS else None
        name = "_without" if with_interval and half is None else kind  # the key shows a mean with an interval
        shape = LOST | {"label": "diverged"} if cell.is_lost else {"fmt": "o", "markersize": 4.5, "label": name}
        panel.errorbar(cell.accuracy.mean, y, xerr=half, color=color, capsize=2.5, zorder=3, **shape)
        if several:
            panel.plot(sound, [y + 0.25] * len(sound), ".", color=GRAY, markersize=4, label="a run")
        if cell.published is not None:
            look: dict[str, Any] = {"color": COLORS[3], "markerfacecolor": "white", "markersize": 4.5, "zorder": 4}
            panel.plot(cell.published, y, "D", **look, label="the paper")
        seen += [*_ends(cell.accuracy), *sound, cell.published or cell.accuracy.mean]
    counts = [f"\n({_count(cell)})" if cell.diverged else "" for cell in cells]
    panel.set_yticks(range(len(cells)), [name + count for name, count in zip(names, counts, strict=True)])
    panel.set_ylim(len(cells) - 0.5, -0.5)
    _set_range(panel.set_xlim, seen, experiment)
    panel.xaxis.set_major_locator(Round(nbins=min(10, int(2 * width))))
    panel.grid(axis="x", color=FAINT, linewidth=0.5)
    panel.set_xlabel(f"{experiment.images} {experiment.metric}")
    panel.set_title(remarks, fontsize=6.5)
    handles, labels = panel.get_legend_handles_labels()
    keys = dict(zip(reversed(labels), reversed(handles), strict=True))  # one per name: the first that was drawn
    explain(figure, [*keys.values()], labels=[*keys], ncols=min(len(keys), int(width / 1.6)), handletextpad=0.3)
    about = dict.fromkeys([*experiment.name.split(", "), experiment.time, experiment.seeds])  # each once
    entitle(figure, f"{', '.join(about)}: {experiment.reading.short}")
    return figure
