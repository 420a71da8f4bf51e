"""The rows that activations.py writes, and the tables generated from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from rows import number

from hullo.lab.spec.environment import Environment

LABELS = {
    "relu": "ReLU",
    "gelu": "GELU",
    "prelu": "PReLU",
    "plain": "hull, plain PyTorch",
    "compiled": "hull, torch.compile",
    "hullo": "hull, hullo",
    "hullo6": "six bases, hullo",
}
Lines = Iterator[Sequence[str]]


class Case(NamedTuple):
    """An input: its shape, dtype, memory format, and the number of groups of its channels (dimension 1)."""

    shape: tuple[int, ...]
    dtype: str
    layout: str = "contiguous"
    groups: int = 1

    def __str__(self) -> str:
        if len(self.shape) > 1:
            groups = f"/{self.groups}" if self.groups > 1 else ""
            return f"{'x'.join(map(str, self.shape))}{groups} {self.dtype} {self.layout}"
        exponent = self.shape[0].bit_length() - 1
        return f"{f'2^{exponent}' if self.shape[0] == 2**exponent else self.shape[0]} {self.dtype}"

    @property
    def input_bytes(self) -> int:
        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)


@dataclass(frozen=True)
class ActivationRow(Environment):
    """The time of one pass of an activation; the columns are described in README.md."""

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


class Results:
    """Rows of one kind, by case, activation and direction."""

    def __init__(self, rows: Sequence[ActivationRow], kind: str) -> None:
        self.rows = {(row.case, row.activation, row.direction): row for row in rows if row.kind == kind}
        self.cases = list(dict.fromkeys(case for case, _, _ in self.rows))
        self.activations = list(dict.fromkeys(activation for _, activation, _ in self.rows))

    @property
    def largest(self) -> list[Case]:
        """Return the cases of the largest input, one per dtype, one-dimensional ones if there are any."""
        flat = [case for case in self.cases if len(case.shape) == 1] or self.cases
        elements = max((math.prod(case.shape) for case in flat), default=0)
        return [case for case in flat if math.prod(case.shape) == elements]

    def get(self, name: str, case: Case, activation: str, direction: str) -> float:
        """Return a figure of a row, NaN if there is none."""
        row = self.rows.get((case, activation, direction))
        return float(getattr(row, name)) if row else math.nan

    def gelus(self, case: Case, activation: str, direction: str) -> float:
        """Return the time as a multiple of GELU's."""
        times = (self.get("median_ms", case, name, direction) for name in (activation, "gelu"))
        return next(times) / next(times)


def cost(rows: Sequence[ActivationRow]) -> Lines:
    """Show the largest flat input: multiples of the bandwidth floor and of GELU in every dtype, and the memory held."""
    results = Results(rows, "eager")
    measures: list[tuple[str, Callable[[Case, str], float]]] = [
        ("forward / floor", lambda case, name: results.get("floors", case, name, "forward")),
        ("backward / floor", lambda case, name: results.get("floors", case, name, "backward")),
        ("both / GELU", lambda case, name: results.gelus(case, name, "both")),
    ]
    columns = [(case, title, measure) for case in results.largest for title, measure in measures]
    yield ["", *(f"{case.dtype} {title}" for case, title, _ in columns), "inputs held"]
    for name in results.activations:
        held = max(results.get("inputs_held", case, name, "forward") for case in results.largest)
        yield [LABELS[name], *(number(measure(case, name)) for case, _, measure in columns), number(held)]


def groups(rows: Sequence[ActivationRow]) -> Lines:
    """Show inputs with channels, by groups and layout: multiples of the bandwidth floor."""
    results = Results(rows, "eager")
    cases = [case for case in results.cases if len(case.shape) > 1]
    columns = [
        (dtype, direction)
        for dtype in dict.fromkeys(case.dtype for case in cases)
        for direction in ("forward", "backward")
    ]
    yield ["shape", "groups", "layout", "", *(f"{dtype} {direction}" for dtype, direction in columns)]
    for case in dict.fromkeys(case._replace(dtype="") for case in cases):
        for name in results.activations:
            cells = [results.get("floors", case._replace(dtype=dtype), name, direction) for dtype, direction in columns]
            shape = "x".join(map(str, case.shape))
            yield [shape, str(case.groups), case.layout, LABELS[name], *map(number, cells)]


def overhead(rows: Sequence[ActivationRow]) -> Lines:
    """Show the overhead of Python per call: microseconds, multiples of GELU."""
    results = Results(rows, "overhead")
    yield ["", "forward, µs", "/ GELU", "backward, µs", "/ GELU"]
    for case in results.cases:
        for name in results.activations:
            figures = [
                (1e3 * results.get("median_ms", case, name, direction), results.gelus(case, name, direction))
                for direction in ("forward", "backward")
            ]
            yield [LABELS[name], *(number(figure) for pair in figures for figure in pair)]
