"""Worker processes that end with their parent."""

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
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start a pool of processes that end at once if the block raises an exception or this process is killed.

    The workers ignore Ctrl-C; this process handles it.
    """
    context = multiprocessing.get_context("spawn")
    end, alive = context.Pipe(duplex=False)
    with ProcessPoolExecutor(count, context, initializer=_initialize, initargs=(end,)) as pool, end:
        try:
            with _blocked_sigint():
                for _ in range(count):
                    pool.submit(int)  # starts a process
            yield pool
        except BaseException:
            alive.close()
            raise
    alive.close()


@contextmanager
def _blocked_sigint() -> Iterator[None]:
    """Block SIGINT; processes that are started in this block ignore it, even during their imports."""
    if os.name != "posix":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialize(end: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be blocked
    threading.Thread(target=_exit_after, args=(end,), daemon=True).start()


def _exit_after(end: Connection) -> None:
    """Wait until the other end of a pipe is closed, by the parent or by its death, then exit immediately."""
    end.poll(None)
    os._exit(1)
