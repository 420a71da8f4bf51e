"""`hullo figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import (
    ExperimentsOption,
    ReadingOption,
    RecordsArgument,
    flag,
    note_omitted,
    record_paths,
    warn,
)


def figures(
    records: RecordsArgument = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="activations, coefficients, accuracy or geometry; may be given several times.",
            show_default="the first three",
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
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="png, pdf or svg; may be given several times.", show_default="png and pdf"),
    ] = None,
    dark: Annotated[bool, flag("--dark", help="Write PNG files for dark pages, too: NAME-dark.png.")] = False,
    output: Annotated[Path, typer.Option(help="Directory for the figures.")] = Path("figures"),
) -> None:
    """Draw figures: accuracies, learned activations and coefficients; if asked for, the geometry of hulls."""
    from hullo.lab.analysis.experiments import experiments
    from hullo.lab.analysis.figures import FIGURES, FORMATS, GEOMETRY, draw_figures, drawing, save
    from hullo.lab.analysis.sources import read_records
    from hullo.lab.files import make_directory, writing

    names = only or FIGURES
    known = (*FIGURES, GEOMETRY)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown figure {unknown[0]!r}; available: {', '.join(known)}")
    if unknown := [name for name in formats or () if name not in FORMATS]:
        raise ValueError(f"unknown format {unknown[0]!r}; available: {', '.join(FORMATS)}")
    loaded = [] if set(names) == {GEOMETRY} else read_records(record_paths(records), warn)
    selected = experiments(loaded, reading=reading, epoch=epoch, columns=columns or (), rows=rows or (), warn=warn)
    seeds = {record.spec.seed for experiment in selected for record in experiment.records}
    if seeds and seed is not None and seed not in seeds:
        raise ValueError(f"no run has seed {seed}; available: {', '.join(map(str, sorted(seeds)))}")
    make_directory(output)
    note_omitted(loaded, selected, columns)
    with writing(output), drawing():
        for name, figure in draw_figures(selected, names, seed):
            if figure is None:
                typer.echo(f"note: {name} is left out: no finished run learned these activations", err=True)
            else:
                first, *others = save(figure, output / name, formats or ("png", "pdf"), dark=dark)
                typer.echo(", ".join([str(first), *(path.name for path in others)]))
