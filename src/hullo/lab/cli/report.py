"""`hullo report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import RecordsArgument, record_paths, warn
from hullo.lab.files import writing


def report(
    records: RecordsArgument = None,
    output: Annotated[Path, typer.Option(help="Path of the HTML page.")] = Path("report.html"),
) -> None:
    """Write an interactive HTML page of the runs: accuracies and learned activations. It works offline."""
    from hullo.lab.analysis.report import gather, write_page

    document = gather(record_paths(records), warn)
    with writing(output):
        write_page(document, output)
    typer.echo(f"report: {output}")
