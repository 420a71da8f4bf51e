"""The command line: thin commands over the laboratory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import hullo

if TYPE_CHECKING:
    from hullo.lab.data import Copy

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Activation functions that learn."
)
data = typer.Typer(no_args_is_help=True, help="Fetch, check and list data sets.")
app.add_typer(data, name="data")

DataOption = Annotated[
    Path | None,
    typer.Option("--data", envvar="HULLO_DATA", help="The data directory.", show_default="the user's cache"),
]
NamesArgument = Annotated[list[str] | None, typer.Argument(help="Names of data sets.", show_default="all")]


@contextlib.contextmanager
def refusals(exit_code: int = 2) -> Iterator[None]:
    """What a user got wrong, found before anything is done, as one line and exit code 2; what failed, as another."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"hullo: {error}", err=True)
        raise typer.Exit(exit_code) from error


def console() -> Console:
    """Where results are printed: as wide as the terminal, or wide enough for tables in a file."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=120)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hullo {hullo.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
def bench(
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda where there is one")
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Elements, or shapes with groups of channels after a slash: 2^24,32x60x8x8/60.",
            show_default="what suits the device",
        ),
    ] = None,
    dtypes: Annotated[
        str | None, typer.Option(help="float32,bfloat16,float16,float64.", show_default="what suits the device")
    ] = None,
    activations: Annotated[
        str, typer.Option(help="Which to compare.")
    ] = "relu,gelu,prelu,plain,stacked,compiled,hullo,hullo6",
    repeats: Annotated[int, typer.Option(help="Times each is measured, in turn.")] = 30,
    budget: Annotated[
        float, typer.Option(help="Seconds after which the run ends, with fewer repeats.", show_default="none")
    ] = math.inf,
    output: Annotated[
        Path | None, typer.Option(help="A folder for the rows (CSV) and a chart (PNG).", show_default="none")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="The commit to note in the rows.", show_default="the checkout's")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Measure what activations cost, in time and memory, beside GELU and the speed of the memory."""
    from hullo.lab.bench.session import Session

    with refusals():
        session = Session.prepare(
            device=device,
            sizes=sizes,
            dtypes=dtypes,
            activations=activations,
            repeats=repeats,
            budget=budget,
            commit=commit,
            folder=output,
        )
    session.run(console(), quiet=quiet)


def _copies(names: list[str] | None, data_dir: Path | None) -> list[Copy]:
    from hullo.lab.data import RELEASES, find

    with refusals():
        return [find(name, data_dir) for name in names or RELEASES]


@data.command()
def fetch(
    names: NamesArgument = None,
    data_dir: DataOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
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
