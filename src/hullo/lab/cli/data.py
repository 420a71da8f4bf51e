"""`hullo data`: fetch, check, list, pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hullo.lab.cli.common import DataOption, QuietOption, console, flag, resumable

data = typer.Typer(no_args_is_help=True, help="Fetch, check, list and pack data sets.")

NamesArgument = Annotated[list[str] | None, typer.Argument(help="Names of data sets.", show_default="all")]


@data.command()
def fetch(names: NamesArgument = None, data_dir: DataOption = None, quiet: QuietOption = False) -> None:
    """Download missing data sets from their official addresses."""
    from hullo.lab.data import RELEASES, DataError, find
    from hullo.lab.data.fetch import fetch
    from hullo.lab.data.ilsvrc2012.pack import Pack

    for item in [find(name, data_dir) for name in names or RELEASES]:
        if isinstance(item, Pack):
            raise DataError(item.instructions)
        fetch(item, console(), quiet=quiet)
        typer.echo(f"{item.release.name} is ready in {item.folder}")


@data.command()
def check(names: NamesArgument = None, data_dir: DataOption = None, quiet: QuietOption = False) -> None:
    """Verify the checksums of data sets; exit with 1 if a file is missing or differs.

    Without names, ilsvrc2012 is checked only if some of its files exist: it cannot be fetched.
    """
    from hullo.lab.data import RELEASES, data_root, find
    from hullo.lab.data.ilsvrc2012.pack import NAME
    from hullo.lab.progress import Progress

    by_default = [*RELEASES, *([NAME] if any((data_root(data_dir) / NAME).glob("*")) else [])]
    is_intact = True
    for item in [find(name, data_dir) for name in names or by_default]:
        with Progress(console(), quiet=quiet) as progress:
            ready, lines = item.check(progress)
        is_intact = is_intact and ready
        for line in lines:
            typer.echo(line)
    raise typer.Exit(not is_intact)


@data.command("list")
def list_data(data_dir: DataOption = None) -> None:
    """List data sets with their state and location."""
    from rich.table import Table

    from hullo.lab.data import RELEASES, find
    from hullo.lab.data.ilsvrc2012.pack import NAME

    table = Table("data set", "content", "size", box=None, pad_edge=False)
    table.add_column("state", no_wrap=True)
    table.add_column("location", overflow="fold")
    for name in (*RELEASES, NAME):
        table.add_row(*find(name, data_dir).overview())
    console().print(table)


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
    quiet: QuietOption = False,
) -> None:
    """Decode a large data set once, into files that can be read fast; resume interrupted packing."""
    from hullo.lab.data import data_root
    from hullo.lab.data.ilsvrc2012.pack import NUM_RELEASED, make_pack
    from hullo.lab.data.ilsvrc2012.source import Source
    from hullo.lab.progress import Progress
    from hullo.lab.signals import unwinding
    from hullo.lab.spec.recipes import STREAMED

    if name not in STREAMED:
        raise ValueError(f"cannot pack {name!r}; only {' and '.join(STREAMED)} need packing")
    folder = data_root(data_dir) / name
    with Progress(console(), quiet=quiet) as progress, resumable(folder / "packed"), unwinding():
        packed = make_pack(Source(source or folder), folder / "packed", progress, partial=partial)
    counts = " and ".join(f"{split.num_images:,} {name}" for name, split in packed.splits.items())
    missing = sum(NUM_RELEASED.values()) - sum(split.num_images for split in packed.splits.values())
    remark = f"; {missing:,} missing or broken" if missing else ""
    typer.echo(f"{name} is packed in {packed.folder}: {counts} images{remark}")
