"""`hullo table`."""

from __future__ import annotations

from typing import Annotated

import typer

from hullo.lab.cli.common import (
    ColumnsOption,
    RecordsArgument,
    console,
    known_paths,
    note_ended,
    note_torn,
    refusals,
    warn,
)

FORMATS = ("terminal", "markdown", "latex", "csv")


def table(
    records: RecordsArgument = None,
    form: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")] = FORMATS[0],
    epoch: Annotated[int | None, typer.Option(help="After which epoch.", show_default="the last")] = None,
    columns: ColumnsOption = None,
) -> None:
    """Show what runs reached, beside the paper's table: means, intervals over seeds, differences from ReLU."""
    from hullo.lab.table.experiments import experiments, read_records
    from hullo.lab.table.latex import latex_table
    from hullo.lab.table.markdown import markdown_table
    from hullo.lab.table.terminal import terminal_table
    from hullo.lab.table.tidy import csv_table

    with refusals():
        if form not in FORMATS:
            raise ValueError(f"unknown format {form!r}; there are {', '.join(FORMATS)}")
        paths = known_paths(records)
        known = read_records(paths, warn)
        found = experiments(known, epoch=epoch, columns=columns or ())
    note_torn(paths)
    note_ended(known, epoch, columns)
    if form == "terminal":
        for experiment in found:
            console().print(terminal_table(experiment), "")
    else:
        write = {"markdown": markdown_table, "latex": latex_table, "csv": csv_table}[form]
        typer.echo(write(found), nl=False)
