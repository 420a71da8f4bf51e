"""The table in the terminal: a block per experiment."""

from __future__ import annotations

import re

from rich.console import Group, JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.tables.format import HEAD, caption, line, title


def terminal_table(experiment: Experiment, width: int) -> Group:
    """Return the title, the table and the notes of one experiment, a row per activation; the best is bold.

    Columns without an entry are left out, and names are never cut: those that are too long for the width of the
    terminal are continued in the next line, after a comma.
    """
    lines = [line(cell) for cell in experiment.cells.values()]
    shown = [number for number in range(len(HEAD)) if any(texts[number] for texts in lines)]
    others = sum(1 + max(len(texts[number]) for texts in (HEAD, *lines)) for number in shown[1:])
    table = Table(box=None, padding=(0, 1, 0, 0))
    for number in shown:
        justify: JustifyMethod = "right" if 0 < number < len(HEAD) - 1 else "left"
        table.add_column(HEAD[number], justify=justify, no_wrap=number > 0, overflow="fold")
    for texts, cell in zip(lines, experiment.cells.values(), strict=True):
        name = wrap_name(texts[0], width - others - 1)
        table.add_row(
            *map(escape, (name, *(texts[number] for number in shown[1:]))), style="bold" if cell.best else None
        )
    return Group(Text(title(experiment), "table.title"), table, Text(caption(experiment), "table.caption"))


def wrap_name(name: str, width: int) -> str:
    """Break a name after commas into lines of at most `width` characters, where its parts are that short.

    >>> print(wrap_name("affine(identity,relu,tanh,parametrization=free,init=relu)", 28))
    affine(identity,relu,tanh,
      parametrization=free,
      init=relu)
    """
    first, *parts = re.split(r"(?<=,)", name)
    lines = [first]
    for part in parts:
        if len(lines[-1]) + len(part) <= width:
            lines[-1] += part
        else:
            lines.append(f"  {part}")
    return "\n".join(lines)
