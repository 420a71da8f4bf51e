"""Tables of a study in examples/studies, from its file of runs."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from hullo.lab.analysis.statistics import Interval, paired
from hullo.lab.analysis.tables.markdown import grid
from hullo.lab.spec.environment import Environment

STUDIES = Path(__file__).parents[2] / "examples" / "studies"


TASKS = {
    "tables": "[an MLP on California housing](#tables)",
    "tables-settings": "[the same, a third of the epochs](#which-setting-in-20-epochs)",
    "images": "[networks of sines that fit images](#images)",
}
"""Studies in the table of answers, by file."""


def answers_part(folder: Path) -> str:
    """Return a row for each task: the best fixed and learned activation on validation data, and the change.

    A fixed activation that did better on the fresh seeds than the one chosen is named, with the change against it.
    """
    lines = []
    for stem, task in TASKS.items():
        path = folder / f"{stem}.jsonl"
        study, found, candidates = _open(path)
        choosing, fresh, rates = _seeds_and_rates(study, found)
        chosen = found.choose(list(candidates), rates, choosing)
        tests = {
            name: dict(zip(fresh, found.values("test", name, chosen[name].lr, fresh), strict=True)) for name in chosen
        }
        fixed = [name for name in chosen if candidates[name].is_fixed]
        learned = [name for name in chosen if not candidates[name].is_fixed and "control" not in name]
        reference, best = (min(names, key=lambda name: chosen[name].val) for names in (fixed, learned))
        hindsight = min(fixed, key=lambda name: mean(tests[name].values()))
        changes = [spell_change(tests[best], tests[reference])]
        if hindsight != reference:
            changes.append(f"against {hindsight}: {spell_change(tests[best], tests[hindsight])}")
        score = Interval.of(tests[reference].values()).spell(".4f")
        lines.append([task, f"{reference}<br>{score}", best, "<br>".join(changes)])
    head = ["task", "best fixed activation", "best learned one", "change (lower is better)"]
    about = "Test scores, mean and 95 % interval over fresh seeds; changes on the same seeds."
    return f"{grid(head, lines)}\n\n<sub>{about}</sub>"


def study_part(path: Path) -> str:
    """Return the table of a finished study, and on which machine and at which commit it ran.

    The file is called after the study: tables.jsonl, tables-settings.jsonl.
    """
    study, found, candidates = _open(path)
    choosing, fresh, rates = _seeds_and_rates(study, found)
    table: str = found.compare(candidates, rates, choosing, fresh)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    places = dict.fromkeys(str(Environment(**record["environment"])) for record in records)
    arguments = ", ".join(f"{name} {value}" for name, value in records[0]["arguments"].items())
    minutes = sum(record["scores"]["seconds"] for record in records) / 60
    about = [
        f"Mean and 95 % interval over {len(fresh)} fresh seeds; changes on the same seeds.",
        f"{arguments.capitalize()}. {len(records)} runs in {minutes:.0f} minutes.",
    ]
    return f"{table}\n\n<sub>{' '.join(about)} {'; '.join(places)}</sub>"


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


def _seeds_and_rates(study: Mapping[str, Any], found: Any) -> tuple[list[int], list[int], list[float]]:
    """Return the seeds that chose, the fresh ones, and the learning rates to choose from."""
    seeds = sorted({run.seed for run in found.done})
    choosing, fresh = ([seed for seed in seeds if (seed >= study["FRESH"]) == is_fresh] for is_fresh in (False, True))
    return choosing, fresh, sorted({run.lr for run in found.done if run.seed in choosing})


def _open(path: Path) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Return the module of studies, a finished study and its candidates."""
    if str(STUDIES) not in sys.path:
        sys.path.append(str(STUDIES))
    study = runpy.run_path(str(STUDIES / "study.py"))
    candidates = runpy.run_path(str(STUDIES / f"{path.stem.partition('-')[0]}.py"))["CANDIDATES"]
    found = study["Study"](path, train=None, about={}, at_once=1)
    ran = {run.candidate for run in found.done}
    return study, found, {name: candidates[name] for name in candidates if name in ran}
