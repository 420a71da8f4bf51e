"""End the `hullo` command on Ctrl-C, SIGTERM and SIGHUP: one line, exit code 128 + the signal's number, at once.

A process that merely imports hullo keeps its signal handlers. In the `hullo` command, from the first import on, a
signal ends the process wherever it is: an exception would be swallowed by some libraries, and printed by others. Work
that must not be cut off says so: within `unwinding` a signal raises KeyboardInterrupt, within `stop_request` it sets an
event.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

WORDS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}
SIGNALS = {getattr(signal, name): word for name, word in WORDS.items() if hasattr(signal, name)}
AGAIN = 1.0
"""Seconds within which a signal is a repetition: `timeout` and `torchrun` send it to a process, then to its group."""
SHOW_CURSOR = b"\x1b[?25h"
"""Restores a terminal after a progress bar was cut off."""


class _State:
    installed = False
    received: int | None = None  # the first signal
    since = 0.0  # when it came
    unwinding = 0  # open blocks of `unwinding`
    stop: threading.Event | None = None  # of the open `stop_request`


def install() -> None:
    """Answer the signals that end a command, except those that its parent had it ignore, as nohup does.

    Processes that torchrun started leave SIGTERM, with which it ends them, to the system: they may be waiting for each
    other where no handler would be called.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _State.installed = True
    left = [signal.SIGTERM] if os.environ.get("WORLD_SIZE", "1") != "1" else []
    for number in SIGNALS:
        if number not in left and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _answer)


def was_received() -> bool:
    """Return whether a signal that ends the command has come."""
    return _State.received is not None


def exit_code() -> int:
    """Return the exit code of a command that was interrupted."""
    return 128 + (_State.received or signal.SIGINT)


def describe() -> str:
    """Return what happened to a command that was interrupted, in a word or two."""
    return SIGNALS[signal.Signals(exit_code() - 128)]


@contextmanager
def unwinding() -> Iterator[None]:
    """Have a signal raise KeyboardInterrupt within the block, which can clean up after itself."""
    _State.unwinding += 1
    try:
        yield
    finally:
        _State.unwinding -= 1


@contextmanager
def stop_request() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets, so that work can be saved; a later signal raises KeyboardInterrupt.

    KeyboardInterrupt is raised at the end of the block, too, if the event was set. Outside of the `hullo` command only
    Ctrl-C counts.
    """
    stop = _State.stop = threading.Event()
    usual = {number: signal.getsignal(number) for number in SIGNALS}
    ours = [n for n in SIGNALS if usual[n] is _answer] if _State.installed else [signal.SIGINT]

    def ask(number: int, _: FrameType | None) -> None:
        if stop.is_set() and not _is_repetition():
            raise KeyboardInterrupt
        if not stop.is_set():
            _State.received, _State.since = number, time.monotonic()
        stop.set()

    for number in ours:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        _State.stop = None
        for number in ours:
            signal.signal(number, usual[number])
    if stop.is_set():
        raise KeyboardInterrupt


def check_stop() -> None:
    """Raise KeyboardInterrupt if the event of the open `stop_request` is set; for loops that wait."""
    if _State.stop is not None and _State.stop.is_set():
        raise KeyboardInterrupt


def _answer(number: int, _: FrameType | None) -> None:
    if _State.received is None:
        _State.received, _State.since = number, time.monotonic()
        if _State.unwinding:
            raise KeyboardInterrupt
    elif _is_repetition():
        return
    _end(number)


def _is_repetition() -> bool:
    return time.monotonic() - _State.since < AGAIN


def _end(number: int) -> NoReturn:
    for stream in (1, 2):
        if os.isatty(stream):
            os.write(stream, SHOW_CURSOR + b"\n" * (stream == 2))  # the line begins below the terminal's ^C
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"hullo: {describe()}\n".encode())
    os._exit(128 + number)


def _is_command() -> bool:
    """Return whether this process was started as `hullo` or `python -m hullo`; its worker processes were not."""
    count = len(getattr(sys, "argv", ()))
    started = sys.orig_argv[-count:][:1] if count else []  # what stands before the arguments of the command
    return [os.path.splitext(os.path.basename(word))[0].removeprefix("-m") for word in started] == ["hullo"]


if _is_command():
    install()
