"""Options, output and error handling that commands share."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hullo.lab import signals
from hullo.lab.errors import RunError
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
"""Where records are looked for by default; the first that exists is used."""
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


BROKEN_PIPE = 141
"""The exit code of a program that was ended by SIGPIPE, as shells report it."""


class _PlainFlags:
    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, flags without a metavar."""
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_PlainFlags, TyperCommand):
    """A command whose help shows no type for flags."""


class Group(_PlainFlags, TyperGroup):
    """A group of commands whose help shows no type for flags."""


class Commands(Group):
    """The group of all commands; converts exceptions to an exit code and at most one line of output."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="replace")  # ± on a terminal for ASCII
        try:
            result = super().invoke(ctx)
            if sys.stdout:
                sys.stdout.flush()
        except KeyboardInterrupt:
            typer.echo(f"hullo: {signals.describe()}", err=True)
            raise typer.Exit(signals.exit_code()) from None
        except BrokenPipeError:  # the reader closed the pipe, as in: hullo table | head
            _discard_output()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as error:
            typer.echo(f"hullo: {error.filename or 'standard output'}: {error.strerror or error}", err=True)
            raise typer.Exit(1) from error
        except (MemoryError, RuntimeError) as error:
            from hullo._compat import is_out_of_memory

            if not is_out_of_memory(error):
                raise
            remedy = "free some, or choose smaller batches or images"
            typer.echo(f"hullo: memory ran out; {remedy}", err=True)
            raise typer.Exit(1) from error
        return result


def _discard_output() -> None:
    """Discard buffered output to a closed pipe."""
    with open(os.devnull, "wb") as nowhere:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError, ValueError):  # raised by streams without a file descriptor
                os.dup2(nowhere.fileno(), stream.fileno())


@contextlib.contextmanager
def report_errors() -> Iterator[None]:
    """Turn a ValueError into one line and exit code 2 (usage error), or 1 if it is a RunError."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"hullo: {error}", err=True)
        raise typer.Exit(1 if isinstance(error, RunError) else 2) from error


@contextlib.contextmanager
def report_warnings() -> Iterator[None]:
    """Print Python's warnings as one line each, without the place in the source code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_args, **_options: warn(str(message))
        yield


@contextlib.contextmanager
def report_write_errors(output: Path, remedy: str = "choose another path") -> Iterator[None]:
    """Turn an OSError while files are written into one line that ends with the `remedy`, and exit code 1."""
    from hullo.lab.files import add_disk_full_hint

    with report_errors():
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            path = os.fsdecode(error.filename or output)
            raise RunError(f"cannot write {path}: {error.strerror}; {add_disk_full_hint(error, remedy)}") from error


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
        typer.echo(f"note: omitted, without this epoch or reading: {', '.join(missing)}", err=True)


def echo_finding(experiments: Sequence[Experiment], paths: Sequence[Path] = ()) -> None:
    """Print what the experiments show, as the last line; that of `hullo compare` in a directory takes precedence."""
    from hullo.lab.analysis.sources import stated_findings

    stated = " ".join(stated_findings(paths))
    if not stated and any(len(experiment.cells) > 1 for experiment in experiments):
        from hullo.lab.analysis.names import main_experiments, titles
        from hullo.lab.analysis.report.finding import finding

        main = main_experiments(experiments)
        named = titles(main)
        stated = finding({named[column]: experiment for column, experiment in main.items()}, experiments)
    if stated:
        typer.echo(stated)


def console() -> PipeConsole:
    """Return the console for results: as wide as the terminal, or 120 columns elsewhere."""
    terminal = PipeConsole()
    return terminal if terminal.is_terminal else PipeConsole(width=120)


@contextlib.contextmanager
def report_interruption(output: Path) -> Iterator[None]:
    """Turn an interruption or a write error of a long command into one line that says how to resume."""
    command = shlex.join(["hullo", *sys.argv[1:]])
    remedy = "choose another directory with --output"
    try:
        with report_write_errors(output, f"{remedy}; finished runs are kept, resume with: {command}"):
            yield
    except KeyboardInterrupt:
        typer.echo(f"hullo: stopped; what was done is kept in {output}; resume with: {command}", err=True)
        raise typer.Exit(signals.exit_code()) from None
