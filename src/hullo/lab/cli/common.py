"""What commands share: options, where results are printed, and how what went wrong is said."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hullo import _signals
from hullo.lab.errors import RunError
from hullo.lab.progress import PipeConsole

if TYPE_CHECKING:
    from hullo.lab.analysis.experiments import Experiment
    from hullo.lab.spec.records import Record

DataOption = Annotated[
    Path | None,
    typer.Option("--data", envvar="HULLO_DATA", help="The data directory.", show_default="the user's cache"),
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda where there is one")]
EpochsOption = Annotated[
    int | None,
    typer.Option(help="How often all training samples are seen.", show_default="50; AlexNet: 90; your own: 20"),
]
BatchSizeOption = Annotated[
    int | None, typer.Option(help="Samples per step.", show_default="32; AlexNet: 256; your own: 64")
]
OptimizerOption = Annotated[
    str | None,
    typer.Option(help="rmsprop, sgd, adam or adamw.", show_default="rmsprop; AlexNet: sgd; your own: adam"),
]
RateOption = Annotated[
    float | None, typer.Option(help="The learning rate.", show_default="0.0001; AlexNet: 0.01; your own: 0.001")
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        help="How the learning rate falls: constant; cosine, to 0 at the end; inverse:D, to lr / (1 + D * updates); "
        "step:N, to a tenth after every N epochs.",
        show_default="inverse:1e-06; AlexNet: step:EPOCHS/4.5; your own: constant",
    ),
]
DecayOption = Annotated[float | None, typer.Option(help="Weight decay of weights.", show_default="0; AlexNet: 0.0005")]
AugmentOption = Annotated[
    str | None,
    typer.Option(
        help="Augmentation of training images: none, flip, shift:F, or flip,shift:F.",
        show_default="flip,shift:0.1; your own: none",
    ),
]
ImageSizeOption = Annotated[
    int | None,
    typer.Option(help="Resize and crop the images of your own folder to so many pixels on each side."),
]
ScaleOption = Annotated[float, typer.Option(help="The coefficients' learning rate, as a multiple of the others'.")]
PrecisionOption = Annotated[
    str, typer.Option(help="float32, or bfloat16: products in bfloat16, everything else in float32.")
]
OutputOption = Annotated[Path, typer.Option(help="The directory of the records; what is recorded is not run again.")]
EveryOption = Annotated[float, typer.Option(help="Seconds between checkpoints.", min=0)]
ValSizeOption = Annotated[
    int, typer.Option(help="How many training images to hold out and evaluate beside the test images.")
]
BoardOption = Annotated[
    Path | None, typer.Option(help="A directory for TensorBoard to show, written as epochs end.", show_default="none")
]
RecordsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Files of records, or directories that hold them at any depth.",
        show_default="runs, or results/table, or results",
    ),
]
ExperimentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--experiment",
        help="lenet5/cifar10, or with settings, 'lenet5/cifar10 epochs=50'; may be given several times.",
        show_default="all",
    ),
]
ReadingOption = Annotated[
    str | None,
    typer.Option(
        help="Which epochs count: last, last10 (mean of the last ten), chosen (on held-out images), or best (on the "
        "test images, which explains the paper and is not a result).",
        show_default="chosen, else last10, else last",
    ),
]
USUAL = (Path("runs"), Path("results/table"), Path("results"))
"""Where records are looked for."""
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


class Engine(StrEnum):
    """Where populations are trained: one after the other in this process, or as tasks of a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"


EngineOption = Annotated[Engine, typer.Option(help="Train in this process, or on a Ray cluster.")]
MembersOption = Annotated[
    int | None,
    typer.Option(help="Networks to train side by side at most.", min=1, show_default="as many as fit into memory"),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="The Ray cluster: host:port, or auto.", show_default="RAY_ADDRESS, or a cluster made of this machine"
    ),
]
GpusOption = Annotated[
    float | None,
    typer.Option(
        help="The part of a GPU that a population has on a Ray cluster.",
        min=0,
        max=1,
        show_default="1 where there are any",
    ),
]


