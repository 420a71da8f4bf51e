"""The tables of benchmarks/README.md, from the rows in benchmarks/results; tools/blocks.py writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import activation_rows
import peer_rows
from rows import read_rows

Lines = Iterator[Sequence[str]]

read_activations = partial(read_rows, kind=activation_rows.ActivationRow)
TABLES: dict[str, tuple[Callable[[Path], Sequence[Any]], Callable[[Sequence[Any]], Lines]]] = {
    "bench-cost": (read_activations, activation_rows.cost),
    "bench-groups": (read_activations, activation_rows.groups),
    "bench-graph": (read_activations, activation_rows.graph),
    "bench-overhead": (read_activations, activation_rows.overhead),
    "peers": (peer_rows.read_measured, peer_rows.peers),
    "peers-factors": (peer_rows.read_measured, peer_rows.factors),
    "peers-brief": (peer_rows.read_measured, peer_rows.brief),
}
"""Functions that read a file and that make a table of its rows, by the name of the block."""


def make_table(name: str, path: Path) -> str:
    """Return a table of the rows in a file, and the environments that they were measured in."""
    read, table = TABLES[name]
    rows = read(path)
    where = "<br>".join(dict.fromkeys(map(str, rows)))
    return f"{format_table(table(rows))}\n\n<sub>{where}</sub>"


def format_table(lines: Iterable[Sequence[str]]) -> str:
    """Return lines of cells, the first with the titles, as a table."""
    head, *body = lines
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))
