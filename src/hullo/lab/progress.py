"""Progress of a long command: a bar on a terminal, lines elsewhere, nothing when it shall be quiet."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress


class PipeConsole(Console):
    """A console that raises BrokenPipeError where nobody reads on, as other streams do."""

    def on_broken_pipe(self) -> None:
        """Let the command decide; Rich would exit."""
        raise


class Progress:
    """Shows how far a command has come through its steps, each begun with its name.

    On a terminal that is a bar below what is printed; elsewhere each step is one line on standard error, so that
    standard output holds results alone. Notes are shown even when `quiet`: they say what a result lacks.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        self._bar = RichProgress(
            *columns, TimeElapsedColumn(), console=console, disable=quiet or not console.is_terminal
        )
        self._task = self._bar.add_task("", total=None)
        self._lines = PipeConsole(stderr=True, quiet=quiet or console.is_terminal)
        self._told = console if console.is_terminal and not quiet else self._lines
        self._notes = console if console.is_terminal else PipeConsole(stderr=True)
        self._done = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, name: str, done: int, total: int) -> None:
        """A step begins, `done` of `total` being behind."""
        self._done = done
        self._bar.update(self._task, completed=done, total=total, description=name)
        self._lines.print(f"[{done + 1}/{total}] {name}", soft_wrap=True, highlight=False, markup=False)

    def reach(self, fraction: float, name: str | None = None) -> None:
        """So much of the present step is done, from 0 to 1; on a terminal it may go by another name from here on."""
        self._bar.update(self._task, completed=self._done + fraction, description=name)

    def tell(self, text: str, done: int, total: int) -> None:
        """Say in a line what has become of one of the steps, where several go on at once."""
        self._bar.update(self._task, completed=done, total=total, description=f"{done} of {total}")
        self._told.print(text, soft_wrap=True, highlight=False, markup=False)

    def note(self, text: str) -> None:
        """Say something beside the progress."""
        self._notes.print(f"note: {text}", soft_wrap=True, highlight=False, markup=False)
