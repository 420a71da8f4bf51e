"""Write the generated blocks of README.md and of the pages in docs and benchmarks.

    python tools/blocks.py           write them
    python tools/blocks.py --check   check that they are up to date

A block stands between `<!-- block:table columns -->` and `<!-- /block -->`. Its first word is a key of PARTS, followed
by folders of results, whose records alone count; or a key of TABLES, followed by the name of a file in
benchmarks/results; or a key of FILES, followed by a file in results. Parts about the columns of the
paper's table take, of each column, the longest runs that have enough seeds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from pages.ablation import study_tables, study_test_tables
from pages.claims import claims_tables, power_table, readings_table, slips_list, summary_list
from pages.columns import (
    distance_table,
    gains_table,
    imagewoof_part,
    prediction_part,
    readings_tables,
)
from pages.controls import controls_part
from pages.course import drift_tables, late_loss_table
from pages.models import models_part
from pages.plans import plans_part
from pages.speed import read_plain, speed_table
from pages.studies import answers_part, changes_part, study_part

from hullo.lab.analysis.experiments import Experiment, experiments
from hullo.lab.analysis.sources import longest_of_columns, read_records
from hullo.lab.analysis.tables.markdown import detailed_tables, grid, overview_table
from hullo.lab.spec.records import Record

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import activation_rows
import peer_rows
from rows import read_rows

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.md")
MARKED = re.compile(r"(<!-- block:(\S+)((?: \S+)*) -->\n)(.*?)(<!-- /block -->)", re.DOTALL)
NOTHING = "There are no records yet."

Part = Callable[[Sequence[Record], Sequence[Path]], str]


def of_columns(make: Callable[[Sequence[Experiment]], str]) -> Part:
    """Make a part from the columns of the paper's table."""
    return lambda records, _: make(experiments(longest_of_columns(records)))


PARTS: dict[str, Part] = {
    "gains": of_columns(gains_table),
    "gains-brief": of_columns(lambda experiments: gains_table(experiments, brief=True)),
    "table": of_columns(overview_table),
    "details": of_columns(detailed_tables),
    "readings": of_columns(readings_tables),
    "summary": of_columns(summary_list),
    "claims": of_columns(claims_tables),
    "claims-by-reading": of_columns(readings_table),
    "power": of_columns(power_table),
    "slips": of_columns(slips_list),
    "plans": of_columns(plans_part),
    "distance": of_columns(distance_table),
    "prediction": lambda records, _: prediction_part(experiments(longest_of_columns(records)), experiments(records)),
    "late-loss": of_columns(late_loss_table),
    "drift": of_columns(drift_tables),
    "imagewoof": of_columns(imagewoof_part),
    "controls": lambda records, _: controls_part(experiments(records)),
    "speed": lambda records, folders: speed_table(
        longest_of_columns(records), read_plain(_files(folders, "plain.csv"))
    ),
    "study": lambda records, _: study_tables(records),
    "study-test": lambda records, _: study_test_tables(records),
}


def _fence(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


def _show_comparison(output: str) -> str:
    """Return the tables of a comparison, and the finding below them as a quotation, whose line may break."""
    tables, _, finding = output.strip().rpartition("\n\n")
    return f"{_fence(tables)}\n\n> {finding}"


FILES: dict[str, Callable[[Path], str]] = {
    "answers": answers_part,
    "runs": study_part,
    "changes": changes_part,
    "models": models_part,
    "text": lambda path: path.read_text().strip(),
    "output": lambda path: _show_comparison(path.read_text()),
    "finding": lambda path: f"> {path.read_text().splitlines()[-1]}",
}
"""Blocks that are made from one file of results: runs of a study, swapped models, and what a command wrote."""

read_activations = partial(read_rows, kind=activation_rows.ActivationRow)
TABLES: dict[str, tuple[Callable[[Path], Sequence[Any]], Callable[[Sequence[Any]], Iterator[Sequence[str]]]]] = {
    "bench-cost": (read_activations, activation_rows.cost),
    "bench-groups": (read_activations, activation_rows.groups),
    "bench-overhead": (read_activations, activation_rows.overhead),
    "peers": (peer_rows.read_measured, peer_rows.peers),
    "peers-factors": (peer_rows.read_measured, peer_rows.factors),
    "peers-brief": (peer_rows.read_measured, peer_rows.brief),
}
"""Tables of measurements: functions that read a file and that make a table of its rows."""


def _files(folders: Sequence[Path], name: str) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.rglob(name))]


@cache
def _read(files: tuple[Path, ...], _: tuple[float, ...]) -> list[Record]:
    return read_records(files)


def make_part(name: str, folders: Sequence[Path]) -> str:
    """Return a part made from the records in folders."""
    files = _files(folders, "records.jsonl")
    records = _read(tuple(files), tuple(path.stat().st_mtime for path in files))
    return (PARTS[name](records, folders) if records else "") or NOTHING


def make_table(name: str, path: Path) -> str:
    """Return a table of the rows in a file, and the environments that they were measured in."""
    read, table = TABLES[name]
    rows = read(path)
    head, *lines = table(rows)
    return f"{grid(head, lines)}\n\n<sub>{'<br>'.join(dict.fromkeys(map(str, rows)))}</sub>"


def with_blocks(text: str, root: Path) -> str:
    """Return a page with every block made anew from the records and benchmark rows of a project."""

    def block(marked: re.Match[str]) -> str:
        start, name, words, _, end = marked.groups()
        sources = words.split()
        if name not in PARTS and name not in TABLES and name not in FILES:
            known = ", ".join([*PARTS, *TABLES, *FILES])
            raise ValueError(f"{start.strip()}: unknown block {name!r}; available: {known}")
        if not sources:
            raise ValueError(f"{start.strip()}: name its folder or file of results, too")
        if name in TABLES:
            made = make_table(name, root / "benchmarks" / "results" / f"{sources[0]}.csv")
        elif name in FILES:
            made = FILES[name](root / "results" / sources[0])
        else:
            made = make_part(name, [root / "results" / folder for folder in sources])
        return f"{start}{made}\n{end}"

    if not len(MARKED.findall(text)) == text.count("<!-- block:") == text.count("<!-- /block"):
        raise ValueError("each block needs <!-- block:table columns --> and <!-- /block -->, spelled like that")
    return MARKED.sub(block, text)


def pages(root: Path) -> list[Path]:
    """Return the pages with blocks."""
    found = (path for pattern in PAGES for path in sorted(root.glob(pattern)))
    return [path for path in found if "<!-- block" in path.read_text() or "<!-- /block" in path.read_text()]


def main(arguments: Sequence[str], root: Path = ROOT) -> str | None:
    """Write or check all pages; return what is wrong, if anything is."""
    for path in pages(root):
        text, name = path.read_text(), path.relative_to(root)
        try:
            made = with_blocks(text, root)
        except (OSError, ValueError) as error:
            return f"{name}: {error}"
        if "--check" not in arguments:
            path.write_text(made)
        elif made != text:
            return f"{name} is not up to date with its records or rows; run: python tools/blocks.py"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
