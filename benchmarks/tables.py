"""The tables of benchmarks/README.md, from the rows in benchmarks/results; tools/blocks.py writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import peer_rows

from hullo.lab.bench.cases import Case, label
from hullo.lab.bench.results import Measurement, Results, number, read_rows

Lines = Iterator[Sequence[str]]


def cost(rows: Sequence[Measurement]) -> Lines:
    """Show the largest flat input: multiples of the bandwidth floor and of GELU in every dtype, and the memory held."""
    results = Results(rows, "eager")
    measures: list[tuple[str, Callable[[Case, str], float]]] = [
        ("forward / floor", lambda case, name: results.floors(case, name, "forward")),
        ("backward / floor", lambda case, name: results.floors(case, name, "backward")),
        ("both / GELU", lambda case, name: results.gelus(case, name, "both")),
    ]
    columns = [(case, title, measure) for case in results.largest for title, measure in measures]
    yield ["", *(f"{case.dtype} {title}" for case, title, _ in columns), "inputs held"]
    for name in results.activations:
        held = max(results.inputs_held(case, name) for case in results.largest)
        yield [label(name), *(number(measure(case, name)) for case, _, measure in columns), number(held)]


def groups(rows: Sequence[Measurement]) -> Lines:
    """Show inputs with channels, by groups and layout: multiples of the bandwidth floor."""
    results = Results(rows, "eager")
    cases = [case for case in results.cases if len(case.shape) > 1]
    columns = [
        (dtype, direction)
        for dtype in dict.fromkeys(case.dtype for case in cases)
        for direction in ("forward", "backward")
    ]
    yield ["shape", "groups", "layout", "", *(f"{dtype} {direction}" for dtype, direction in columns)]
    for shape, count, layout in dict.fromkeys((case.shape, case.groups, case.layout) for case in cases):
        for name in results.activations:
            cells = [results.floors(Case(shape, dtype, layout, count), name, direction) for dtype, direction in columns]
            yield ["x".join(map(str, shape)), str(count), layout, label(name), *map(number, cells)]


def graph(rows: Sequence[Measurement]) -> Lines:
    """Show small inputs inside a CUDA graph: microseconds, multiples of GELU, kernels."""
    results = Results(rows, "graph")
    yield ["input", "", "forward, µs", "/ GELU", "backward, µs", "/ GELU", "kernels"]
    for case in results.cases:
        for name in results.activations:
            kernels = [results.rows[case, name, direction].kernels for direction in ("forward", "backward")]
            yield [str(case), label(name), *_microseconds(results, case, name), " + ".join(map(str, kernels))]


def overhead(rows: Sequence[Measurement]) -> Lines:
    """Show the overhead of Python per call: microseconds, multiples of GELU."""
    results = Results(rows, "overhead")
    yield ["", "forward, µs", "/ GELU", "backward, µs", "/ GELU"]
    for case in results.cases:
        for name in results.activations:
            yield [label(name), *_microseconds(results, case, name)]


def _microseconds(results: Results, case: Case, name: str) -> list[str]:
    return [
        number(value)
        for direction in ("forward", "backward")
        for value in (1e3 * results.milliseconds(case, name, direction), results.gelus(case, name, direction))
    ]


TABLES: dict[str, tuple[Callable[[Path], Sequence[Any]], Callable[[Sequence[Any]], Lines]]] = {
    "bench-cost": (read_rows, cost),
    "bench-groups": (read_rows, groups),
    "bench-graph": (read_rows, graph),
    "bench-overhead": (read_rows, overhead),
    "peers": (peer_rows.read_measured, peer_rows.peers),
    "peers-factors": (peer_rows.read_measured, peer_rows.factors),
    "peers-brief": (peer_rows.read_measured, peer_rows.brief),
}
"""Functions that read a file and that make a table of its rows, by the name of the block."""


def make_table(name: str, path: Path) -> str:
    """Return a table of the rows in a file, and the environments that they were measured in."""
    read, table = TABLES[name]
    rows = read(path)
    head, *body = table(rows)
    lines = [head, ["---"] * len(head), *body]
    where = "<br>".join(dict.fromkeys(map(str, rows)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + f"\n\n<sub>{where}</sub>"
