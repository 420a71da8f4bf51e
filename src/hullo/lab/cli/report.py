"""`hullo report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import RecordsArgument, known_paths, note_torn, refusals, warn, writing


def report(
    records: RecordsArgument = None,
    output: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
) -> None:
    """Write what runs learned and reached into one HTML page to explore, which opens anywhere, offline."""
    from hullo.lab.analysis.report import gather, write_page

    with refusals():
        paths = known_paths(records)
        document = gather(paths, warn)
    note_torn(paths)
    with writing(output):
        write_page(document, output)
    typer.echo(f"the page: {output}")
