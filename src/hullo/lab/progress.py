"""Progress of a long command: a bar on a terminal, lines elsewhere, nothing if `quiet`."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress


class PipeConsole(Console):
    """A console that raises BrokenPipeError when its pipe is closed, as other streams do."""

    def on_broken_pipe(self) -> None:
        """Re-raise the error for the command to handle; Rich would exit."""
        raise


class Progress:
    """Show the progress of a command through named steps.

    On a terminal this is a bar below the output. Elsewhere each step prints one line to standard error; standard output
    contains only results. Notes are printed even if `quiet`.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        self._bar = RichProgress(
            *columns, TimeElapsedColumn(), console=console, disable=quiet or not console.is_terminal
        )
        self._task = self._bar.add_task("starting", total=None)
        self._console = console if console.is_terminal else PipeConsole(stderr=True)
        self._quiet, self._done = quiet, 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def start_step(self, name: str, done: int, total: int) -> None:
        """Start a step after `done` of `total` steps."""
        self._done = done
        self._bar.update(self._task, completed=done, total=total, description=name)
        if not self._quiet and not self._console.is_terminal:
            self._print(f"[{done + 1}/{total}] {name}")

    def describe(self, text: str) -> None:
        """Say on a terminal what is happening before the first step."""
        self._bar.update(self._task, description=text)

    def update(self, fraction: float, name: str | None = None) -> None:
        """Set the completed fraction of the current step, from 0 to 1; on a terminal, optionally rename the step."""
        self._bar.update(self._task, completed=self._done + fraction, description=name)

    def log(self, text: str, done: int, total: int) -> None:
        """Print one line about one of several concurrent steps, `done` of `total` being finished."""
        self._bar.update(self._task, completed=done, total=total, description=f"{done} of {total}")
        if not self._quiet:
            self._print(text)

    def note(self, text: str) -> None:
        """Print a note."""
        self._print(f"note: {text}")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)
