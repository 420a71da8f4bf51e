"""`hullo report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import USUAL, RecordsArgument, note_torn, refusals, writing


def report(
    records: RecordsArgument = None,
    output: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
) -> None:
    """Write what runs learned and reached into one HTML page to explore, which opens anywhere, offline."""
    from hullo.lab.report import gather, write_page

    with refusals():
        paths = records or [next((path for path in USUAL if path.exists()), USUAL[0])]
        document = gather(paths)
    note_torn(paths)
    with writing(output):
        write_page(document, output)
    typer.echo(f"the page: {output}")
