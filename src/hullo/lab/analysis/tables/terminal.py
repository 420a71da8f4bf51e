"""The table in the terminal: a block per experiment."""

from __future__ import annotations

from rich.console import Group, JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.tables.format import caption, details, title


def terminal_table(experiment: Experiment) -> Group:
    """Return the title, the table and the notes of one experiment, a row per activation; the best is bold.

    Columns without an entry are left out. Nothing is cut: a table may be wider than the terminal, so print it with
    ``crop=False``.
    """
    head, lines = details(experiment)
    needed = sum(1 + max(map(len, texts)) for texts in zip(head, *lines, strict=True))
    table = Table(box=None, padding=(0, 1, 0, 0), width=needed)
    for number, text in enumerate(head):
        justify: JustifyMethod = "right" if number and text else "left"
        table.add_column(text, justify=justify, no_wrap=True)
    for texts, cell in zip(lines, experiment.cells.values(), strict=True):
        table.add_row(*map(escape, texts), style="bold" if cell.best else None)
    return Group(Text(title(experiment), "table.title"), table, Text(caption(experiment), "table.caption"))
