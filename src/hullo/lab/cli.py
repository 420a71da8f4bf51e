"""The command line: thin commands over the laboratory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import hullo

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Activation functions that learn."
)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What a user got wrong, found before anything is done, as one line and exit code 2."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"hullo: {error}", err=True)
        raise typer.Exit(2) from error


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
