"""`hullo data`: fetch, check, list, pack."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hullo.lab.cli.common import Command, DataOption, QuietOption, console, lasting, refusals

if TYPE_CHECKING:
    from hullo.lab.data import Copy
    from hullo.lab.data.ilsvrc2012 import Home

data = typer.Typer(no_args_is_help=True, help="Fetch, check, list and pack data sets.")

NamesArgument = Annotated[list[str] | None, typer.Argument(help="Names of data sets.", show_default="all")]
SourceOption = Annotated[
    Path | None,
    typer.Option(
        help="Where the tars or folders of ilsvrc2012 are.", show_default="the data directory's folder ilsvrc2012"
    ),
]


def _copies(names: list[str] | None, data_dir: Path | None) -> list[Copy]:
    """The copies of data sets; without names, of all that can be fetched."""
    from hullo.lab.data import RELEASES, find, ilsvrc2012
    from hullo.lab.spec.recipes import AUGMENTATIONS

    with refusals():
        if unknown := [name for name in names or () if name not in AUGMENTATIONS]:
            raise ValueError(f"unknown data set {unknown[0]!r}; there are {', '.join(AUGMENTATIONS)}")
        return [find(name, data_dir) for name in names or RELEASES if name != ilsvrc2012.NAME]


def _home(names: list[str] | None, data_dir: Path | None, source: Path | None = None) -> Home | None:
    """Where ilsvrc2012 lies, if it is among the names, or there are none."""
    from hullo.lab.data import data_root, ilsvrc2012

    meant = not names or ilsvrc2012.NAME in names
    with refusals():
        if source is not None and not meant:
            raise ValueError(f"--source is for {ilsvrc2012.NAME} alone; got {', '.join(names or ())}")
    return ilsvrc2012.Home(data_root(data_dir), source) if meant else None


@data.command(cls=Command)
def fetch(
    names: NamesArgument = None,
    data_dir: DataOption = None,
    quiet: QuietOption = False,
) -> None:
    """Bring data sets from their official addresses; go on where an earlier fetch broke off."""
    from hullo.lab.data.fetch import fetch

    for copy in _copies(names, data_dir):
        with refusals():
            fetch(copy, console(), quiet=quiet)
        typer.echo(f"{copy.release.name} is ready in {copy.folder}")
    if names and (home := _home(names, data_dir)):
        typer.echo(f"hullo: {home.explain_fetch()}", err=True)
        raise typer.Exit(1)


@data.command(cls=Command)
def check(
    names: NamesArgument = None,
    data_dir: DataOption = None,
    source: SourceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare every byte of data sets with what was released; exit code 1 if one is missing or differs.

    Without names, ilsvrc2012 counts only if something of it is there: it cannot be fetched.
    """
    from hullo.lab.progress import Progress

    home, sound = _home(names, data_dir, source), True
    for copy in _copies(names, data_dir):
        flaws = copy.flaws()
        sound = sound and not flaws
        for line in flaws.values() or [f"{copy.release.name} is ready in {copy.folder}"]:
            typer.echo(line)
    if home is not None and (names or source or home.holds_anything):
        with refusals(), Progress(console(), quiet=quiet) as progress:
            ready, lines = home.check(progress)
        sound = sound and ready
        for line in lines:
            typer.echo(line)
    raise typer.Exit(not sound)


@data.command("list", cls=Command)
def list_data(data_dir: DataOption = None) -> None:
    """Show which data sets there are, where, and in what state."""
    from hullo.lab.data.overview import overview

    table = overview(_copies(None, data_dir))
    if home := _home(None, data_dir):
        with refusals():
            table.add_row(*home.overview_row())
    console().print(table)


@data.command(cls=Command)
def pack(
    name: Annotated[str, typer.Argument(help="The data set: ilsvrc2012.")],
    data_dir: DataOption = None,
    source: SourceOption = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Pack what is there although images are missing or broken.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode.", min=1, show_default="as many as cores")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Decode a large data set once, into files that can be read fast; go on where an earlier packing broke off."""
    from hullo._signals import unwinding
    from hullo.lab.data import data_root, ilsvrc2012
    from hullo.lab.data.ilsvrc2012 import packing
    from hullo.lab.data.ilsvrc2012.workers import available_cores, worker_processes
    from hullo.lab.progress import Progress

    with refusals():
        if name != ilsvrc2012.NAME:
            raise ValueError(f"{name!r} is not packed; {ilsvrc2012.NAME} alone is")
        home = ilsvrc2012.Home(data_root(data_dir), source)
    pool = functools.partial(worker_processes, workers or available_cores())
    with Progress(console(), quiet=quiet) as progress:
        with refusals():
            chosen = packing.choose(home.source, progress, partial=partial)
        with lasting(home.packed), unwinding():
            made = packing.pack(home.source, chosen, home.packed, pool, progress, partial=partial)
    counts = " and ".join(f"{part.num_images:,} {split}" for split, part in made.parts.items())
    lacking = sum(part.num_released - part.num_images for part in made.parts.values())
    damaged = sum(len(part.damaged) for part in made.parts.values())
    remarks = [f"; {lacking:,} are left out"] * bool(lacking)
    remarks += [f"; {damaged:,} are damaged: get them anew and pack again, or live with it"] * bool(damaged)
    typer.echo(f"{name} is packed in {home.packed}: {counts} images{''.join(remarks)}")
