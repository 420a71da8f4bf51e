"""The table of a study in examples/studies, from its file of runs."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

STUDIES = Path(__file__).parents[2] / "examples" / "studies"


def study_part(path: Path) -> str:
    """Return the table of a finished study, and on which machine and at which commit it ran.

    The file is called after the study: tables.jsonl, tables-settings.jsonl.
    """
    if str(STUDIES) not in sys.path:
        sys.path.append(str(STUDIES))
    study = runpy.run_path(str(STUDIES / "study.py"))
    candidates = runpy.run_path(str(STUDIES / f"{path.stem.partition('-')[0]}.py"))["CANDIDATES"]
    found = study["Study"](path, train=None, device="", at_once=1)
    ran = {name: candidates[name] for name in candidates if name in {run.candidate for run in found.done}}
    seeds = sorted({run.seed for run in found.done})
    choosing, fresh = ([seed for seed in seeds if (seed >= study["FRESH"]) == is_fresh] for is_fresh in (False, True))
    rates = sorted({run.lr for run in found.done if run.seed == 0})
    table: str = found.compare(ran, rates, choosing, fresh)
    about = {json.dumps(json.loads(line)["environment"]): None for line in path.read_text().splitlines()}
    places = "; ".join(
        "{device}, {threads} CPU threads, Python {python}, torch {torch}, hullo {hullo} ({commit})".format(
            **json.loads(item)
        )
        for item in about
    )
    return f"{table}\n\n<sub>Mean and 95 % interval over fresh seeds; changes on the same seeds. {places}</sub>"
