"""Processes that work for this one, and not a moment longer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that end at once when the block is left by an exception or when this process is killed.

    Ctrl-C reaches them, too, but is this process's to handle.
    """
    context = multiprocessing.get_context("spawn")
    end, leash = context.Pipe(duplex=False)
    with ProcessPoolExecutor(count, context, initializer=_begin, initargs=(end,)) as pool, end:
        try:
            with _uninterrupted():
                for _ in range(count):
                    pool.submit(int)  # starts a process
            yield pool
        except BaseException:
            leash.close()
            raise
    leash.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back; processes that are started meanwhile never see it, not even while they import."""
    if os.name != "posix":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(end: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be held back
    threading.Thread(target=_end_with, args=(end,), daemon=True).start()


def _end_with(end: Connection) -> None:
    """Wait until the other end of a pipe is closed, by the parent or by its death, then end, whatever is under way."""
    end.poll(None)
    os._exit(1)
