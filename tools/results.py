"""The parts of README.md and of pages in docs that are made from the records in results.

    python tools/results.py           write them
    python tools/results.py --check   say whether they are what the records say

A part stands between `<!-- results:table columns -->` and `<!-- /results -->`. The first word is a key of PARTS, the
others are folders of results, whose records alone count.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from hullo.lab.claims import claims, render_claims
from hullo.lab.records import Record
from hullo.lab.table.batches import batches_tables
from hullo.lab.table.epochs import epochs_tables, losses_tables
from hullo.lab.table.experiments import experiments, read_records
from hullo.lab.table.markdown import detailed_tables, glance_table
from hullo.lab.table.moves import moves_tables
from hullo.lab.table.speed import cost_table, read_plain, speed_table
from hullo.lab.table.study import study_tables, study_test_tables

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/results.md", "docs/cluster.md")
MARKED = re.compile(r"(<!-- results:(\S+)((?: \S+)*) -->\n)(.*?)(<!-- /results -->)", re.DOTALL)
NOTHING = "There are no records yet."

PARTS: dict[str, Callable[[Sequence[Record], Sequence[Path]], str]] = {
    "table": lambda records, _: glance_table(experiments(records)),
    "details": lambda records, _: detailed_tables(experiments(records)),
    "epochs": lambda records, _: epochs_tables(experiments(records)),
    "losses": lambda records, _: losses_tables(experiments(records)),
    "moves": lambda records, _: moves_tables(experiments(records)),
    "batches": lambda records, _: batches_tables(experiments(records)),
    "claims": lambda records, _: render_claims(claims(experiments(records))),
    "speed": lambda records, folders: speed_table(records, read_plain(_files(folders, "plain.csv"))),
    "cost": lambda records, _: cost_table(records),
    "study": lambda records, _: study_tables(records),
    "study-test": lambda records, _: study_test_tables(records),
}


def _files(folders: Sequence[Path], name: str) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.rglob(name))]


def with_parts(text: str, results: Path) -> str:
    """A document with every marked part made anew from the records in folders of `results`."""

    @cache
    def read(folders: Sequence[Path]) -> list[Record]:
        return read_records(_files(folders, "records.jsonl"))

    def part(marked: re.Match[str]) -> str:
        start, name, inner, _, end = marked.groups()
        if name not in PARTS:
            raise ValueError(f"{start.strip()}: there is no part {name!r}; there are {', '.join(PARTS)}")
        if not inner:
            raise ValueError(f"{start.strip()}: name a folder of results, too: <!-- results:{name} columns -->")
        folders = tuple(results / folder for folder in inner.split())
        records = read(folders)
        return f"{start}{(records and PARTS[name](records, folders)) or NOTHING}\n{end}"

    if not len(MARKED.findall(text)) == text.count("<!-- results:") == text.count("<!-- /results"):
        raise ValueError("each part wants its <!-- results:table columns --> and <!-- /results -->, spelled like that")
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
