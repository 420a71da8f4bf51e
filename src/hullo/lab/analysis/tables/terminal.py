"""The table in the terminal: a block per experiment."""

from __future__ import annotations

from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.tables.format import HEAD, caption, line, title


def terminal_table(experiment: Experiment) -> Table:
    """Return the table of one experiment, a row per activation; the best is bold.

    Columns without an entry are left out, and names are never cut: in a narrow terminal they go on in the next line.
    """
    lines = [line(cell) for cell in experiment.cells.values()]
    shown = [number for number in range(len(HEAD)) if any(texts[number] for texts in lines)]
    table = Table(
        title=escape(title(experiment)),
        caption=escape(caption(experiment)),
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for number in shown:
        justify: JustifyMethod = "right" if 0 < number < len(HEAD) - 1 else "left"
        table.add_column(HEAD[number], justify=justify, no_wrap=number > 0, overflow="fold")
    for texts, cell in zip(lines, experiment.cells.values(), strict=True):
        table.add_row(*(escape(texts[number]) for number in shown), style="bold" if cell.best else None)
    return table
