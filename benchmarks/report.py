"""Make the tables and charts of benchmarks/README.md from the rows in benchmarks/results.

    python benchmarks/report.py           write them
    python benchmarks/report.py --check   check that they are what the rows say

A table stands between `<!-- bench:cpu -->` and `<!-- /bench -->`; `cpu` names the file of rows, and a second word the
table: `<!-- bench:gpu groups -->`. The words are the keys of TABLES, or of PEER_TABLES for the file population_peers;
without one it is "cost".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import peer_rows

from hullo.lab.bench.cases import Case
from hullo.lab.bench.chart import draw_chart
from hullo.lab.bench.contenders import label
from hullo.lab.bench.rows import Row, read_rows
from hullo.lab.bench.tables import Results, number

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "benchmarks/README.md")
MARKED = re.compile(r"(<!-- bench:(\w+)(?: (\w+))? -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)

Lines = Iterator[Sequence[str]]


def cost(rows: Sequence[Row]) -> Lines:
    """The largest flat input: multiples of the bandwidth floor and of GELU in every type, and the memory held."""
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


def groups(rows: Sequence[Row]) -> Lines:
    """Inputs with channels, by groups and layout: multiples of the bandwidth floor."""
    results = Results(rows, "eager")
    cases = [case for case in results.cases if len(case.shape) > 1]
    columns = [(dtype, way) for dtype in dict.fromkeys(case.dtype for case in cases) for way in ("forward", "backward")]
    yield ["shape", "groups", "layout", "", *(f"{dtype} {way}" for dtype, way in columns)]
    for shape, count, layout in dict.fromkeys((case.shape, case.groups, case.layout) for case in cases):
        for name in results.activations:
            cells = [results.floors(Case(shape, dtype, layout, count), name, way) for dtype, way in columns]
            yield ["x".join(map(str, shape)), str(count), layout, label(name), *map(number, cells)]


def graph(rows: Sequence[Row]) -> Lines:
    """Small inputs inside a CUDA graph: microseconds, multiples of GELU, kernels."""
    results = Results(rows, "graph")
    yield ["input", "", "forward, µs", "/ GELU", "backward, µs", "/ GELU", "kernels"]
    for case in results.cases:
        for name in results.activations:
            yield [str(case), label(name), *_microseconds(results, case, name), results.kernels(case, name)]


def overhead(rows: Sequence[Row]) -> Lines:
    """What Python spends on one call: microseconds, multiples of GELU."""
    results = Results(rows, "overhead")
    yield ["", "forward, µs", "/ GELU", "backward, µs", "/ GELU"]
    for case in results.cases:
        for name in results.activations:
            yield [label(name), *_microseconds(results, case, name)]


TABLES: dict[str, Callable[[Sequence[Row]], Lines]] = {
    "cost": cost,
    "groups": groups,
    "graph": graph,
    "overhead": overhead,
}
PEERS = "population_peers"
PEER_TABLES = {"peers": peer_rows.peers, "factors": peer_rows.factors, "brief": peer_rows.brief}


def _microseconds(results: Results, case: Case, name: str) -> list[str]:
    return [
        number(value)
        for way in ("forward", "backward")
        for value in (1e3 * results.milliseconds(case, name, way), results.gelus(case, name, way))
    ]


def _made(rows: Sequence[Any], table: Callable[[Sequence[Any]], Lines]) -> tuple[str, list[Sequence[str]]]:
    """Return where rows were measured, and the lines of their table."""
    return str(rows[0]), list(table(rows))


def with_tables(text: str, folder: Path) -> str:
    """Return a document with every marked table made anew from the rows in a folder."""

    def table(marked: re.Match[str]) -> str:
        start, stem, name, _, end = marked.groups()
        path = folder / f"{stem}.csv"
        if stem == PEERS:
            where, (head, *body) = _made(peer_rows.read_peers(path), PEER_TABLES[name])
        else:
            where, (head, *body) = _made(read_rows(path), TABLES[name or "cost"])
        lines = [head, ["---"] * len(head), *body]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        return f"{start}{table}\n\n<sub>{where}</sub>\n{end}"

    return MARKED.sub(table, text)


def main() -> None:
    folder = ROOT / "benchmarks" / "results"
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        made = with_tables(text, folder)
        if "--check" not in sys.argv[1:]:
            (ROOT / name).write_text(made)
        elif made != text:
            sys.exit(f"{name} is not what the rows say; run: python benchmarks/report.py")
    if "--check" in sys.argv[1:]:
        return
    for path in sorted(set(folder.glob("*.csv")) - {folder / f"{PEERS}.csv"}):
        draw_chart(read_rows(path), path.with_suffix(".png"))


if __name__ == "__main__":
    main()
