"""Tables of benchmark results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from hullo.lab.bench.cases import Case
from hullo.lab.bench.contenders import label
from hullo.lab.bench.rows import Row

DIRECTIONS = ("forward", "backward", "both")


class Results:
    """Rows of one kind, by case, activation and direction."""

    def __init__(self, rows: Iterable[Row], kind: str) -> None:
        self.rows = {(row.case, row.activation, row.direction): row for row in rows if row.kind == kind}
        self.cases = list(dict.fromkeys(case for case, _, _ in self.rows))
        self.activations = list(dict.fromkeys(activation for _, activation, _ in self.rows))

    @property
    def largest(self) -> list[Case]:
        """Return the cases of the largest input, one per dtype, one-dimensional ones if there are any."""
        flat = [case for case in self.cases if len(case.shape) == 1] or self.cases
        elements = max((math.prod(case.shape) for case in flat), default=0)
        return [case for case in flat if math.prod(case.shape) == elements]

    def get(self, case: Case, activation: str, direction: str) -> Row | None:
        return self.rows.get((case, activation, direction))

    def milliseconds(self, case: Case, activation: str, direction: str) -> float:
        row = self.get(case, activation, direction)
        return row.median_ms if row else math.nan

    def floors(self, case: Case, activation: str, direction: str) -> float:
        row = self.get(case, activation, direction)
        return row.floors if row else math.nan

    def gelus(self, case: Case, activation: str, direction: str) -> float:
        """Return the time as a multiple of GELU's."""
        return self.milliseconds(case, activation, direction) / self.milliseconds(case, "gelu", direction)

    def inputs_held(self, case: Case, activation: str) -> float:
        row = self.get(case, activation, "forward")
        return row.inputs_held if row else math.nan

    def kernels(self, case: Case, activation: str) -> str:
        """Return the number of kernels of the forward and the backward pass, "1 + 2"; "-" if unknown."""
        counts = [row.kernels for way in DIRECTIONS[:2] if (row := self.get(case, activation, way))]
        return "-" if None in counts else " + ".join(map(str, counts))


def terminal_tables(rows: Sequence[Row]) -> list[Table]:
    """Return a table per kind and case: milliseconds, multiples of the floor and of GELU, and inputs held."""
    return [
        _terminal_table(results, case, kind)
        for kind in dict.fromkeys(row.kind for row in rows)
        for results in [Results(rows, kind)]
        for case in results.cases
    ]


def _terminal_table(results: Results, case: Case, kind: str) -> Table:
    title = {"eager": str(case), "graph": f"{case} in a CUDA graph", "overhead": "one tiny call"}[kind]
    table = Table("activation", title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for direction in DIRECTIONS:
        for unit in ("ms", "/floor", "/GELU"):
            table.add_column(f"{direction}\n{unit}" if unit == "ms" else f"\n{unit}", justify="right", no_wrap=True)
    table.add_column("inputs\nheld" if kind == "eager" else "kernels", justify="right")
    for activation in results.activations:
        cells = []
        for direction in DIRECTIONS:
            key = (case, activation, direction)
            cells += [results.milliseconds(*key), results.floors(*key), results.gelus(*key)]
        held = number(results.inputs_held(case, activation))
        last = held if kind == "eager" else results.kernels(case, activation)
        table.add_row(label(activation), *map(number, cells), last)
    return table


def number(value: float) -> str:
    """Return a number with three digits, "-" for None.

    >>> number(1.0432), number(0.00731), number(281.3), number(float("nan"))
    ('1.04', '0.00731', '281', '-')
    """
    if math.isnan(value):
        return "-"
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 2
    return f"{value:.{max(0, digits)}f}"
