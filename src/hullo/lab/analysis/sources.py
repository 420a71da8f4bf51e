"""Read records from files and directories, and select those that represent a column."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from hullo.lab.spec.paper import Column
from hullo.lab.spec.records import Record, Records
from hullo.lab.spec.run_spec import Spec

HOW_TO_GET_RECORDS = (
    "make records first, as with: hullo reproduce lenet5/fashion-mnist-sample --epochs 1; or give files of records, or "
    "directories of them"
)
ENOUGH_SEEDS = 3
"""The smallest number of seeds to represent a column: Student's interval of two seeds is 12.7 times their error."""


def read_records(paths: Iterable[Path], warn: Callable[[str], None] | None = None) -> list[Record]:
    """Return the records in files, and in all files `records.jsonl` under directories; each run once.

    Call `warn` for lines that are no records, and for other records of runs that were read before, unless only machine
    and time differ, and leave these out; raise if it is None. Call it for a truncated last line too.
    """
    found: dict[Spec, tuple[Path, Record]] = {}
    doubted: dict[tuple[Path, Path], Spec] = {}
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist; {HOW_TO_GET_RECORDS}")
        records = [(file, record) for file in record_files(path) for record in _read(file, warn)]
        if not records:
            raise ValueError(f"no records in {path}; {HOW_TO_GET_RECORDS}")
        for file, record in records:
            other, known = found.setdefault(record.spec, (file, record))
            same_machine = {name: getattr(known, name) for name in ("seconds", "members", "environment")}
            if known != replace(record, **same_machine):
                doubted.setdefault((other, file), record.spec)
    for (other, file), spec in doubted.items():
        differing = f"{other} and {file} have different records of the same runs, such as {spec}"
        if warn is None:
            raise ValueError(f"{differing}; give only one of them")
        warn(f"{differing}; those of {file} are left out")
    return [record for _, record in found.values()]


def stated_findings(paths: Iterable[Path]) -> dict[Column, str]:
    """Return the findings of the comparisons (`hullo compare`) whose records are in files or directories."""
    found: dict[Column, str] = {}
    for file in (file for path in paths for file in record_files(path)):
        state = file.with_name("comparison.json")
        finding = json.loads(state.read_bytes()).get("finding") if state.exists() else None
        if finding and (records := Records(file).scan()[0]):
            found.setdefault(records[0].spec.column, finding)
    return found


def record_files(path: Path) -> list[Path]:
    """Return a file of records itself, or all files `records.jsonl` under a directory."""
    return sorted(path.rglob("records.jsonl")) if path.is_dir() else [path]


def _read(file: Path, warn: Callable[[str], None] | None) -> list[Record]:
    if warn is None:
        return Records(file).read()
    try:
        records, flaws = Records(file).scan()
    except ValueError as error:
        warn(str(error))
        return []
    if flaws:
        others = f", and so are {len(flaws) - 1:,} others" if len(flaws) > 1 else ""
        warn(f"{flaws[0]}; the line is left out{others}; correct or delete them")
    return records


def longest_of_columns(records: Iterable[Record]) -> list[Record]:
    """Return the records of the runs that represent their column: the longest with enough seeds.

    Most activations need at least `ENOUGH_SEEDS` seeds. Where no runs of a column have them, the longest represent it.
    """
    runs = list(records)
    known = {(spec.column, spec.epochs, spec.activation, spec.seed) for spec in (record.spec for record in runs)}
    enough: dict[tuple[Column, int], list[bool]] = {}  # by length, of each activation
    for (column, epochs, _), seeds in Counter(run[:3] for run in known).items():
        enough.setdefault((column, epochs), []).append(seeds >= ENOUGH_SEEDS)
    ranked = sorted((2 * sum(each) > len(each), epochs, column) for (column, epochs), each in enough.items())
    standing = {column: epochs for _, epochs, column in ranked}
    return [record for record in runs if record.spec.epochs == standing[record.spec.column]]
