"""The results of the benchmark: rows of a CSV file, each with its environment; tables and a chart of them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from hullo.lab.bench.cases import Case, label
from hullo.lab.spec.environment import Environment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECTIONS = ("forward", "backward", "both")
STYLES: dict[str, dict[str, Any]] = {
    "forward": {"color": "#0072B2", "marker": "o"},
    "backward": {"color": "#D55E00", "marker": "s"},
}
SHIFT = 0.17
TICKS = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 30.0, 50.0, 70.0, 100.0, 200.0, 500.0, 1000.0)


@dataclass(frozen=True)
class Measurement(Environment):
    """One measurement.

    kind is "eager" or "overhead" (the time of Python, on a tiny input); direction is "forward", "backward" (for x and
    the coefficients) or "both". Earlier versions also measured "graph", a call in a CUDA graph, and its kernels.
    """

    kind: str
    shape: str
    dtype: str
    layout: str
    groups: int
    activation: str
    direction: str
    median_ms: float
    p10_ms: float
    p90_ms: float
    repeats: int
    bytes_moved: int | None = None
    bandwidth_gb_s: float | None = None
    floor_ms: float | None = None
    held_bytes: int | None = None
    peak_bytes: int | None = None
    kernels: int | None = None

    @property
    def case(self) -> Case:
        return Case(tuple(map(int, self.shape.split("x"))), self.dtype, self.layout, self.groups)

    @property
    def floors(self) -> float:
        """Return the time as a multiple of the bandwidth floor."""
        return self.median_ms / self.floor_ms if self.floor_ms else math.nan

    @property
    def inputs_held(self) -> float:
        """Return the memory held for the backward pass as a multiple of the input."""
        return math.nan if self.held_bytes is None else self.held_bytes / self.case.input_bytes


COLUMNS = tuple(field.name for field in fields(Measurement))
_PARSERS = {"int": int, "float": float, "int | None": int, "float | None": float, "str": str}


def write_rows(path: Path, rows: Iterable[Measurement]) -> None:
    """Write rows to a CSV file, replacing it."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _format(value) for name, value in asdict(row).items()} for row in rows)


def read_rows(path: Path) -> list[Measurement]:
    """Read the rows of a file; raise a ValueError if a column of :class:`Measurement` is missing."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = set(COLUMNS) - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path} lacks the columns {', '.join(sorted(missing))}; measure again with: hullo bench")
        return [
            Measurement(**{field.name: _parse(line[field.name], str(field.type)) for field in fields(Measurement)})
            for line in reader
        ]


def _format(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _parse(text: str, kind: str) -> Any:
    return None if not text and kind.endswith("None") else _PARSERS[kind](text)


class Results:
    """Rows of one kind, by case, activation and direction."""

    def __init__(self, rows: Iterable[Measurement], kind: str) -> None:
        self.rows = {(row.case, row.activation, row.direction): row for row in rows if row.kind == kind}
        self.cases = list(dict.fromkeys(case for case, _, _ in self.rows))
        self.activations = list(dict.fromkeys(activation for _, activation, _ in self.rows))

    @property
    def largest(self) -> list[Case]:
        """Return the cases of the largest input, one per dtype, one-dimensional ones if there are any."""
        flat = [case for case in self.cases if len(case.shape) == 1] or self.cases
        elements = max((math.prod(case.shape) for case in flat), default=0)
        return [case for case in flat if math.prod(case.shape) == elements]

    def get(self, case: Case, activation: str, direction: str) -> Measurement | None:
        return self.rows.get((case, activation, direction))

    def _number(self, name: str, case: Case, activation: str, direction: str) -> float:
        row = self.get(case, activation, direction)
        return float(getattr(row, name)) if row else math.nan

    def milliseconds(self, case: Case, activation: str, direction: str) -> float:
        return self._number("median_ms", case, activation, direction)

    def floors(self, case: Case, activation: str, direction: str) -> float:
        return self._number("floors", case, activation, direction)

    def gelus(self, case: Case, activation: str, direction: str) -> float:
        """Return the time as a multiple of GELU's."""
        return self.milliseconds(case, activation, direction) / self.milliseconds(case, "gelu", direction)

    def inputs_held(self, case: Case, activation: str) -> float:
        return self._number("inputs_held", case, activation, "forward")


