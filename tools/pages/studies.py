"""Tables of a study in examples/studies, from its file of runs."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hullo.lab.analysis.statistics import paired
from hullo.lab.analysis.tables.markdown import grid
from hullo.lab.spec.environment import Environment

STUDIES = Path(__file__).parents[2] / "examples" / "studies"


def study_part(path: Path) -> str:
    """Return the table of a finished study, and on which machine and at which commit it ran.

    The file is called after the study: tables.jsonl, tables-settings.jsonl.
    """
    study, found, candidates = _open(path)
    seeds = sorted({run.seed for run in found.done})
    choosing, fresh = ([seed for seed in seeds if (seed >= study["FRESH"]) == is_fresh] for is_fresh in (False, True))
    rates = sorted({run.lr for run in found.done if run.seed == 0})
    table: str = found.compare(candidates, rates, choosing, fresh)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    places = dict.fromkeys(str(Environment(**record["environment"])) for record in records)
    arguments = ", ".join(f"{name} {value}" for name, value in records[0]["arguments"].items())
    about = (
        f"Mean and 95 % interval over {len(fresh)} fresh seeds; changes on the same seeds. {arguments.capitalize()}."
    )
    return f"{table}\n\n<sub>{about} {'; '.join(places)}</sub>"


def changes_part(path: Path) -> str:
    """Return the changes of every candidate of a study against each fixed one, and against the plain hull."""
    tests, candidates = read_tests(path)
    bases = [name for name in candidates if candidates[name].is_fixed or name == "hull"]
    lines = [
        [name, *("" if name == base else spell_change(own, tests[base]) for base in bases)]
        for name, own in sorted(tests.items())
    ]
    table = grid(["activation", *(f"against {base}" for base in bases)], lines)
    return f"{table}\n\n<sub>Mean and 95 % interval over the fresh seeds above, not corrected for their number.</sub>"


def spell_change(own: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Return a change on the seeds of both as text."""
    change = paired(own, other)
    return change.spell("+.4f") if change else ""


def read_tests(path: Path) -> tuple[dict[str, dict[int, float]], dict[str, Any]]:
    """Return the test scores of a finished study by candidate and fresh seed, and the candidates."""
    study, found, candidates = _open(path)
    tests: dict[str, dict[int, float]] = {}
    for run, scores in found.done.items():
        if run.seed >= study["FRESH"]:
            tests.setdefault(run.candidate, {})[run.seed] = scores["test"]
    return tests, candidates


def _open(path: Path) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Return the module of studies, a finished study and its candidates."""
    if str(STUDIES) not in sys.path:
        sys.path.append(str(STUDIES))
    study = runpy.run_path(str(STUDIES / "study.py"))
    candidates = runpy.run_path(str(STUDIES / f"{path.stem.partition('-')[0]}.py"))["CANDIDATES"]
    found = study["Study"](path, train=None, about={}, at_once=1)
    ran = {run.candidate for run in found.done}
    return study, found, {name: candidates[name] for name in candidates if name in ran}
