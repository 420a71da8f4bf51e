"""The table of a study in examples/studies, from its file of runs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples" / "studies"))


def study_part(path: Path) -> str:
    """Return the table of a finished study, and on which machine and at which commit it ran."""
    study = importlib.import_module("study")
    candidates = importlib.import_module(path.stem).CANDIDATES
    found = study.Study(path, train=None, device="", at_once=1)
    runs = sorted(found.done, key=lambda run: (run.seed, run.lr))
    choosing, fresh = (
        [run.seed for run in runs if (run.seed >= study.FRESH) is is_fresh] for is_fresh in (False, True)
    )
    rates = list(dict.fromkeys(run.lr for run in runs if run.seed in choosing))
    ran = {name: candidates[name] for name in candidates if name in {run.candidate for run in runs}}
    table = found.compare(ran, rates, list(dict.fromkeys(choosing)), list(dict.fromkeys(fresh)))
    about = {json.dumps(json.loads(line)["environment"]): None for line in path.read_text().splitlines()}
    places = "; ".join(
        "{device}, {threads} CPU threads, Python {python}, torch {torch}, hullo {hullo} ({commit})".format(
            **json.loads(item)
        )
        for item in about
    )
    return f"{table}\n\n<sub>Mean and 95 % interval over fresh seeds; changes on the same seeds. {places}</sub>"
