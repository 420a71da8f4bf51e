"""Files that are whole or not there, and directories to write them into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole(path: Path, part: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write, which takes its place, and that of one that is there, when all of it is on the disk.

    Until then it lies beside it as `part`; if anything goes wrong it is gone, and what was there stays.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with whole(Path(folder, "letters")) as file:
    ...         _ = file.write(b"abc")
    ...     Path(folder, "letters").read_bytes(), len(os.listdir(folder))
    (b'abc', 1)
    """
    part = part or path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


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
