"""The table in the terminal: a block per experiment."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.tables.format import HEAD, caption, line, title


def terminal_table(experiment: Experiment) -> Table:
    """Return the table of one experiment, a row per activation; the best is bold."""
    table = Table(
        title=escape(title(experiment)),
        caption=escape(caption(experiment)),
        title_justify="left",
        caption_justify="left",
        box=None,
    )
    for number, name in enumerate(HEAD):
        table.add_column(name, justify="right" if 0 < number < len(HEAD) - 1 else "left", no_wrap=number > 0)
    for cell in experiment.cells.values():
        table.add_row(*map(escape, line(cell)), style="bold" if cell.best else None)
    return table
