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

    Columns without an entry are left out. Names that are too long for the width of the terminal are continued in the
    next line, after a comma. Nothing is cut: a table that is still too wide is wider than the terminal, so print it
    with ``crop=False``.
    """
    head, lines = details(experiment)
    others = sum(1 + max(map(len, texts)) for texts in list(zip(head, *lines, strict=True))[1:])
    names = [wrap_name(texts[0], width - others - 1) for texts in lines]
    needed = 1 + max(len(part) for name in (head[0], *names) for part in name.splitlines()) + others
    table = Table(box=None, padding=(0, 1, 0, 0), width=needed if needed > width else None)
    for number, text in enumerate(head):
        justify: JustifyMethod = "right" if number and text else "left"
        table.add_column(text, justify=justify, no_wrap=number > 0, overflow="fold")
    for name, texts, cell in zip(names, lines, experiment.cells.values(), strict=True):
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
