"""All readings of each column side by side, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hullo.lab.analysis.distance import under
from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.readings import READINGS
from hullo.lab.analysis.tables.markdown import escape, grid
from pages.distance import distance_table


def readings_tables(experiments: Sequence[Experiment]) -> str:
    """Return a table per experiment: a row per activation, a column per reading, and the paper's figure."""
    return "\n\n".join(map(_table, experiments))


def few_seeds_tables(experiments: Sequence[Experiment]) -> str:
    """Return the same, and distances, for runs with too few seeds to represent their column; nothing without any."""
    about = (
        "Longer runs with too few seeds to represent their column: no other table, claim or figure includes them. One "
        "seed has no interval, so it cannot tell whether a published figure agrees; with two seeds, an interval is "
        "12.7 times the standard error. Root mean square distances from the paper include the scatter of single runs."
    )
    if not experiments:
        return ""
    return "\n\n".join(filter(None, [about, readings_tables(experiments), distance_table(experiments)]))


def _table(experiment: Experiment) -> str:
    found = under(experiment, list(READINGS.values()))
    lines = []
    for row in experiment.cells:
        cells = [other.cells[row] for other in found.values()]
        figures = (f"**{c.accuracy.spell()}**" if c.best else c.accuracy.spell() for c in cells)
        published = experiment.published(row)
        lines.append([escape(row), *figures, "" if published is None else f"{published:.2f}"])
    heads = ["activation", *(reading.short for reading in found), "paper"]
    about = f"{experiment.name}, {experiment.time}, {experiment.seeds}: {experiment.images} accuracy in %"
    return f"### {escape(about)}\n\n{grid(heads, lines)}"
