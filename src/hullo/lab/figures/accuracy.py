"""What was reached: accuracy over epochs, and at the end beside what the paper reports; rows compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hullo.lab.activations import Row
from hullo.lab.figures.style import COLOURS, FAINT, GREY, KINDS, WIDTH
from hullo.lab.intervals import Interval
from hullo.lab.table.experiments import SAMPLE, Experiment

FIXED_COLOURS = (*COLOURS[2:], GREY)
FIXED_LINES = ((0, (1, 1)), (0, (4, 1, 1, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1)))
VIEW = 10.0
"""Percentage points below the lowest end that are shown at least: room for the legend."""


def draw_learning(experiment: Experiment) -> Figure:
    """Accuracy over epochs, means and 95 % intervals over seeds: a panel a set of bases.

    Beside the hulls of the bases, a panel has the fixed activations that these hulls contain. Runs that diverged are
    left out, and counted in the legend.
    """
    panels = arrange(experiment.accuracies)
    curves = {row: intervals(experiment, row) for row in experiment.accuracies}
    looks = _looks(experiment.accuracies)
    width = min(2, len(panels))
    height = -(-len(panels) // width)
    figure = Figure(figsize=(WIDTH, 0.5 + 2.5 * height), layout="constrained")
    places = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False)
    for place, (about, rows) in zip(places.flat, panels.items(), strict=False):
        place.set_title(about)
        for row in rows:
            _draw_curve(place, curves[row], _name(experiment, row), looks[row])
        place.grid(axis="y", color=FAINT, linewidth=0.5)
        place.legend(loc="lower right", fontsize=6.5, handlelength=3.0, frameon=True, edgecolor="none")
        place.tick_params(labelbottom=True)
    for place in places.flat[len(panels) :]:
        place.set_axis_off()
    for place in places[:, 0]:
        place.set_ylabel(f"{experiment.pictures} accuracy, %")
    for place in places.flat[-width:]:
        place.set_xlabel("epoch")
    places[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    _see_the_ends(places[0, 0], [[point.mean for point in curve] for curve in curves.values() if curve])
    figure.suptitle(f"{experiment.name}: mean and 95 % interval, {experiment.seeds}")
    return figure


def arrange(rows: Sequence[str] | Mapping[str, Any]) -> dict[str, list[str]]:
    """Which rows stand together: hulls of the same bases with the fixed activations in them; then those in none.

    >>> arrange(["relu", "gelu", "convex(identity,relu)", "affine(identity,relu)"])
    {'identity,relu': ['convex(identity,relu)', 'affine(identity,relu)', 'relu'], 'fixed': ['gelu']}
    """
    parsed = {row: Row.parse(row) for row in rows}
    fixed = [row for row in rows if not parsed[row].learns]
    panels: dict[str, list[str]] = {}
    for row in rows:
        if parsed[row].learns:
            panels.setdefault(row.partition("(")[2].removesuffix(")"), []).append(row)
    for together in panels.values():
        bases = set(parsed[together[0]].bases)
        together += [row for row in fixed if bases.issuperset(parsed[row].start)]
    alone = [row for row in fixed if not any(row in together for together in panels.values())]
    return panels | ({"fixed": alone} if alone else {})


def intervals(experiment: Experiment, row: str) -> list[Interval]:
    """What the runs of a row that did not diverge had reached after each epoch."""
    runs = [
        r.test_accuracy[: experiment.epoch] for r in experiment.records if r.spec.activation == row and not r.diverged
    ]
    return [Interval.of(reached) for reached in zip(*runs, strict=True)]


def _name(experiment: Experiment, row: str) -> str:
    cell = experiment.cells[row]
    return f"{row} ({cell.diverged} of {cell.accuracy.count} diverged)" if cell.diverged else row


def _looks(rows: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Hulls by their kind; each fixed activation in its own way, the same in all panels."""
    looks = {row: KINDS[kind] for row in rows if (kind := row.partition("(")[0]) in KINDS}
    for i, row in enumerate(row for row in rows if row not in looks):
        colour, line = FIXED_COLOURS[i % len(FIXED_COLOURS)], FIXED_LINES[i % len(FIXED_LINES)]
        looks[row] = {"color": colour, "linestyle": line, "linewidth": 1.1}
    return looks


def _draw_curve(panel: Axes, curve: Sequence[Interval], name: str, look: dict[str, Any]) -> None:
    epochs = range(1, len(curve) + 1)
    panel.plot(epochs, [point.mean for point in curve], label=name, **look)
    if curve and curve[0].half is not None:
        low, high = ([getattr(point, end) for point in curve] for end in ("low", "high"))
        panel.fill_between(epochs, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _see_the_ends(panel: Axes, means: Sequence[Sequence[float]]) -> None:
    """Show where all curves end; how they began, far below, and wide intervals may leave the view."""
    if means:
        ends, top = [curve[-1] for curve in means], max(max(curve) for curve in means)
        spread = max(VIEW, top - min(ends))
        panel.set_ylim(max(0.0, min(ends) - spread), min(100.0, top + 0.2 * spread))


def draw_final(experiment: Experiment) -> Figure:
    """Accuracy at the end as dots: every run, their mean with its 95 % interval, and what the paper reports.

    Runs that diverged count as they ended, as in the table; those that lie far off are counted, not shown.
    """
    cells = list(experiment.cells.values())
    figure = Figure(figsize=(0.85 * WIDTH, 1.1 + 0.25 * len(cells)), layout="constrained")
    panel = figure.subplots()
    whole = experiment.setting.data.removesuffix(SAMPLE)
    paper = "the paper" if whole == experiment.setting.data else f"the paper, on all of {whole}"
    several = any(cell.accuracy.count > 1 for cell in cells)
    seen = []
    for y, cell in enumerate(cells):
        runs = [r for r in experiment.records if r.spec.activation == cell.row]
        sound = [experiment.accuracies[cell.row][r.spec.seed] for r in runs if not r.diverged]
        colour = KINDS.get(cell.row.partition("(")[0], {"color": "black"})["color"]
        look = {"fmt": "o", "color": colour, "markersize": 4.5, "capsize": 2.5, "zorder": 3}
        mean = "mean and 95 % interval" if several else "the run"
        panel.errorbar(cell.accuracy.mean, y, xerr=cell.accuracy.half, **look, label=mean)
        if several:
            panel.plot(sound, [y + 0.25] * len(sound), ".", color=GREY, markersize=4, label="a run")
        if cell.published is not None:
            panel.plot(cell.published, y, "D", color=COLOURS[3], markerfacecolor="white", markersize=4.5, label=paper)
        seen += [cell.accuracy.mean, *sound, cell.published or cell.accuracy.mean]
    panel.set_yticks(range(len(cells)), [_name(experiment, cell.row) for cell in cells])
    panel.invert_yaxis()
    margin = max(0.08 * (max(seen) - min(seen)), 0.3)
    panel.set_xlim(min(seen) - margin, max(seen) + margin)
    panel.grid(axis="x", color=FAINT, linewidth=0.5)
    panel.set_xlabel(f"{experiment.pictures} accuracy, %")
    handles, names = panel.get_legend_handles_labels()
    keys = dict(zip(reversed(names), reversed(handles), strict=True))  # one a name: the first that was drawn
    figure.legend(keys.values(), keys.keys(), loc="outside lower center", ncols=len(keys), handletextpad=0.3)
    figure.suptitle(f"{experiment.name}: after {experiment.time}, {experiment.seeds}")
    return figure
