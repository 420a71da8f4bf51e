"""The table of a study in examples/studies, from its file of runs."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

STUDIES = Path(__file__).parents[2] / "examples" / "studies"


def study_part(path: Path) -> str:
    """Return the table of a finished study, and on which machine and at which commit it ran."""
    if str(STUDIES) not in sys.path:
        sys.path.append(str(STUDIES))
    study = runpy.run_path(str(STUDIES / "study.py"))
    candidates = runpy.run_path(str(STUDIES / f"{path.stem}.py"))["CANDIDATES"]
    found = study["Study"](path, train=None, device="", at_once=1)
    runs = sorted(found.done, key=lambda run: (run.seed, run.lr))
    choosing, fresh = (
        [run.seed for run in runs if (run.seed >= study["FRESH"]) is is_fresh] for is_fresh in (False, True)
    )
    rates = list(dict.fromkeys(run.lr for run in runs if run.seed in choosing))
    ran = {name: candidates[name] for name in candidates if name in {run.candidate for run in runs}}
    table: str = found.compare(ran, rates, list(dict.fromkeys(choosing)), list(dict.fromkeys(fresh)))
    about = {json.dumps(json.loads(line)["environment"]): None for line in path.read_text().splitlines()}
    places = "; ".join(
        "{device}, {threads} CPU threads, Python {python}, torch {torch}, hullo {hullo} ({commit})".format(
            **json.loads(item)
        )
        for item in about
    )
    return f"{table}\n\n<sub>Mean and 95 % interval over fresh seeds; changes on the same seeds. {places}</sub>"
