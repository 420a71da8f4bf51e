"""`hullo figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import (
    DEFAULT_RECORD_PATHS,
    ExperimentsOption,
    ReadingOption,
    RecordsArgument,
    note_omitted,
    note_truncated,
    report_errors,
    report_write_errors,
    warn,
)


def figures(
    records: RecordsArgument = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="geometry, pipeline, activations, coefficients or accuracy; may be given several times.",
            show_default="all",
        ),
    ] = None,
    columns: ExperimentsOption = None,
    rows: Annotated[
        list[str] | None,
        typer.Option("--activation", help="An activation; may be given several times.", show_default="all"),
    ] = None,
    reading: ReadingOption = None,
    epoch: Annotated[int | None, typer.Option(help="Last epoch to use.", show_default="the last")] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the activations and coefficients to draw.", show_default="the first that did not diverge"
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="Directory for the figures.")] = Path("figures"),
) -> None:
    """Draw figures as PNG and PDF: accuracies, learned activations and coefficients, the geometry of hulls."""
    from hullo.lab.analysis.experiments import experiments
    from hullo.lab.analysis.figures import FIGURES, WITHOUT_RECORDS, draw_figures, drawing, save
    from hullo.lab.analysis.sources import read_records
    from hullo.lab.files import make_directory

    with report_errors():
        wanted = only or FIGURES
        if unknown := [name for name in wanted if name not in FIGURES]:
            raise ValueError(f"unknown figure {unknown[0]!r}; available: {', '.join(FIGURES)}")
        needy = [name for name in wanted if name not in WITHOUT_RECORDS]
        paths = records or [path for path in DEFAULT_RECORD_PATHS if path.exists()][:1]
        if needy and not paths and (only or columns or rows or (reading, epoch, seed) != (None, None, None)):
            raise ValueError(f"no records for the figure {needy[0]!r}; give files of records, or directories of them")
        known = read_records(paths, warn) if needy and paths else []
        found = (
            experiments(known, reading=reading, epoch=epoch, columns=columns or (), rows=rows or ()) if known else []
        )
        seeds = {record.spec.seed for experiment in found for record in experiment.records}
        if found and seed is not None and seed not in seeds:
            raise ValueError(f"no run has seed {seed}; available: {', '.join(map(str, sorted(seeds)))}")
        make_directory(output)
    note_truncated(paths if needy else ())
    note_omitted(known, found, columns)
    with report_write_errors(output), drawing():
        for name, figure in draw_figures(found, wanted, seed):
            if figure is None:
                typer.echo(f"note: no {name}: no finished run among these learned activations", err=True)
            else:
                png, pdf = save(figure, output / name)
                typer.echo(f"{png}, {pdf.name}")
    if needy and not paths:
        typer.echo(f"note: no {', '.join(needy)}: these need records; give directories of records", err=True)
