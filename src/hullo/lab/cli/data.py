"""`hullo data`: fetch, check, list, pack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hullo.lab.cli.common import DataOption, QuietOption, console, flag, resumable

if TYPE_CHECKING:
    from hullo.lab.data import Copy
    from hullo.lab.data.ilsvrc2012 import Home

data = typer.Typer(no_args_is_help=True, help="Fetch, check, list and pack data sets.")

NamesArgument = Annotated[list[str] | None, typer.Argument(help="Names of data sets.", show_default="all")]


def _copies(names: list[str] | None, data_dir: Path | None) -> list[Copy]:
    """Return the copies of data sets; without names, of all that can be fetched."""
    from hullo.lab.data import RELEASES, find
    from hullo.lab.spec.recipes import AUGMENTATIONS, STREAMED

    if unknown := [name for name in names or () if name not in AUGMENTATIONS]:
        raise ValueError(f"unknown data set {unknown[0]!r}; available: {', '.join(AUGMENTATIONS)}")
    return [find(name, data_dir) for name in names or RELEASES if name not in STREAMED]


def _home(names: list[str] | None, data_dir: Path | None) -> Home | None:
    """Return the home of the packed data set among the names; that of ilsvrc2012 if no names are given."""
    from hullo.lab.data import data_root, ilsvrc2012
    from hullo.lab.spec.recipes import STREAMED

    packed = [name for name in names or STREAMED[:1] if name in STREAMED]
    return ilsvrc2012.Home(data_root(data_dir), name=packed[0]) if packed else None


@data.command()
def fetch(names: NamesArgument = None, data_dir: DataOption = None, quiet: QuietOption = False) -> None:
    """Download data sets from their official addresses, unless they are there."""
    from hullo.lab.data.fetch import fetch

    for copy in _copies(names, data_dir):
        fetch(copy, console(), quiet=quiet)
        typer.echo(f"{copy.release.name} is ready in {copy.folder}")
    if names and (home := _home(names, data_dir)):
        typer.echo(f"hullo: {home.explain_fetch()}", err=True)
        raise typer.Exit(1)


@data.command()
def check(names: NamesArgument = None, data_dir: DataOption = None, quiet: QuietOption = False) -> None:
    """Verify the checksums of data sets; exit with 1 if a file is missing or differs.

    Without names, ilsvrc2012 is checked only if some of its files exist: it cannot be fetched.
    """
    from hullo.lab.progress import Progress

    home, is_intact = _home(names, data_dir), True
    for copy in _copies(names, data_dir):
        flaws = copy.flaws()
        is_intact = is_intact and not flaws
        for line in flaws.values() or [f"{copy.release.name} is ready in {copy.folder}"]:
            typer.echo(line)
    if home is not None and (names or any(home.packed.parent.glob("*"))):
        with Progress(console(), quiet=quiet) as progress:
            ready, lines = home.check(progress)
        is_intact = is_intact and ready
        for line in lines:
            typer.echo(line)
    raise typer.Exit(not is_intact)


@data.command("list")
def list_data(data_dir: DataOption = None) -> None:
    """List data sets with their state and location."""
    from rich.table import Table

    table = Table("data set", "content", "size", box=None, pad_edge=False)
    table.add_column("state", no_wrap=True)
    table.add_column("location", overflow="fold")
    for copy in _copies(None, data_dir):
        size = sum(file.size for file in copy.release.files)
        table.add_row(copy.release.name, copy.release.summary, f"{size / 1e6:.1f} MB", _state(copy), str(copy.folder))
    if home := _home(None, data_dir):
        table.add_row(*home.overview_row())
    console().print(table)


def _state(copy: Copy) -> str:
    files = copy.release.files
    if not any((copy.folder / file.name).exists() for file in files):
        return "not fetched"
    flawed = len(copy.flaws())
    return f"{flawed} of {len(files)} files missing or damaged" if flawed else "ready"


@data.command()
def pack(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The data set: ilsvrc2012, or imagewoof, ten classes of it.")
    ],
    data_dir: DataOption = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the tars or folders of ilsvrc2012.", show_default="ilsvrc2012 in the data directory"
        ),
    ] = None,
    partial: Annotated[
        bool, flag("--partial", help="Pack the available images even if some are missing or broken.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Number of decoding threads.", min=1, show_default="a few more than cores")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Decode a large data set once, into files that can be read fast; resume interrupted packing."""
    from hullo.lab.data import data_root, ilsvrc2012
    from hullo.lab.data.ilsvrc2012.pack import pack
    from hullo.lab.progress import Progress
    from hullo.lab.signals import unwinding
    from hullo.lab.spec.recipes import STREAMED

    if name not in STREAMED:
        raise ValueError(f"cannot pack {name!r}; only {' and '.join(STREAMED)} need packing")
    home = ilsvrc2012.Home(data_root(data_dir), source, name)
    with Progress(console(), quiet=quiet) as progress, resumable(home.packed), unwinding():
        packed = pack(home.source, home.packed, progress, partial=partial, workers=workers)
    counts = " and ".join(f"{split.num_images:,} {name}" for name, split in packed.splits.items())
    missing = sum(split.num_released - split.num_images for split in packed.splits.values())
    remark = f"; {missing:,} missing or broken" if missing else ""
    typer.echo(f"{name} is packed in {home.packed}: {counts} images{remark}")
