"""`hullo report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import RecordsArgument, record_paths, report_errors, report_write_errors, warn


def report(
    records: RecordsArgument = None,
    output: Annotated[Path, typer.Option(help="Path of the HTML page.")] = Path("report.html"),
) -> None:
    """Write an interactive HTML page of the runs: accuracies and learned activations. It works offline."""
    from hullo.lab.analysis.report import gather, write_page

    with report_errors():
        paths = record_paths(records)
        document = gather(paths, warn)
    with report_write_errors(output):
        write_page(document, output)
    typer.echo(f"report: {output}")
