"""Atomic file writes, locks between processes, and directories to write into."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import BinaryIO, Literal

from filelock import FileLock, Timeout

from hullo._signals import check_stop, unwinding

POLL = 0.2
"""Seconds between two looks at a lock that another process holds, and at signals."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read; raise an OSError if it is none, after following links: a pipe, a device, a directory."""
    check_regular(path.stat(), path)  # before it is opened, which might wait for ever, or set a device to work
    return path.open("rb")


def open_output(path: Path, mode: Literal["wb", "ab"] = "wb") -> BufferedWriter:
    """Open a file to write, unless there is something that is not a regular file."""
    with suppress(FileNotFoundError):
        check_regular(path.stat(), path)
    return path.open(mode)


def check_regular(found: os.stat_result, path: Path) -> None:
    """Raise an OSError if what was found at a path is not a regular file."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


@contextmanager
def atomic_write(path: Path, part: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file that replaces the one at `path` once all of it is on the disk.

    Until then it lies beside it as `part`, by default under a name of this process, so that two processes can write the
    same file. If anything goes wrong, Ctrl-C included, `part` is deleted and `path` stays as it was.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder, "letters")) as file:
    ...         _ = file.write(b"abc")
    ...     Path(folder, "letters").read_bytes(), len(os.listdir(folder))
    (b'abc', 1)
    """
    part = part or path.with_name(f".{path.name}.{os.getpid()}.part")
    with unwinding():
        try:
            with open_output(part) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def locked(path: Path, on_wait: Callable[[int], None] = lambda _: None) -> Iterator[None]:
    """Hold the lock file at `path`, which no other process does meanwhile; the lock of a killed process is free.

    While another process holds it, `on_wait` is called again and again, with the number of calls before; what it raises
    ends the wait, and so does a request to stop.
    """
    lock = FileLock(path)
    for attempt in itertools.count():
        try:
            lock.acquire(timeout=POLL)
            break
        except Timeout:
            pass
        check_stop()
        on_wait(attempt)
    try:
        yield
    finally:
        lock.release()


def make_folder(path: Path) -> None:
    """Make a directory to write into, unless it is there; a ValueError says why there is none."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(path, os.W_OK | os.X_OK) else "Permission denied"
    except FileExistsError:
        reason = "it is a file"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise ValueError(f"cannot write to {path}: {reason}; name another directory")
