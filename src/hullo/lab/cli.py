"""The command line: thin commands over the laboratory."""

from __future__ import annotations

import contextlib
import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import hullo

if TYPE_CHECKING:
    from hullo.lab.data import Copy
    from hullo.lab.records import Record
    from hullo.lab.specs import Spec

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


DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda where there is one")]
EpochsOption = Annotated[int, typer.Option(help="How often all training pictures are seen.")]
BatchOption = Annotated[int, typer.Option(help="Pictures a step.")]
RateOption = Annotated[float, typer.Option(help="RMSprop's learning rate.")]
ScaleOption = Annotated[float, typer.Option(help="The coefficients' learning rate, as a multiple of the others'.")]
BfloatOption = Annotated[bool, typer.Option("--bfloat16", help="Compute products in bfloat16.")]
OutputOption = Annotated[Path, typer.Option(help="The directory of the records; what is recorded is not run again.")]
EveryOption = Annotated[float, typer.Option(help="Seconds between checkpoints.", min=0)]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


@contextlib.contextmanager
def _lasting(output: Path) -> Iterator[None]:
    """What ends a long command before its time, as one line that says how to go on."""
    command = shlex.join(["hullo", *sys.argv[1:]])
    try:
        with refusals(exit_code=1):
            yield
    except KeyboardInterrupt:
        typer.echo(f"hullo: stopped; the state is saved in {output}; go on with: {command}", err=True)
        raise typer.Exit(130) from None
    except OSError as error:
        typer.echo(
            f"hullo: cannot write {error.filename or output}: {error.strerror}; finished runs are kept; make room, or "
            f"choose another directory with --output; go on with: {command}",
            err=True,
        )
        raise typer.Exit(1) from error


def _run(
    specs: list[Spec], *, device: str | None, data_dir: Path | None, output: Path, every: float, quiet: bool
) -> list[Record]:
    from hullo.lab import data as datasets
    from hullo.lab.bench.clocks import clock_for
    from hullo.lab.bench.rows import setting
    from hullo.lab.grid import Grid
    from hullo.lab.progress import Steps

    with refusals():
        clock = clock_for(device)
    with _lasting(output):
        output.mkdir(parents=True, exist_ok=True)
        loaded = {name: datasets.load(name, data_dir, clock.device) for name in {spec.data for spec in specs}}
        grid = Grid(specs, loaded, output, setting(clock.device_name), every)
        with Steps(console(), quiet=quiet) as progress:
            return grid.run(progress)


@app.command()
def train(
    network: Annotated[str, typer.Argument(help="lenet5, kerasnet or resnet56.")],
    dataset: Annotated[str, typer.Argument(help="A data set; see hullo data list.")],
    activation: Annotated[str, typer.Option(help="A base, or a hull: 'convex(identity,relu)'.")] = "relu",
    seed: Annotated[int, typer.Option(help="Where weights start, and the order of pictures.")] = 0,
    epochs: EpochsOption = 50,
    batch: BatchOption = 32,
    lr: RateOption = 1e-4,
    coefficient_lr_scale: ScaleOption = 1.0,
    bfloat16: BfloatOption = False,
    device: DeviceOption = None,
    data_dir: DataOption = None,
    output: OutputOption = Path("runs"),
    checkpoint_every: EveryOption = 30.0,
    quiet: QuietOption = False,
) -> None:
    """Train one network; after a break the same command goes on."""
    from hullo.lab.specs import Spec

    with refusals():
        spec = Spec(
            network,
            dataset,
            activation,
            seed=seed,
            epochs=epochs,
            batch=batch,
            lr=lr,
            coefficient_lr_scale=coefficient_lr_scale,
            precision="bfloat16" if bfloat16 else "float32",
        )
    (record,) = _run([spec], device=device, data_dir=data_dir, output=output, every=checkpoint_every, quiet=quiet)
    typer.echo(f"{spec}: {record.ended}, test accuracy {record.accuracy:.2f} %")


@app.command()
def reproduce(
    columns: Annotated[
        list[str] | None,
        typer.Argument(help="Networks on data sets: lenet5/cifar10.", show_default="the paper's, without AlexNet's"),
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option(help="An activation; may be given several times.", show_default="the paper's")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1)] = 5,
    epochs: EpochsOption = 50,
    batch: BatchOption = 32,
    lr: RateOption = 1e-4,
    coefficient_lr_scale: ScaleOption = 1.0,
    bfloat16: BfloatOption = False,
    device: DeviceOption = None,
    data_dir: DataOption = None,
    output: OutputOption = Path("runs"),
    checkpoint_every: EveryOption = 30.0,
    quiet: QuietOption = False,
) -> None:
    """Train columns of the paper's table, all rows and seeds at once; after a break the same command goes on."""
    from hullo.lab.curves import draw_curves
    from hullo.lab.grid import DATA_COLUMNS, parse_column
    from hullo.lab.paper import ROWS
    from hullo.lab.specs import Spec
    from hullo.lab.summary import summarise

    with refusals():
        chosen = list(dict.fromkeys(map(parse_column, columns))) if columns else DATA_COLUMNS
        specs = [
            Spec(
                *column,
                row,
                seed=seed,
                epochs=epochs,
                batch=batch,
                lr=lr,
                coefficient_lr_scale=coefficient_lr_scale,
                precision="bfloat16" if bfloat16 else "float32",
            )
            for column in chosen
            for row in rows or ROWS
            for seed in range(seeds)
        ]
    records = _run(specs, device=device, data_dir=data_dir, output=output, every=checkpoint_every, quiet=quiet)
    for column in chosen:
        own = [record for record in records if record.spec.column == column]
        console().print(summarise(own))
        with _lasting(output):
            picture = output / f"{column.network}-{column.data}.png"
            if draw_curves(own, picture):
                typer.echo(f"the learned activations: {picture}")


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