BROKEN_PIPE = 141
"""The exit code that shells give for programs that ended because nobody read on."""


class Command(TyperCommand):
    """A command whose help names no type beside flags."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, flags without a metavar."""
        return _without_types(super().get_params(ctx))


def _without_types(params: Any) -> Any:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class Commands(TyperGroup):
    """The group of all commands; it turns what may end any of them into an exit code and at most one line."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, flags without a metavar."""
        return _without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            result = super().invoke(ctx)
            if sys.stdout:
                sys.stdout.flush()
        except KeyboardInterrupt:
            typer.echo(f"hullo: {_signals.describe()}", err=True)
            raise typer.Exit(_signals.exit_code()) from None
        except BrokenPipeError:  # the reader has seen enough, as in: hullo table | head
            _discard_output()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as error:
            typer.echo(f"hullo: {error.filename or 'standard output'}: {error.strerror or error}", err=True)
            raise typer.Exit(1) from error
        return result


def _discard_output() -> None:
    """Send what is still to be written to a closed pipe nowhere."""
    with open(os.devnull, "wb") as nowhere:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError, ValueError):  # which a stream without a file raises
                os.dup2(nowhere.fileno(), stream.fileno())


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn a ValueError into one line and exit code 2 (a usage error), or 1 if it is a RunError."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"hullo: {error}", err=True)
        raise typer.Exit(1 if isinstance(error, RunError) else 2) from error


@contextlib.contextmanager
def writing(output: Path, then: str = "make room, or name another place") -> Iterator[None]:
    """Turn an OSError while files are written into one line that says what to do then, and exit code 1."""
    with refusals():
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            place = os.fsdecode(error.filename or output)
            raise RunError(f"cannot write {place}: {error.strerror}; {then}") from error


def known_paths(records: list[Path] | None) -> list[Path]:
    """Where records are to be read from: where a user says, or where they usually are."""
    return records or [next((path for path in USUAL if path.exists()), USUAL[0])]


def warn(text: str) -> None:
    """Say what is wrong with what was found, and is left out."""
    typer.echo(f"warning: {text}", err=True)


def note_left_out(known: Sequence[Record], shown: Sequence[Experiment], columns: list[str] | None) -> None:
    """Say which experiments are not shown, as they have no such epoch or no such reading."""
    from hullo.lab.analysis.experiments import experiments

    everything = experiments(known, columns=columns or ()) if known else []
    if missing := [e.name for e in everything if e.setting not in {other.setting for other in shown}]:
        typer.echo(f"note: left out, without this epoch or reading: {', '.join(missing)}", err=True)


def note_torn(paths: Iterable[Path]) -> None:
    """Say which files of records end within a line, as a process that was killed leaves them."""
    from hullo.lab.analysis.sources import record_files
    from hullo.lab.spec.records import Records

    for file in (file for path in paths for file in record_files(path)):
        if count := Records(file).torn:
            left = f"the last line of {file} breaks off after {count:,} bytes and is left out"
            typer.echo(f"note: {left}; the next run that is recorded there takes it away", err=True)


def console() -> PipeConsole:
    """Return where results are printed: as wide as the terminal, or wide enough for tables in a file."""
    terminal = PipeConsole()
    return terminal if terminal.is_terminal else PipeConsole(width=120)


@contextlib.contextmanager
def lasting(output: Path) -> Iterator[None]:
    """Turn what ends a long command before its time into one line that says how to go on."""
    command = shlex.join(["hullo", *sys.argv[1:]])
    kept = "finished runs are kept; make room, or choose another directory with --output"
    try:
        with writing(output, f"{kept}; go on with: {command}"):
            yield
    except KeyboardInterrupt:
        typer.echo(f"hullo: stopped; the state is saved in {output}; go on with: {command}", err=True)
        raise typer.Exit(_signals.exit_code()) from None
