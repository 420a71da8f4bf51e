"""End the `hullo` command on Ctrl-C, SIGTERM and SIGHUP: one line, exit code 128 + the signal's number, at once.

After :func:`install` a signal ends the process wherever it is: an exception would be swallowed by some libraries, and
printed by others. Work that must not be cut off says so: within `unwinding` a signal raises KeyboardInterrupt, within
`stop_request` it sets an event.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

DESCRIPTIONS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}
SIGNALS = {getattr(signal, name): description for name, description in DESCRIPTIONS.items() if hasattr(signal, name)}
REPEAT_SECONDS = 1.0
"""Signals within so many seconds count as one: `timeout` signals a process, then its process group."""
SHOW_CURSOR = b"\x1b[?25h"
"""Restores a terminal after a progress bar was cut off."""


class _State:
    installed = False
    received: int | None = None  # the first signal
    since = 0.0  # when it was received
    unwinding = 0  # open blocks of `unwinding`
    stop: threading.Event | None = None  # of the open `stop_request`


def install() -> None:
    """Install handlers for the signals that end a command, except those that the parent process set to be ignored."""
    if threading.current_thread() is not threading.main_thread():
        return
    _State.installed = True
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _handle)


def reinstall() -> None:
    """Install the handlers again, if they were, since a library has replaced them."""
    if _State.installed:
        install()


def was_received() -> bool:
    """Return whether a signal that ends the command was received."""
    return _State.received is not None


def exit_code() -> int:
    """Return the exit code of a command that was interrupted."""
    return 128 + (_State.received or signal.SIGINT)


def describe() -> str:
    """Return how the command was interrupted, such as "terminated"."""
    return SIGNALS[signal.Signals(exit_code() - 128)]


@contextmanager
def unwinding() -> Iterator[None]:
    """Make signals raise KeyboardInterrupt within the block, which can then clean up."""
    _State.unwinding += 1
    try:
        yield
    finally:
        _State.unwinding -= 1


@contextmanager
def stop_request() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets, so work can be saved; a later signal raises KeyboardInterrupt.

    If the event was set, the end of the block raises KeyboardInterrupt, and so does any error after it. Outside of the
    `hullo` command, only Ctrl-C is handled.
    """
    stop = _State.stop = threading.Event()
    previous = signal.getsignal(signal.SIGINT)
    if not _State.installed:
        _State.received = None  # of an earlier block
        signal.signal(signal.SIGINT, _handle)
    try:
        yield stop
    except Exception:
        if not stop.is_set():  # else perhaps of a process that the same signal ended, such as a compiler
            raise
    finally:
        _State.stop = None
        signal.signal(signal.SIGINT, previous)
    if stop.is_set():
        raise KeyboardInterrupt


def check_stop() -> None:
    """Raise KeyboardInterrupt if the event of the open `stop_request` is set; for loops that wait."""
    if _State.stop is not None and _State.stop.is_set():
        raise KeyboardInterrupt


def _handle(number: int, _: FrameType | None) -> None:
    is_first, now = _State.received is None, time.monotonic()
    if is_first:
        _State.received, _State.since = number, now
    elif now - _State.since < REPEAT_SECONDS:
        return
    if is_first and _State.stop is not None:
        _State.stop.set()
    elif _State.stop is not None or (is_first and _State.unwinding):
        raise KeyboardInterrupt
    else:
        _exit(number)


def _exit(number: int) -> None:
    for stream in (1, 2):
        if os.isatty(stream):
            os.write(stream, SHOW_CURSOR + b"\n" * (stream == 2))  # below the terminal's ^C
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"hullo: {describe()}\n".encode())
    os._exit(128 + number)
