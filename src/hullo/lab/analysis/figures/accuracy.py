"""Figures of accuracy: over epochs, and at the end beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.figures.style import COLOURS, FAINT, GREY, KINDS, WIDTH, Round
from hullo.lab.analysis.statistics import Interval
from hullo.lab.spec.activation import PRELU, ActivationSpec

FIXED_COLOURS = (COLOURS[2], COLOURS[3], "black", COLOURS[5], COLOURS[4], GREY)
FIXED_LINES = ((0, (1, 1)), (0, (4, 1, 1, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1)))
LOST: dict[str, Any] = {"marker": "x", "markersize": 5.0, "markeredgewidth": 1.2, "linestyle": "none"}


def draw_learning(experiment: Experiment) -> Figure:
    """Draw accuracy over epochs, means and 95 % intervals over seeds, with a panel per set of bases.

    Beside the hulls of the bases, a panel has the fixed activations that these hulls contain. Means are those of runs
    that did not diverge; each that did is a thin line up to there, and is counted above the panel.
    """
    panels = arrange(experiment.accuracies)
    curves = {row: intervals(experiment, row) for row in experiment.accuracies}
    lost = {row: cut_short(experiment, row) for row in experiment.accuracies}
    looks = _looks(experiment.accuracies)
    width = min(2, len(panels))
    height = -(-len(panels) // width)
    figure = Figure(figsize=(WIDTH, 0.8 + 2.3 * height), layout="constrained")
    places = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False)
    for place, (about, rows) in zip(places.flat, panels.items(), strict=False):
        counts = [f"{_short(row)}: {_count(experiment, row)}" for row in rows if lost[row]]
        place.set_title("\n".join([about, *counts]))
        for row in rows:
            _draw_curve(place, curves[row], row, looks[row])
            for reached in lost[row]:
                _draw_lost(place, reached, looks[row])
        place.grid(axis="y", color=FAINT, linewidth=0.5)
        place.tick_params(labelbottom=True)
    for place in places.flat[len(panels) :]:
        place.set_axis_off()
    for place in places[:, 0]:
        place.set_ylabel(f"{experiment.images} accuracy, %")
    for place in places.flat[-width:]:
        place.set_xlabel("epoch")
    places[0, 0].xaxis.set_major_locator(Round(integer=True))
    places[0, 0].yaxis.set_major_locator(Round())
    seen = [[point.mean for point in curve] for curve in curves.values()]
    seen += [reached for runs in lost.values() for reached in runs]
    _look_at(places[0, 0], [value for curve in seen for value in curve[experiment.epoch // 10 :]])
    several = any(point.half is not None for curve in curves.values() for point in curve)
    _explain(figure, looks, several=several, lost=any(lost.values()))
    figure.suptitle(f"{experiment.name}: {'means of ' * several}{experiment.seeds}")
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


def cut_short(experiment: Experiment, row: str) -> list[list[float]]:
    """Return the accuracies of the runs of a row that diverged, before they did."""
    own = (r for r in experiment.records if r.spec.activation == row and experiment.lost(r))
    return [experiment.curve(record)[: (record.diverged_in or 0) - 1] for record in own]


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
        colour, line = FIXED_COLOURS[i % len(FIXED_COLOURS)], FIXED_LINES[i % len(FIXED_LINES)]
        looks[row] = {"color": colour, "linestyle": line, "linewidth": 1.1}
    return looks


def _explain(figure: Figure, looks: Mapping[str, dict[str, Any]], *, several: bool, lost: bool) -> None:
    """Draw one legend for all panels, below them."""
    named = {_short(row): look for row, look in looks.items()}
    keys: list[Artist] = [Line2D([], [], label=name, **look) for name, look in named.items()]
    keys += [Patch(color=GREY, alpha=0.4, linewidth=0, label="95 % interval")] * several
    keys += [Line2D([], [], color="black", label="diverged", **LOST)] * lost
    lines = 1 + (len(keys) > 5)
    figure.legend(handles=keys, loc="outside lower center", ncols=-(-len(keys) // lines), handlelength=3.0)


def _draw_curve(panel: Axes, curve: Sequence[Interval], name: str, look: dict[str, Any]) -> None:
    epochs = range(1, len(curve) + 1)
    panel.plot(epochs, [point.mean for point in curve], label=name, **look)
    if curve and curve[0].half is not None:
        low, high = ([getattr(point, end) for point in curve] for end in ("low", "high"))
        panel.fill_between(epochs, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _draw_lost(panel: Axes, reached: Sequence[float], look: dict[str, Any]) -> None:
    panel.plot(range(1, len(reached) + 1), reached, **look | {"linewidth": 0.7})
    if reached:
        panel.plot(len(reached), reached[-1], color=look["color"], **LOST)


def _look_at(panel: Axes, values: Sequence[float]) -> None:
    """Show all values; how curves began, far below, and wide intervals may leave the view."""
    if values:
        low, high = min(values), max(values)
        margin = 0.08 * max(high - low, 1.0)
        panel.set_ylim(max(0.0, low - margin), min(100.0, high + margin))


def draw_final(experiment: Experiment) -> Figure:
    """Draw the accuracies of the experiment's reading: every run, their mean with its 95 % interval, and the paper's.

    Runs that diverged count as in the table; those that lie far off are counted, not shown.
    """
    cells = list(experiment.cells.values())
    remarks = fill(" ".join([experiment.reading.sentence, *experiment.remarks]), 110)
    height = 1.1 + 0.25 * len(cells) + 0.15 * len(remarks.splitlines())
    figure = Figure(figsize=(0.85 * WIDTH, height), layout="constrained")
    panel = figure.subplots()
    several = any(cell.accuracy.count > 1 for cell in cells)
    seen = []
    for y, cell in enumerate(cells):
        runs = [r for r in experiment.records if r.spec.activation == cell.row]
        sound = [experiment.accuracies[cell.row][r.spec.seed] for r in runs if not experiment.lost(r)]
        colour = KINDS.get(_short(cell.row), {"color": "black"})["color"]
        shape = LOST if cell.diverged == cell.accuracy.count else {"fmt": "o", "markersize": 4.5}
        mean = "diverged" if shape is LOST else "mean and 95 % interval" if several else "the run"
        look = {"color": colour, "capsize": 2.5, "zorder": 3}
        panel.errorbar(cell.accuracy.mean, y, xerr=cell.accuracy.half, **look, **shape, label=mean)
        if several:
            panel.plot(sound, [y + 0.25] * len(sound), ".", color=GREY, markersize=4, label="a run")
        if cell.published is not None:
            look = {"color": COLOURS[3], "markerfacecolor": "white", "markersize": 4.5, "zorder": 4}
            panel.plot(cell.published, y, "D", **look, label="the paper")
        seen += [cell.accuracy.mean, *sound, cell.published or cell.accuracy.mean]
    names = [f"{cell.row}\n({_count(experiment, cell.row)})" if cell.diverged else cell.row for cell in cells]
    panel.set_yticks(range(len(cells)), names)
    panel.set_ylim(len(cells) - 0.5, -0.5)
    margin = max(0.08 * (max(seen) - min(seen)), 0.3)
    panel.set_xlim(min(seen) - margin, max(seen) + margin)
    panel.xaxis.set_major_locator(Round(nbins=10))
    panel.grid(axis="x", color=FAINT, linewidth=0.5)
    panel.set_xlabel(f"{experiment.images} accuracy, %")
    panel.set_title(remarks, fontsize=6.5)
    handles, labels = panel.get_legend_handles_labels()
    keys = dict(zip(reversed(labels), reversed(handles), strict=True))  # one per name: the first that was drawn
    figure.legend(keys.values(), keys.keys(), loc="outside lower center", ncols=len(keys), handletextpad=0.3)
    figure.suptitle(f"{experiment.name}, {experiment.time}, {experiment.seeds}: {experiment.reading.short}")
    return figure
