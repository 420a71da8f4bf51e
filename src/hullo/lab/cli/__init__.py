"""The command line: one file per command; modules of the laboratory are imported when a command runs.

Usage errors exit with 2, failures with 1, an interrupted command with 128 + the signal's number.
"""

from __future__ import annotations

from typing import Annotated

import typer

import hullo
from hullo.lab.cli.common import Commands, flag
from hullo.lab.cli.compare import compare
from hullo.lab.cli.data import data
from hullo.lab.cli.figures import figures
from hullo.lab.cli.report import report
from hullo.lab.cli.table import table
from hullo.lab.cli.train import reproduce, train

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Compare activation functions in your network, train networks, and analyze the records.",
)
for command in (compare, train, reproduce, table, figures, report):
    app.command()(command)
app.add_typer(data, name="data")


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"hullo {hullo.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, flag("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
