"""Format experiments as text, the same in the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hullo.lab.analysis.experiments import REFERENCE, Cell, Experiment, rows_of
from hullo.lab.analysis.names import activation_label
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import Record

HEAD = ("activation", "hullo", f"vs {REFERENCE}", "paper", "vs paper", "seeds", "")


def line(experiment: Experiment, cell: Cell) -> list[str]:
    """Return the numbers of a cell, and remarks about it."""
    pairs = cell.over_reference.count if cell.over_reference else cell.accuracy.count
    notes = [f"{cell.diverged} diverged"] * bool(cell.diverged)
    notes += [f"{pairs} of the seeds with {REFERENCE}"] * (pairs < cell.accuracy.count)
    return [
        activation_label(cell.row),
        experiment.spell(cell.accuracy),
        experiment.spell(cell.over_reference, "+") if cell.over_reference else "",
        "" if cell.published is None else f"{cell.published:.2f}",
        "" if cell.over_published is None else f"{cell.over_published:+.2f}",
        str(cell.accuracy.count),
        ", ".join(notes),
    ]


def details(experiment: Experiment) -> tuple[list[str], list[list[str]]]:
    """Return the headings of an experiment's table and a line per activation, without columns that have no entry."""
    lines = [line(experiment, cell) for cell in experiment.cells.values()]
    shown = [number for number, texts in enumerate(zip(*lines, strict=True)) if any(texts)]
    known = any(cell.published is not None for cell in experiment.cells.values())
    head = HEAD if known else (HEAD[0], experiment.records[0].metric, *HEAD[2:])
    return [head[number] for number in shown], [[texts[number] for number in shown] for texts in lines]


def overview(experiment: Experiment, row: str) -> list[tuple[str, bool]]:
    """Return our and the paper's accuracy in short, each with whether it is the best of its column."""
    cell, published = experiment.cells.get(row), experiment.published
    ours = ("", False)
    if cell:
        short = cell.accuracy.spell(".1f") if experiment.unit else experiment.spell(cell.accuracy)
        ours = (short + "†" * bool(cell.diverged), cell.best)
    theirs = (f"({published[row]:.1f})", published[row] == max(published.values())) if row in published else ("", False)
    return [ours, theirs]


def heads(experiment: Experiment) -> list[str]:
    """Return the heading of a column: its name, the training, and the reading."""
    images = [] if experiment.split == "test" else [f"{experiment.images} images"]
    return [experiment.name, f"{experiment.time}, {experiment.seeds}", ", ".join([*images, experiment.reading.short])]


def note(experiments: Sequence[Experiment]) -> str:
    """Return how to read the columns."""
    known = any(row in e.published for e in experiments for row in rows_of(experiments))
    diverged = any(cell.diverged for experiment in experiments for cell in experiment.cells.values())
    beside, lost = ", in brackets the paper's" * known, "; † with runs that diverged" * diverged
    metrics = "; ".join(dict.fromkeys(experiment.metric for experiment in experiments))
    marks = f"{beside}; the best of each column is bold{lost}"
    said = [f"{metrics[0].upper()}{metrics[1:]}: mean ± 95 % interval over seeds{marks}."]
    readings = dict.fromkeys(experiment.reading for experiment in experiments)
    said += [reading.sentence for reading in readings]
    remarks: dict[str, list[str]] = {}
    for experiment in experiments:
        for remark in experiment.remarks:
            remarks.setdefault(remark, []).append(experiment.name)
    for remark, names in remarks.items():
        said.append(remark if len(names) == len(experiments) else f"{', '.join(names)}: {remark}")
    return " ".join(said)


def title(experiment: Experiment) -> str:
    """Return the title of a table of one experiment, with its reading."""
    return f"{experiment.name}, {experiment.time}: {experiment.images} {experiment.metric}, {experiment.reading.short}"


def caption(experiment: Experiment) -> str:
    """Return how to read a table of one experiment."""
    single = max(cell.accuracy.count for cell in experiment.cells.values()) == 1
    paired = f"; vs {REFERENCE} on the same seeds" if any(c.over_reference for c in experiment.cells.values()) else ""
    means = [] if single else [f"Means and 95 % intervals over seeds{paired}."]
    return " ".join([experiment.reading.sentence, *means, *experiment.remarks])


def provenance(records: Iterable[Record]) -> str:
    """Return the devices, versions and commits of the runs."""
    commits: dict[Environment, set[str]] = {}
    for environment in (record.environment for record in records):
        commits.setdefault(replace(environment, commit=""), set()).add(environment.commit)
    made = (replace(where, commit=", ".join(sorted(filter(None, known)))) for where, known in commits.items())
    return f"Runs made with {'; '.join(sorted(map(str, made)))}."
