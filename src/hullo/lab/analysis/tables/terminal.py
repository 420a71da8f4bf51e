"""The table in the terminal: a block per experiment."""

from __future__ import annotations

import re

from rich.console import Group, JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.tables.format import caption, details, title


def terminal_table(experiment: Experiment, width: int) -> Group:
    """Return the title, the table and the notes of one experiment, a row per activation; the best is bold.

    Columns without an entry are left out, and names are never cut: those that are too long for the width of the
    terminal are continued in the next line, after a comma.
    """
    head, lines = details(experiment)
    others = sum(1 + max(map(len, texts)) for texts in list(zip(head, *lines, strict=True))[1:])
    table = Table(box=None, padding=(0, 1, 0, 0))
    for number, text in enumerate(head):
        justify: JustifyMethod = "right" if number and text else "left"
        table.add_column(text, justify=justify, no_wrap=number > 0, overflow="fold")
    for texts, cell in zip(lines, experiment.cells.values(), strict=True):
        name = wrap_name(texts[0], width - others - 1)
        table.add_row(*map(escape, (name, *texts[1:])), style="bold" if cell.best else None)
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
