"""Where the files of a data set lie, and whether they are what was released."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hullo.lab.data.dataset import Dataset
from hullo.lab.errors import RunError
from hullo.lab.files import open_regular


class DataError(RunError):
    """A file of a data set is missing, cut off or altered, or cannot be fetched."""


@dataclass(frozen=True)
class File:
    """A file as it was released: its name, its size in bytes, its digest."""

    name: str
    size: int
    digest: str
    algorithm: str = "sha256"

    def read(self, path: Path, remedy: str) -> bytes:
        """Return what lies at `path`, if it is this file to the byte; else an error ends with the `remedy`."""
        wanted = f"{self.algorithm} wanted {self.digest}"
        try:
            with open_regular(path) as file:
                content = file.read(self.size)
                digest = hashlib.new(self.algorithm, content, usedforsecurity=False)
                while more := file.read(2**20):
                    digest.update(more)
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing: {wanted}; {remedy}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}): {wanted}; {remedy}") from error
        if (found := digest.hexdigest()) != self.digest:
            state = "altered"
            if len(content) < self.size:
                state = f"cut off after {len(content):,} of {self.size:,} bytes"
            raise DataError(f"{path} is {state}: {wanted}, found {found}; {remedy}")
        return content


@dataclass(frozen=True)
class Release:
    """A data set as it was released: its files, in a folder of that name, and how they are read.

    The files are at `address`, each by itself or all in one `archive`; without an address they come with the package.
    `read` makes the data set of its name and of a function from a file's name to its checked content.
    """

    name: str
    summary: str
    folder: str
    files: tuple[File, ...]
    read: Callable[[str, Callable[[str], bytes]], Dataset]
    address: str | None = None
    archive: File | None = None


@dataclass(frozen=True)
class Copy:
    """A release as it lies, whole or not, in a directory."""

    release: Release
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / self.release.folder

    @property
    def command(self) -> str:
        """The command that brings what is missing and replaces what is not as it was released."""
        option = "" if self.root == data_root() else f" --data {shlex.quote(str(self.root))}"
        return f"hullo data fetch {self.release.name}{option}"

    @property
    def remedy(self) -> str:
        if self.release.address is None:
            return "it comes with hullo: pip install --force-reinstall --no-deps hullo"
        return f"mend it with: {self.command}"

    def read(self, name: str) -> bytes:
        """The content of a file; these very bytes were hashed, so nothing unchecked is ever parsed."""
        (file,) = (file for file in self.release.files if file.name == name)
        return file.read(self.folder / name, self.remedy)

    def flaws(self) -> dict[File, str]:
        """The files that are not as they were released, each with what is wrong and what to do."""
        flaws = {}
        for file in self.release.files:
            try:
                self.read(file.name)
            except DataError as error:
                flaws[file] = str(error)
        return flaws

    def load(self) -> Dataset:
        """The data set, every byte of it checked."""
        return self.release.read(self.release.name, self.read)


def data_root(given: str | os.PathLike[str] | None = None) -> Path:
    """The data directory: the one given, else `HULLO_DATA`, else one in the user's cache.

    Examples:
        >>> data_root("images").as_posix()
        'images'
    """
    named = given or os.environ.get("HULLO_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named or Path(cache, "hullo", "data")).expanduser()
