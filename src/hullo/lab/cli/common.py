"""Options, output and error handling that commands share."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from hullo.lab import signals
from hullo.lab.errors import RunError
from hullo.lab.files import writing
from hullo.lab.progress import PipeConsole

if TYPE_CHECKING:
    from hullo.lab.analysis.experiments import Experiment
    from hullo.lab.spec.records import Record

DataOption = Annotated[
    Path | None,
    typer.Option("--data", envvar="HULLO_DATA", help="The data directory.", show_default="the user's cache"),
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if available")]
ImageSizeOption = Annotated[
    int | None,
    typer.Option(help="Resize and crop the images of your own folder to squares of this many pixels per side."),
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
DEFAULT_RECORD_PATHS = (Path("runs"), Path("results/table"), Path("results"))
"""Default folders of records; the first that exists is used."""
flag = functools.partial(typer.Option, metavar="")
"""An option without a value."""
QuietOption = Annotated[bool, flag("--quiet", help="Show no progress.")]


BROKEN_PIPE = 141
"""The exit code of a program that was ended by SIGPIPE, as shells report it."""


class Commands(TyperGroup):
    """The group of all commands; turns exceptions into an exit code and at most one line, and warnings into lines.

    A ValueError is a usage error (2), or a failure (1) if it is a RunError.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="replace")  # ± on a terminal for ASCII
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_args, **_options: warn(str(message))
                result = super().invoke(ctx)
            if sys.stdout:
                sys.stdout.flush()
            return result
        except KeyboardInterrupt as interruption:
            message, code = str(interruption) or signals.describe(), signals.exit_code()
        except BrokenPipeError:  # the reader closed the pipe, as in: hullo table | head
            _discard_output()
            raise typer.Exit(BROKEN_PIPE) from None
        except ValueError as error:
            message, code = str(error), 1 if isinstance(error, RunError) else 2
        except OSError as error:
            message, code = f"{error.filename or 'standard output'}: {error.strerror or error}", 1
        except (MemoryError, RuntimeError) as error:
            from hullo._compat import is_out_of_memory

            if not is_out_of_memory(error):
                raise
            message, code = "memory ran out; free some, or choose smaller batches or images", 1
        typer.echo(f"hullo: {message}", err=True)
        raise typer.Exit(code)


def _discard_output() -> None:
    """Discard buffered output to a closed pipe."""
    with open(os.devnull, "wb") as nowhere:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError, ValueError):  # raised by streams without a file descriptor
                os.dup2(nowhere.fileno(), stream.fileno())


def record_paths(records: list[Path] | None) -> list[Path]:
    """Return the paths of the records: those given, else the default."""
    return records or [next((path for path in DEFAULT_RECORD_PATHS if path.exists()), DEFAULT_RECORD_PATHS[0])]


def warn(text: str) -> None:
    """Print a warning to standard error."""
    typer.echo(f"warning: {text}", err=True)


def note_omitted(records: Sequence[Record], shown: Sequence[Experiment], columns: list[str] | None) -> None:
    """Print a note about experiments that are omitted because they lack the epoch or the reading."""
    from hullo.lab.analysis.experiments import experiments

    available = experiments(records, columns=columns or (), warn=lambda _: None) if records else []
    if missing := [e.name for e in available if e.setting not in {other.setting for other in shown}]:
        typer.echo(f"note: left out, without this epoch or reading: {', '.join(missing)}", err=True)


def echo_finding(experiments: Sequence[Experiment], paths: Sequence[Path] = ()) -> None:
    """Print what the experiments show, as the last line; that of `hullo compare` in a directory takes precedence."""
    from hullo.lab.analysis.finding import headline
    from hullo.lab.analysis.names import main_experiments, titles

    main = main_experiments([experiment for experiment in experiments if len(experiment.cells) > 1])
    named = titles(main)
    if stated := headline({named[column]: experiment for column, experiment in main.items()}, experiments, paths):
        typer.echo(stated)


def console() -> PipeConsole:
    """Return the console for results: as wide as the terminal, or 120 columns elsewhere."""
    terminal = PipeConsole()
    return terminal if terminal.is_terminal else PipeConsole(width=120)


@contextlib.contextmanager
def resumable(output: Path) -> Iterator[None]:
    """Say how to resume, if a long command is interrupted or cannot write."""
    command = shlex.join(["hullo", *sys.argv[1:]])
    try:
        with writing(output, f"choose another directory with --output; finished runs are kept, resume with: {command}"):
            yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; progress is saved in {output}; resume with: {command}") from None
