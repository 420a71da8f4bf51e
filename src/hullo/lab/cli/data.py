"""`hullo data`: fetch, check, list."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hullo.lab.cli.common import DataOption, QuietOption, console, refusals

if TYPE_CHECKING:
    from hullo.lab.data import Copy

data = typer.Typer(no_args_is_help=True, help="Fetch, check and list data sets.")

NamesArgument = Annotated[list[str] | None, typer.Argument(help="Names of data sets.", show_default="all")]


def _copies(names: list[str] | None, data_dir: Path | None) -> list[Copy]:
    from hullo.lab.data import RELEASES, find

    with refusals():
        return [find(name, data_dir) for name in names or RELEASES]


@data.command()
def fetch(
    names: NamesArgument = None,
    data_dir: DataOption = None,
    quiet: QuietOption = False,
) -> None:
    """Bring data sets from their official addresses; go on where an earlier fetch broke off."""
    from hullo.lab.data.fetch import fetch

    for copy in _copies(names, data_dir):
        with refusals(exit_code=1):
            fetch(copy, console(), quiet=quiet)
        typer.echo(f"{copy.release.name} is ready in {copy.folder}")


@data.command()
def check(names: NamesArgument = None, data_dir: DataOption = None) -> None:
    """Compare every byte of data sets with what was released; exit code 1 if one is missing or differs."""
    sound = True
    for copy in _copies(names, data_dir):
        flaws = copy.flaws()
        sound = sound and not flaws
        for line in flaws.values() or [f"{copy.release.name} is ready in {copy.folder}"]:
            typer.echo(line)
    raise typer.Exit(not sound)


@data.command("list")
def list_data(data_dir: DataOption = None) -> None:
    """Show which data sets there are, where, and in what state."""
    from hullo.lab.data.overview import overview

    console().print(overview(_copies(None, data_dir)))
