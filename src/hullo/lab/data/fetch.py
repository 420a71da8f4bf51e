"""Download the files of data sets, and verify checksums before a file is put in place."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from io import BytesIO
from typing import IO, cast
from urllib.error import HTTPError
from urllib.request import urlopen

from rich.console import Console

from hullo.lab.data.release import Copy, DataError, File
from hullo.lab.files import atomic_write, locked, make_directory, writing
from hullo.lab.progress import Progress

TIMEOUT = 30
"""Seconds without data after which a connection is closed."""


def fetch(copy: Copy, console: Console, *, quiet: bool = False) -> None:
    """Download the files of a copy that are missing or differ from the release."""
    flaws = copy.flaws()
    if not flaws:
        return
    if copy.release.address is None:
        raise DataError(next(iter(flaws.values())))
    make_directory(copy.folder)

    def wait(attempt: int) -> None:
        if attempt == 0:
            progress.note(f"another process is fetching {copy.release.name}; waiting for it")

    with (
        writing(copy.root, "choose another directory with --data"),
        Progress(console, quiet=quiet) as progress,
        locked(copy.root / f".{copy.release.name}.lock", wait),
    ):
        _download_missing(copy, progress)


def _download_missing(copy: Copy, progress: Progress) -> None:
    missing, archive = list(copy.flaws()), copy.release.archive
    wanted = [archive] if archive and missing else missing
    for index, file in enumerate(wanted):
        progress.start_step(f"{file.name} ({file.size / 1e6:.1f} MB)", index, len(wanted))
        content = _download(copy, file, progress)
        contents: Iterable[tuple[File, bytes]] = _unpack(copy, missing, content) if archive else [(file, content)]
        for member, extracted in contents:
            with atomic_write(copy.folder / member.name) as out:
                out.write(extracted)


def _download(copy: Copy, file: File, progress: Progress) -> bytes:
    """Download a file and return its content, verified by its checksum."""
    url, content = f"{copy.release.address}{file.name}", bytearray()
    remedy = f"fetch it again with: {copy.command}"
    try:
        with urlopen(url, timeout=TIMEOUT) as response:  # noqa: S310 (a release's own address)
            while len(content) <= file.size and (chunk := response.read1(1 << 18)):
                content += chunk
                progress.update(min(len(content) / file.size, 1.0))
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)  # without <urlopen error ...>
        if isinstance(error, HTTPError):
            error.close()
            reason = error
        raise DataError(f"cannot fetch {url}: {reason}; {remedy}") from error
    return file.verify(bytes(content), url, remedy)


def _unpack(copy: Copy, files: list[File], archive: bytes) -> Iterator[tuple[File, bytes]]:
    """Yield the given files of an archive with their contents, and nothing else."""
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        for file in files:
            source = cast("IO[bytes]", tar.extractfile(f"{copy.release.folder}/{file.name}"))  # a regular file
            yield file, source.read()
