"""The table as Markdown: all experiments at a glance, and each in detail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hullo.lab.analysis.experiments import Experiment, rows_of
from hullo.lab.analysis.names import activation_label
from hullo.lab.analysis.tables.format import caption, details, heads, note, overview, provenance, title


def markdown_table(experiments: Sequence[Experiment]) -> str:
    """Return all experiments at a glance, then each in detail."""
    return f"{overview_table(experiments)}\n\n{detailed_tables(experiments)}\n"


def overview_table(experiments: Sequence[Experiment]) -> str:
    """Return a row per activation and a column per experiment, with the paper's figures in brackets."""
    about = ("<br>".join(map(escape, heads(e))).replace("/", "/<br>").replace(", ", "<br>") for e in experiments)
    lines = (
        [
            escape(activation_label(row)),
            *("<br>".join(_mark(text, best) for text, best in overview(e, row) if text) for e in experiments),
        ]
        for row in rows_of(experiments)
    )
    made = provenance(record for experiment in experiments for record in experiment.records)
    return f"{grid(['', *about], lines)}\n\n<sub>{escape(f'{note(experiments)} {made}')}</sub>"


def detailed_tables(experiments: Iterable[Experiment]) -> str:
    """Return a table per experiment under a heading: a row per activation with all its figures; the best is bold."""
    return "\n\n".join(
        f"### {escape(title(experiment))}\n\n{_details(experiment)}\n\n{escape(caption(experiment))}"
        for experiment in experiments
    )


def _details(experiment: Experiment) -> str:
    head, lines = details(experiment)
    cells = experiment.cells.values()
    return grid(head, ([_mark(text, cell.best) for text in texts] for texts, cell in zip(lines, cells, strict=True)))


def grid(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table of texts that are Markdown already; the first column is left-aligned, the others right."""
    rule = [":---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(texts)} |" for texts in (head, rule, *lines))


def section(title: str, head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table under a heading."""
    return f"### {escape(title)}\n\n{grid(head, lines)}"


def escape(text: str) -> str:
    """Escape a text for Markdown, on one line.

    >>> print(escape("leaky_relu(0.2) | *a*"))
    leaky\\_relu(0.2) \\| \\*a\\*
    """
    return re.sub(r"([\\`*_\[\]<>&|~$#])", r"\\\1", " ".join(text.split()))


def _mark(text: str, best: bool) -> str:
    return f"**{escape(text)}**" if best and text else escape(text)
