"""Atomic file writes, locks between processes, and directories to write into."""

from __future__ import annotations

import errno
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hullo.lab.errors import RunError
from hullo.lab.signals import check_stop, unwinding

POLL = 0.2
"""Seconds between two attempts to take a lock; signals are checked in between."""


def checksum(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Return a number that changes with the names and bytes of tensors, and with a text."""
    value = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        content = tensor.reshape(-1).view(torch.uint8).numpy()
        value = zlib.crc32(content.data, zlib.crc32(name.encode(), value))
    return str(value)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` once all of it is on the disk.

    A link stays a link: the file that it leads to is replaced. A directory is a ValueError. On any error, including
    Ctrl-C, the temporary file is deleted and `path` is unchanged; the next write replaces what a killed process left.
    Processes that write the same file hold a lock.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder, "letters")) as file:
    ...         _ = file.write(b"abc")
    ...     Path(folder, "letters").read_bytes(), len(os.listdir(folder))
    (b'abc', 1)
    """
    if path.is_dir():
        raise ValueError(f"cannot write {path}: {os.strerror(errno.EISDIR)}; give the path of a file")
    path = path.resolve()
    part = path.with_name(f".{path.name}.part")
    with unwinding():
        try:
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and texts to a safetensors file, with a checksum of both."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # clones: tied weights are written under all their names
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    texts = dict(metadata or {})
    with atomic_write(path) as file:
        file.write(save(copies, texts | {"checksum": checksum(copies, json.dumps(texts, sort_keys=True))}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and texts of a safetensors file; raise a ValueError if it is damaged."""
    try:
        with safe_open(path, "pt") as file:
            tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    saved = metadata.pop("checksum", None)
    if saved not in (None, checksum(tensors, json.dumps(metadata, sort_keys=True))):
        raise ValueError(f"{path} is damaged: it differs from what was saved")
    return tensors, metadata


@contextmanager
def locked(path: Path, on_wait: Callable[[int], None] = lambda _: None) -> Iterator[None]:
    """Hold the lock file at `path`; the lock of a killed process is released.

    While another process holds the lock, `on_wait` is called repeatedly with the number of earlier calls. An exception
    that it raises ends the wait, and so does a request to stop.
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


@contextmanager
def writing(path: Path, remedy: str = "choose another path") -> Iterator[None]:
    """Turn an OSError of the block into a RunError that names the file and ends with the `remedy`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        hint = "free disk space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        where = os.fsdecode(error.filename or path)
        raise RunError(f"cannot write {where}: {error.strerror}; {hint}{remedy}") from error


def check_writable(path: Path) -> None:
    """Raise a ValueError if a file or directory cannot be written."""
    if not os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0)):
        raise ValueError(f"cannot write to {path}: Permission denied; choose another directory")


def make_directory(path: Path) -> None:
    """Create a directory if it is missing; raise a ValueError if it cannot be created or written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file of that name exists" if isinstance(error, FileExistsError) else error.strerror
        raise ValueError(f"cannot write to {path}: {reason}; choose another directory") from error
    check_writable(path)
