"""`hullo figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import (
    USUAL,
    ExperimentsOption,
    ReadingOption,
    RecordsArgument,
    note_left_out,
    note_torn,
    refusals,
    warn,
    writing,
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
    epoch: Annotated[int | None, typer.Option(help="The last epoch that counts.", show_default="the last")] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Whose activations and coefficients.", show_default="the first that did not diverge"),
    ] = None,
    output: Annotated[Path, typer.Option(help="The directory of the figures.")] = Path("figures"),
) -> None:
    """Draw what runs learned and reached, as PNG and PDF, and the geometry of hulls."""
    from hullo.lab.analysis.experiments import experiments
    from hullo.lab.analysis.figures import ALONE, FIGURES, draw_figures, drawing, save
    from hullo.lab.analysis.sources import read_records
    from hullo.lab.files import make_folder

    with refusals():
        wanted = only or FIGURES
        if unknown := [name for name in wanted if name not in FIGURES]:
            raise ValueError(f"unknown figure {unknown[0]!r}; there are {', '.join(FIGURES)}")
        needy = [name for name in wanted if name not in ALONE]
        paths = records or [path for path in USUAL if path.exists()][:1]
        if needy and not paths and (only or columns or rows or (reading, epoch, seed) != (None, None, None)):
            raise ValueError(f"no records for the figure {needy[0]!r}: name files of records, or directories of them")
        known = read_records(paths, warn) if needy and paths else []
        found = (
            experiments(known, reading=reading, epoch=epoch, columns=columns or (), rows=rows or ()) if known else []
        )
        seeds = {record.spec.seed for experiment in found for record in experiment.records}
        if found and seed is not None and seed not in seeds:
            raise ValueError(f"there is no run of seed {seed}; there are {', '.join(map(str, sorted(seeds)))}")
        make_folder(output)
    note_torn(paths if needy else ())
    note_left_out(known, found, columns)
    with writing(output), drawing():
        for name, figure in draw_figures(found, wanted, seed):
            if figure is None:
                typer.echo(f"note: no {name}: of these runs none that ended well learned activations", err=True)
            else:
                png, pdf = save(figure, output / name)
                typer.echo(f"{png}, {pdf.name}")
    if needy and not paths:
        typer.echo(f"note: no {', '.join(needy)}: these need records; name directories of them", err=True)
