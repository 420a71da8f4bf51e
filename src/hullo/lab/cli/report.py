"""`hullo report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import refusals
from hullo.lab.cli.table import USUAL


def report(
    records: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files of records, or directories that hold them at any depth; runs may be under way there.",
            show_default="runs, or results where there is none",
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
) -> None:
    """Write what runs learned and reached into one HTML page to explore, which opens anywhere, offline."""
    from hullo.lab.report import gather, write_page

    with refusals():
        usual = next((path for path in USUAL if path.exists()), USUAL[0])
        document = gather(records or [usual])
    with refusals(exit_code=1):
        try:
            write_page(document, output)
        except OSError as error:
            raise ValueError(f"cannot write {output}: {error.strerror}; choose --output") from error
    typer.echo(f"the page: {output}")