def terminal_tables(rows: Sequence[Measurement]) -> list[Table]:
    """Return a table per kind and case: milliseconds, multiples of the floor and of GELU, and inputs held."""
    return [
        _terminal_table(results, case, kind)
        for kind in dict.fromkeys(row.kind for row in rows)
        for results in [Results(rows, kind)]
        for case in results.cases
    ]


def _terminal_table(results: Results, case: Case, kind: str) -> Table:
    title = {"eager": str(case), "overhead": "one tiny call"}[kind]
    table = Table("activation", title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for direction in DIRECTIONS:
        for unit in ("ms", "/floor", "/GELU"):
            table.add_column(f"{direction}\n{unit}" if unit == "ms" else f"\n{unit}", justify="right", no_wrap=True)
    table.add_column("inputs\nheld", justify="right")
    for activation in results.activations:
        cells = []
        for direction in DIRECTIONS:
            key = (case, activation, direction)
            cells += [results.milliseconds(*key), results.floors(*key), results.gelus(*key)]
        cells.append(results.inputs_held(case, activation))
        table.add_row(label(activation), *map(number, cells))
    return table


def number(value: float) -> str:
    """Return a number with three digits, "-" for NaN.

    >>> number(1.0432), number(0.00731), number(281.3), number(float("nan"))
    ('1.04', '0.00731', '281', '-')
    """
    if math.isnan(value):
        return "-"
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 2
    return f"{value:.{max(0, digits)}f}"


def draw_chart(rows: Sequence[Measurement], path: Path, *, dark: bool = False) -> None:
    """Draw multiples of the bandwidth floor on the largest input, a panel per dtype, with 10th to 90th percentiles.

    The axis is logarithmic: 1.0 and 1.5 are distinguishable, however slow the slowest is. With `dark`, also write an
    image for dark pages, whose name ends in "-dark".
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    from hullo.lab.analysis.figures import style

    results = Results(rows, "eager")
    cases = results.largest
    with style.drawing():
        size = (1.2 + 3.0 * len(cases), 1.2 + 0.36 * len(results.activations))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(cases), sharex=True, sharey=True, squeeze=False)[0]
        for panel, case in zip(panels, cases, strict=True):
            _draw_panel(panel, results, case)
        panels[0].set_xscale("log")
        panels[0].xaxis.set_major_locator(FixedLocator(TICKS))
        panels[0].xaxis.set_minor_locator(NullLocator())
        panels[0].xaxis.set_major_formatter("{x:g}")
        panels[0].set_yticks(range(len(results.activations)), [label(name) for name in results.activations])
        panels[0].set_ylim(len(results.activations) - 0.5, -0.5)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper right", ncols=2)
        figure.suptitle(rows[0].device, x=0.01, horizontalalignment="left")
        figure.supxlabel("time as a multiple of the bandwidth floor (dashed), logarithmic", fontsize=8.0)
        style.save(figure, path.with_suffix(""), ["png"], dark=dark)


def _draw_panel(panel: Axes, results: Results, case: Case) -> None:
    for side, (direction, look) in zip((-SHIFT, SHIFT), STYLES.items(), strict=True):
        rows = [(i + side, results.get(case, name, direction)) for i, name in enumerate(results.activations)]
        measured = [(y, row) for y, row in rows if row is not None]
        below = [row.floors * (1 - row.p10_ms / row.median_ms) for _, row in measured]
        above = [row.floors * (row.p90_ms / row.median_ms - 1) for _, row in measured]
        floors, positions = [row.floors for _, row in measured], [y for y, _ in measured]
        panel.errorbar(
            floors, positions, xerr=(below, above), **look, markersize=4.5, linestyle="none", label=direction
        )
        for (y, row), more in zip(measured, above, strict=True):
            end = (row.floors + more, y)  # beside the marker and its interval
            panel.annotate(number(row.floors), end, (6, 0), textcoords="offset points", va="center", fontsize=6.5)
    panel.axvline(1.0, color="black", linewidth=0.8, linestyle="--", zorder=0)
    panel.grid(axis="x", color="#D9D9D9", linewidth=0.5)
    panel.set_axisbelow(True)
    panel.margins(x=0.15)
    panel.set_title(str(case))
