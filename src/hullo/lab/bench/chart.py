"""Bar chart of benchmark results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hullo.lab.bench.cases import Case
from hullo.lab.bench.contenders import label
from hullo.lab.bench.rows import Row
from hullo.lab.bench.tables import Results, number
from hullo.lab.files import atomic_write

COLOURS = {"forward": "#0072B2", "backward": "#E69F00"}  # told apart by every kind of colour vision, and in grey
THICKNESS = 0.38


def draw_chart(rows: Sequence[Row], path: Path) -> None:
    """Draw multiples of the bandwidth floor on the largest input, a panel per dtype, with 10th to 90th percentiles."""
    results = Results(rows, "eager")
    cases = results.largest
    with rc_context({"font.family": "DejaVu Sans", "font.size": 9.0}):
        figure = Figure(
            figsize=(1.2 + 3.6 * len(cases), 1.4 + 0.5 * len(results.activations)), layout="constrained", dpi=150
        )
        canvas = FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(cases), sharey=True, squeeze=False)[0]
        for panel, case in zip(panels, cases, strict=True):
            _draw_panel(panel, results, case)
        panels[0].set_yticks(range(len(results.activations)), [label(name) for name in results.activations])
        panels[0].invert_yaxis()
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper right", ncols=2, frameon=False)
        figure.suptitle(rows[0].device, x=0.01, horizontalalignment="left", fontsize=10.0)
        figure.supxlabel("time as a multiple of the bandwidth floor (dashed)", fontsize=9.0)
        with atomic_write(path) as file:  # without metadata the same rows give the same bytes
            canvas.print_png(file, metadata={"Software": None})  # type: ignore[no-untyped-call]


def _draw_panel(panel: Axes, results: Results, case: Case) -> None:
    for side, (direction, colour) in zip((-0.5, 0.5), COLOURS.items(), strict=True):
        found = [(i, results.get(case, name, direction)) for i, name in enumerate(results.activations)]
        measured = [(i + side * THICKNESS, row) for i, row in found if row is not None]
        places = [place for place, _ in measured]
        lengths = [row.floors for _, row in measured]
        below = [row.floors * (1 - row.p10_ms / row.median_ms) for _, row in measured]
        above = [row.floors * (row.p90_ms / row.median_ms - 1) for _, row in measured]
        bars = panel.barh(
            places, lengths, THICKNESS, xerr=(below, above), color=colour, label=direction, ecolor="#444444"
        )
        panel.bar_label(bars, [number(length) for length in lengths], padding=4, fontsize=8)
    panel.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    panel.margins(x=0.15)
    panel.set_title(str(case), fontsize=9.0)
    panel.spines[["top", "right"]].set_visible(False)
