"""`hullo report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import USUAL, RecordsArgument, refusals


def report(
    records: RecordsArgument = None,
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
