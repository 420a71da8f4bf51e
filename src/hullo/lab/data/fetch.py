"""Download the files of data sets: resume interrupted downloads, verify checksums before a file is put in place."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rich.console import Console

from hullo.lab.data.release import Copy, DataError, File
from hullo.lab.files import add_disk_full_hint, locked, make_directory
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

    try:
        with Progress(console, quiet=quiet) as progress, locked(copy.root / f".{copy.release.name}.lock", wait):
            _download_missing(copy, progress)
    except OSError as error:
        raise DataError(
            f"cannot write {error.filename or copy.root}: {error.strerror}; "
            f"{add_disk_full_hint(error, 'choose another directory with --data')}"
        ) from error


def _download_missing(copy: Copy, progress: Progress) -> None:
    files, archive = list(copy.flaws()), copy.release.archive
    if archive is None:
        for index, file in enumerate(files):
            progress.start_step(f"{file.name} ({file.size / 1e6:.1f} MB)", index, len(files))
            _download(copy, file, copy.folder, progress.update).replace(copy.folder / file.name)
    elif files:
        progress.start_step(f"{archive.name} ({archive.size / 1e6:.1f} MB)", 0, 2)
        downloaded = _download(copy, archive, copy.root, progress.update)
        progress.start_step(f"unpacking {archive.name}", 1, 2)
        _unpack(copy, files, downloaded, progress.update)
        downloaded.unlink()


def _download(copy: Copy, file: File, folder: Path, on_progress: Callable[[float], None]) -> Path:
    """Download one file to a temporary name, verify its checksum, and return its path.

    Reconnect after a broken connection, as long as each connection delivers more bytes.
    """
    url = f"{copy.release.address}{file.name}"
    part = folder / f"{file.name}.part"
    problem, previous = "", -1
    while (done := _size(part)) < file.size:
        if done <= previous:
            raise DataError(
                f"cannot fetch {url}: {problem}; {done:,} of {file.size:,} bytes are kept; resume with: {copy.command}"
            )
        previous = done
        problem = _download_part(url, part, file.size, on_progress)
    return _verify(copy, file, part)


def _download_part(url: str, part: Path, size: int, on_progress: Callable[[float], None]) -> str:
    """Append the data of one connection to a partial file; return why it ended."""
    done = _size(part)
    request = Request(url, headers={"Range": f"bytes={done}-"})  # noqa: S310 (a release's own address)
    try:
        response = urlopen(request, timeout=TIMEOUT)  # noqa: S310 (the same)
    except HTTPError as error:
        error.close()
        return f"the server answers {error.code} {error.reason}"
    except (OSError, HTTPException) as error:
        return f"no connection ({getattr(error, 'reason', error)})"
    with response:
        start = done if response.status == 206 else 0  # not every server supports ranges
        length = response.headers.get("Content-Length", str(size - start))
        if length != str(size - start):
            return f"the server offers {length} bytes; expected {size - start}"
        return _append(response, part, start, size, on_progress)


def _append(response: HTTPResponse, part: Path, start: int, size: int, on_progress: Callable[[float], None]) -> str:
    with part.open("ab") as out:
        out.seek(start)
        out.truncate()
        while out.tell() <= size:
            try:
                chunk = response.read1(1 << 18)
            except (OSError, HTTPException) as error:
                return f"the connection broke ({error})"
            if not chunk:
                break
            out.write(chunk)
            on_progress(min(out.tell() / size, 1.0))
    return "the connection ended too early"


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _unpack(copy: Copy, files: list[File], archive: Path, on_progress: Callable[[float], None]) -> None:
    """Extract the given files from an archive, and nothing else."""
    wanted = {f"{copy.release.folder}/{file.name}": file for file in files}
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            source = tar.extractfile(member) if member.name in wanted and member.isreg() else None
            if source is None:
                continue
            file = wanted.pop(member.name)
            part = copy.folder / f"{file.name}.part"
            with part.open("wb") as out:
                while out.tell() <= file.size and (chunk := source.read(1 << 20)):
                    out.write(chunk)
            _verify(copy, file, part).replace(copy.folder / file.name)
            on_progress(1 - len(wanted) / len(files))
    if wanted:
        raise DataError(
            f"{archive} does not contain {', '.join(wanted)} as regular files; delete it, then run: {copy.command}"
        )


def _verify(copy: Copy, file: File, part: Path) -> Path:
    """Return the path of a partial file if its checksum is right; else delete the file and raise a DataError."""
    try:
        file.read(part, remedy=f"it was deleted; fetch it again with: {copy.command}")
    except DataError:
        part.unlink()
        raise
    return part
