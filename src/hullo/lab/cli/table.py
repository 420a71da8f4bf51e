"""`hullo table`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hullo.lab.cli.common import (
    ExperimentsOption,
    ReadingOption,
    RecordsArgument,
    console,
    echo_finding,
    note_omitted,
    record_paths,
    warn,
)

FORMATS = ("terminal", "markdown", "csv")


def table(
    records: RecordsArgument = None,
    style: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")] = FORMATS[0],
    reading: ReadingOption = None,
    epoch: Annotated[int | None, typer.Option(help="Last epoch to use.", show_default="the last")] = None,
    columns: ExperimentsOption = None,
) -> None:
    """Print the accuracy of runs and of the paper: means, intervals over seeds, differences from ReLU."""
    from hullo.lab.analysis.experiments import experiments
    from hullo.lab.analysis.sources import read_records
    from hullo.lab.analysis.tables.csv import csv_table
    from hullo.lab.analysis.tables.markdown import markdown_table
    from hullo.lab.analysis.tables.terminal import terminal_table

    if style not in FORMATS:
        raise ValueError(f"unknown format {style!r}; available: {', '.join(FORMATS)}")
    paths = record_paths(records)
    loaded = read_records(paths, warn)
    selected = experiments(loaded, reading=reading, epoch=epoch, columns=columns or (), warn=warn)
    note_omitted(loaded, selected, columns)
    if style == "terminal":
        terminal = console()
        for experiment in selected:
            terminal.print(terminal_table(experiment), "", crop=False)
        echo_finding(selected, paths)
    else:
        write = {"markdown": markdown_table, "csv": csv_table}[style]
        typer.echo(write(selected), sys.stdout, nl=False)  # by default echo writes UTF-8 to streams for ASCII
