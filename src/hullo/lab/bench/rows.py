"""Measurements as rows of a CSV file, each with its environment: machine and versions."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from hullo.lab.bench.cases import Case
from hullo.lab.files import check_regular, make_directory, open_regular
from hullo.lab.spec.environment import Environment


@dataclass(frozen=True)
class Row(Environment):
    """One measurement.

    kind is "eager" (a call as one writes it), "graph" (a call in a CUDA graph) or "overhead" (what Python spends on a
    call, with next to nothing to compute); direction is "forward", "backward" (of x and of the coefficients) or "both".
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


COLUMNS = tuple(field.name for field in fields(Row))
_PARSERS = {"int": int, "float": float, "int | None": int, "float | None": float, "str": str}


class RowFile:
    """A CSV file to which rows are appended at once, so that an interrupted session keeps its results."""

    def __init__(self, path: Path) -> None:
        make_directory(path.parent)
        with suppress(FileNotFoundError):
            check_regular(path.stat(), path)
        self._file = path.open("w", newline="")
        self._writer = csv.DictWriter(self._file, COLUMNS, lineterminator="\n")
        self._writer.writeheader()

    def add(self, rows: Iterable[Row]) -> None:
        self._writer.writerows({name: _shown(value) for name, value in asdict(row).items()} for row in rows)
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file; raise a ValueError if a column of :class:`Row` is missing."""
    with io.TextIOWrapper(open_regular(path), "utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = set(COLUMNS) - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path} lacks the columns {', '.join(sorted(missing))}; measure again with: hullo bench")
        return [
            Row(**{field.name: _parsed(line[field.name], str(field.type)) for field in fields(Row)}) for line in reader
        ]


def _shown(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _parsed(text: str, kind: str) -> Any:
    return None if not text and kind.endswith("None") else _PARSERS[kind](text)
