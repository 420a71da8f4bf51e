"""The released files of a data set, and local copies that are verified against them."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hullo.lab.data.dataset import Dataset
from hullo.lab.errors import RunError


class DataError(RunError):
    """Raised when a file of a data set is missing, truncated or altered, or cannot be fetched."""


@dataclass(frozen=True)
class File:
    """A released file: its name, its size in bytes, its digest."""

    name: str
    size: int
    digest: str
    algorithm: str = "sha256"

    def read(self, path: Path, remedy: str) -> bytes:
        """Return the content of `path` if its digest is right; else raise a DataError that ends with the `remedy`."""
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing; {remedy}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); {remedy}") from error
        return self.verify(content, str(path), remedy)

    def verify(self, content: bytes, where: str, remedy: str) -> bytes:
        """Return the content if its digest is right; else raise a DataError that starts with where it is from."""
        actual = hashlib.new(self.algorithm, content, usedforsecurity=False).hexdigest()
        if actual != self.digest:
            state = "altered"
            if len(content) < self.size:
                state = f"truncated after {len(content):,} of {self.size:,} bytes"
            raise DataError(f"{where} is {state}: expected {self.algorithm} {self.digest}, found {actual}; {remedy}")
        return content


@dataclass(frozen=True)
class Release:
    """A data set as it was released: its files, their folder, and the function that reads them.

    The files are at `address`, separately or in one `archive`; without an address they are part of the package. `read`
    takes the name of the data set and a function from the name of a file to its verified content.
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
    """A local copy of a release in a directory; files may be missing."""

    release: Release
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / self.release.folder

    @property
    def command(self) -> str:
        """Return the command that downloads missing and altered files."""
        return f"hullo data fetch {self.release.name}{data_option(self.root)}"

    @property
    def remedy(self) -> str:
        if self.release.address is None:
            return "reinstall hullo: pip install --force-reinstall --no-deps . in a clone"
        return f"run: {self.command}"

    def read(self, name: str) -> bytes:
        """Return the verified content of a file; no unverified bytes are ever parsed."""
        (file,) = (file for file in self.release.files if file.name == name)
        return file.read(self.folder / name, self.remedy)

    def flaws(self) -> dict[File, str]:
        """Return the files that differ from the release, each with a message that says what is wrong."""
        flaws = {}
        for file in self.release.files:
            try:
                self.read(file.name)
            except DataError as error:
                flaws[file] = str(error)
        return flaws

    def check(self, _: object = None) -> tuple[bool, list[str]]:
        """Return whether the files are those of the release, and lines that describe what was found."""
        flaws = self.flaws()
        return not flaws, list(flaws.values()) or [f"{self.release.name} is ready in {self.folder}"]

    def overview(self) -> tuple[str, str, str, str, str]:
        """Return the name, the content, the size, the state and the location, for the list of data sets."""
        release, flawed = self.release, len(self.flaws())
        state = f"{flawed} of {len(release.files)} files missing or damaged" if flawed else "ready"
        if not any((self.folder / file.name).exists() for file in release.files):
            state = "not fetched"
        size = f"{sum(file.size for file in release.files) / 1e6:.1f} MB"
        return release.name, release.summary, size, state, str(self.folder)

    def load(self) -> Dataset:
        """Load the data set and verify its files."""
        return self.release.read(self.release.name, self.read)


def data_root(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the data directory: the one given, else `HULLO_DATA`, else one in the user's cache.

    Examples:
        >>> data_root("images").as_posix()
        'images'
    """
    chosen = given or os.environ.get("HULLO_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(chosen or Path(cache, "hullo", "data")).expanduser()


def data_option(root: Path) -> str:
    """Return the option that names a data directory, after a space; empty for the default."""
    return "" if root == data_root() else f" --data {shlex.quote(str(root))}"
