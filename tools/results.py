"""Make the parts of README.md and of pages in docs that come from the records in results.

    python tools/results.py           write them
    python tools/results.py --check   check that they are what the records say

A part stands between `<!-- results:table table -->` and `<!-- /results -->`. The first word is a key of PARTS, the
others are folders of results, whose records alone count. Parts about the columns of the paper's table take, of each
column, the longest runs that have enough seeds; longer ones with fewer seeds have a part of their own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from hullo.lab.analysis.experiments import Experiment, experiments
from hullo.lab.analysis.pages.ablation import study_tables, study_test_tables
from hullo.lab.analysis.pages.batch_size import batches_tables
from hullo.lab.analysis.pages.claims import claims_tables, power_table, readings_table, slips_list, summary_table
from hullo.lab.analysis.pages.controls import controls_part
from hullo.lab.analysis.pages.distance import best_of_table, distance_table, prediction_table
from hullo.lab.analysis.pages.drift import drift_tables
from hullo.lab.analysis.pages.epochs import epochs_tables, losses_tables
from hullo.lab.analysis.pages.gains import gains_table
from hullo.lab.analysis.pages.imagewoof import imagewoof_part
from hullo.lab.analysis.pages.late_loss import late_loss_table
from hullo.lab.analysis.pages.readings import few_seeds_tables, readings_tables
from hullo.lab.analysis.pages.speed import cost_table, read_plain, speed_table
from hullo.lab.analysis.sources import longest_of_columns, read_records, too_few_seeds
from hullo.lab.analysis.tables.markdown import detailed_tables, glance_table
from hullo.lab.spec.records import Record

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "docs/results/index.md",
    "docs/results/claims.md",
    "docs/results/appendix.md",
    "docs/cluster.md",
)
MARKED = re.compile(r"(<!-- results:(\S+)((?: \S+)*) -->\n)(.*?)(<!-- /results -->)", re.DOTALL)
NOTHING = "There are no records yet."

Part = Callable[[Sequence[Record], Sequence[Path]], str]


def of_columns(make: Callable[[Sequence[Experiment]], str]) -> Part:
    """Make a part from the columns of the paper's table."""
    return lambda records, _: make(experiments(longest_of_columns(records)))


PARTS: dict[str, Part] = {
    "gains": of_columns(gains_table),
    "table": of_columns(glance_table),
    "details": of_columns(detailed_tables),
    "readings": of_columns(readings_tables),
    "summary": of_columns(summary_table),
    "claims": of_columns(claims_tables),
    "claims-by-reading": of_columns(readings_table),
    "power": of_columns(power_table),
    "slips": of_columns(slips_list),
    "distance": of_columns(distance_table),
    "prediction": of_columns(prediction_table),
    "best-of": of_columns(best_of_table),
    "late-loss": of_columns(late_loss_table),
    "epochs": of_columns(epochs_tables),
    "drift": of_columns(drift_tables),
    "losses": of_columns(losses_tables),
    "imagewoof": of_columns(imagewoof_part),
    "few-seeds": lambda records, _: few_seeds_tables(experiments(too_few_seeds(records))),
    "controls": lambda records, _: controls_part(experiments(records)),
    "batches": lambda records, _: batches_tables(experiments(records)),
    "speed": lambda records, folders: speed_table(
        longest_of_columns(records), read_plain(_files(folders, "plain.csv"))
    ),
    "cost": lambda records, _: cost_table(longest_of_columns(records)),
    "study": lambda records, _: study_tables(records),
    "study-test": lambda records, _: study_test_tables(records),
}
OPTIONAL = {"imagewoof", "few-seeds", "controls"}
"""Parts that are empty if there is nothing to say."""


def _files(folders: Sequence[Path], name: str) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.rglob(name))]


def with_parts(text: str, results: Path) -> str:
    """Return a document with every marked part made anew from the records in folders of `results`."""

    @cache
    def read(folders: Sequence[Path]) -> list[Record]:
        return read_records(_files(folders, "records.jsonl"))

    def part(marked: re.Match[str]) -> str:
        start, name, inner, _, end = marked.groups()
        if name not in PARTS:
            raise ValueError(f"{start.strip()}: there is no part {name!r}; there are {', '.join(PARTS)}")
        if not inner:
            raise ValueError(f"{start.strip()}: name a folder of results, too: <!-- results:{name} table -->")
        folders = tuple(results / folder for folder in inner.split())
        records = read(folders)
        text = PARTS[name](records, folders) if records else ""
        if not text and name in OPTIONAL:
            return f"{start}{end}"
        return f"{start}{text or NOTHING}\n{end}"

    if not len(MARKED.findall(text)) == text.count("<!-- results:") == text.count("<!-- /results"):
        raise ValueError("each part needs <!-- results:table table --> and <!-- /results -->, spelled like that")
    return MARKED.sub(part, text)


def main(arguments: Sequence[str], root: Path = ROOT) -> str | None:
    """Write or check all documents; return what is wrong, if anything is."""
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
