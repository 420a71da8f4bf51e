"""All readings of each column side by side, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.tables.markdown import escape, grid


def readings_tables(experiments: Sequence[Experiment]) -> str:
    """Return a table per experiment: a row per activation, a column per reading, and the paper's figure."""
    return "\n\n".join(map(_table, experiments))


def _table(experiment: Experiment) -> str:
    found = experiment.by_reading
    lines = []
    for row in experiment.cells:
        cells = [other.cells[row] for other in found.values()]
        figures = (f"**{c.accuracy.spell()}**" if c.best else c.accuracy.spell() for c in cells)
        published = experiment.published(row)
        lines.append([escape(row), *figures, "" if published is None else f"{published:.2f}"])
    heads = ["activation", *(reading.short for reading in found), "paper"]
    about = f"{experiment.name}, {experiment.time}, {experiment.seeds}: {experiment.images} accuracy in %"
    return f"### {escape(about)}\n\n{grid(heads, lines)}"
