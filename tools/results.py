"""The parts of README.md and of pages in docs that are made from the records in results.

    python tools/results.py           write them
    python tools/results.py --check   say whether they are what the records say

A part stands between `<!-- results:table columns -->` and `<!-- /results -->`. The first word is a key of PARTS, the
second a folder of results, whose records alone count.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from hullo.lab.claims import claims, render_claims
from hullo.lab.records import Record
from hullo.lab.table.epochs import epochs_tables
from hullo.lab.table.experiments import experiments, read_records
from hullo.lab.table.markdown import detailed_tables, glance_table
from hullo.lab.table.speed import cost_table, speed_table
from hullo.lab.table.study import study_tables, study_test_tables

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/results.md", "docs/cluster.md")
MARKED = re.compile(r"(<!-- results:(\S+)(?: (\S+))? -->\n)(.*?)(<!-- /results -->)", re.DOTALL)
NOTHING = "There are no records yet."

PARTS: dict[str, Callable[[Sequence[Record]], str]] = {
    "table": lambda records: glance_table(experiments(records)),
    "details": lambda records: detailed_tables(experiments(records)),
    "epochs": lambda records: epochs_tables(experiments(records)),
    "claims": lambda records: render_claims(claims(experiments(records))),
    "speed": speed_table,
    "cost": cost_table,
    "study": study_tables,
    "study-test": study_test_tables,
}


def with_parts(text: str, folder: Path) -> str:
    """A document with every marked part made anew from the records in a folder."""

    @cache
    def read(path: Path) -> list[Record]:
        return read_records([path]) if any(path.rglob("records.jsonl")) else []

    def part(marked: re.Match[str]) -> str:
        start, name, inner, _, end = marked.groups()
        if name not in PARTS:
            raise ValueError(f"{start.strip()}: there is no part {name!r}; there are {', '.join(PARTS)}")
        if inner is None:
            raise ValueError(f"{start.strip()}: name a folder of results, too: <!-- results:{name} columns -->")
        records = read(folder / inner)
        return f"{start}{(records and PARTS[name](records)) or NOTHING}\n{end}"

    return MARKED.sub(part, text)


def main(arguments: Sequence[str], root: Path = ROOT) -> str | None:
    """What went wrong, if anything did."""
    for path in (root / name for name in DOCUMENTS if (root / name).exists()):
        text = path.read_text()
        try:
            made = with_parts(text, root / "results")
        except ValueError as error:
            return f"{path.relative_to(root)}: {error}"
        if "--check" not in arguments:
            path.write_text(made)
        elif made != text:
            return f"{path.relative_to(root)} is not what the records say; run: python tools/results.py"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
