"""`hullo table`."""

from __future__ import annotations

from typing import Annotated

import typer

from hullo.lab.cli.common import USUAL, ColumnsOption, RecordsArgument, console, note_torn, refusals

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
        paths = records or [next((path for path in USUAL if path.exists()), USUAL[0])]
        known = read_records(paths)
        found = experiments(known, epoch=epoch, columns=columns or ())
    note_torn(paths)
    shown = {experiment.name for experiment in found}
    if ended := [e.name for e in experiments(known, columns=columns or ()) if e.name not in shown]:
        typer.echo(f"left out, as they ended before epoch {epoch}: {', '.join(ended)}", err=True)
    if form == "terminal":
        for experiment in found:
            console().print(terminal_table(experiment), "")
    else:
        write = {"markdown": markdown_table, "latex": latex_table, "csv": csv_table}[form]
        typer.echo(write(found), nl=False)
