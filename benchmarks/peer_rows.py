"""The rows that population_work.py writes, and the tables generated from them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rows import number, read_rows

from hullo.lab.spec.environment import Environment

SINGLE = ("graph", "graph, channels last", "compile", "compile, graph")
"""Contenders of one network, which are measured once: K networks take K times as long."""
MARK = "†"
"""Marks a peer that was measured with another commit, or another number of threads, than hullo beside it."""


@dataclass(frozen=True)
class PeerRow(Environment):
    """One contender: milliseconds and MiB per network of a training step of so many members.

    A row is `added` if it was put into the file later, from another process than the others of its network. A
    contender that failed has a `note` that says why, and no times.
    """

    network: str
    members: int
    contender: str
    ms: float
    mib: float
    added: bool = False
    note: str = ""

    def is_beside(self, other: PeerRow) -> bool:
        """Return whether another row was measured with the same hardware, versions and commit."""
        return str(self) == str(other)


def read_peers(path: Path) -> list[PeerRow]:
    """Return the rows of a file, none if it is not there."""
    return read_rows(path, PeerRow) if path.exists() else []


def read_measured(path: Path) -> list[PeerRow]:
    """Return the rows of a file that have times."""
    return [row for row in read_peers(path) if not row.note]


def add_peers(path: Path, rows: Sequence[PeerRow]) -> None:
    """Append rows to a file."""
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [item.name for item in fields(PeerRow)], lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows(asdict(row) | {"added": int(row.added)} for row in rows)


def peers(rows: Sequence[PeerRow]) -> Iterator[Sequence[str]]:
    """Yield every contender: milliseconds per network and step, and MiB per network, by the number of members."""
    counts = sorted({row.members for row in rows})
    yield ["network", "", *(f"K = {count}, ms" for count in counts), *(f"K = {count}, MiB" for count in counts)]
    by_key = {(row.network, row.contender, row.members): row for row in rows}
    for network, contender in dict.fromkeys((row.network, row.contender) for row in _by_members(rows)):
        cells = [by_key.get((network, contender, count)) for count in counts]
        times, sizes = ([_spell(row, name) if row else "" for row in cells] for name in ("ms", "mib"))
        yield [network, contender, *times, *sizes]


def _spell(row: PeerRow, name: str) -> str:
    """Return a figure, in italics if its row was added later."""
    return f"*{number(getattr(row, name))}*" if row.added else number(getattr(row, name))


def factors(rows: Sequence[PeerRow]) -> Iterator[Sequence[str]]:
    """Compare hullo in a graph with the best peer, and with an eager loop that was measured beside it."""
    yield [
        "",
        "K",
        "hullo, ms",
        "eager loop, ms",
        "factor",
        "best peer",
        "ms",
        "factor",
        "hullo, MiB",
        "best peer, MiB",
    ]
    for network, count in dict.fromkeys((row.network, row.members) for row in _by_members(rows)):
        cell = {row.contender: row for row in rows if (row.network, row.members) == (network, count)}
        single = {row.contender: row for row in rows if row.network == network and row.contender in SINGLE}
        hullo_row, loop = cell["hullo, graph"], cell.get("eager loop")
        best = min((row for name, row in (single | cell).items() if "hullo" not in name), key=lambda row: row.ms)
        over_loop = ["", ""]
        if loop and loop.is_beside(hullo_row):
            over_loop = [number(loop.ms), number(loop.ms / hullo_row.ms)]
        mark = "" if best.is_beside(hullo_row) else f" {MARK}"
        over_best = [best.contender + mark, number(best.ms), number(best.ms / hullo_row.ms)]
        yield [
            network,
            str(count),
            number(hullo_row.ms),
            *over_loop,
            *over_best,
            number(hullo_row.mib),
            number(best.mib),
        ]


def brief(rows: Sequence[PeerRow]) -> Iterator[Sequence[str]]:
    """Yield the factors of the largest populations."""
    most = max(row.members for row in rows)
    _, *lines = factors(rows)
    chosen = [0, 2, 5, 7]  # network, hullo, best peer, factor
    yield ["", f"ms per step and network, {most} networks", "best peer", "times as fast"]
    yield from ([line[index] for index in chosen] for line in lines if line[1] == str(most))


def _by_members(rows: Sequence[PeerRow]) -> list[PeerRow]:
    """Return rows by network, in the order in which networks come, and by members."""
    networks = list(dict.fromkeys(row.network for row in rows))
    return sorted(rows, key=lambda row: (networks.index(row.network), row.members))
