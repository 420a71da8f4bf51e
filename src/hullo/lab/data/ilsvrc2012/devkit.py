"""Read the ILSVRC-2012 devkit: the classes, their numbers of training images, the labels of the val images."""

from __future__ import annotations

import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from hullo.lab.data.ilsvrc2012.matlab import read_structs
from hullo.lab.data.release import DataError
from hullo.lab.files import open_regular

ARCHIVE = "ILSVRC2012_devkit_t12.tar.gz"
ARCHIVE_SIZE = 2_568_145
ARCHIVE_MD5 = "fa75699e90414af021442c21a62c3abf"
FOLDERS = ("ILSVRC2012_devkit_t12", "devkit")
REMEDY = f"put {ARCHIVE} ({ARCHIVE_SIZE:,} bytes, md5 {ARCHIVE_MD5}) there, or extract it there"

DAMAGE = (ArithmeticError, EOFError, LookupError, TypeError, tarfile.TarError, zlib.error)
"""Exceptions from reading damaged archives and files, besides ValueError and OSError."""
MAX_BYTES = 2**24
"""The largest size of a file of the devkit in bytes."""

_META, _VAL_LABELS = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"


@dataclass(frozen=True)
class Class:
    """A class: its WordNet identifier, its names, and its number of released training images."""

    wnid: str
    words: str
    num_images: int


@dataclass(frozen=True)
class Devkit:
    """The classes in the order of their labels, and the labels of the val images 1, 2 and so on.

    Labels follow the sorted WordNet identifiers, as in other libraries, not the numbering of the devkit.
    """

    path: Path
    classes: tuple[Class, ...]
    val_labels: tuple[int, ...]


def find_devkit(folder: Path) -> Devkit | None:
    """Return the devkit in a folder, as an archive or extracted; None if there is none."""
    for path in (folder / name for name in (ARCHIVE, *FOLDERS)):
        if path.exists():
            try:
                return _parse(path, *(_from_archive(path) if path.name == ARCHIVE else _from_folder(path)))
            except (*DAMAGE, OSError, ValueError) as error:
                raise DataError(f"{path} is an incomplete or damaged devkit ({error}); {REMEDY}") from error
    return None


def _from_folder(path: Path) -> list[bytes]:
    contents = []
    for name in (_META, _VAL_LABELS):
        with open_regular(path / "data" / name) as file:
            contents.append(_check_size(file.read(MAX_BYTES + 1), name))
    return contents


def _from_archive(path: Path) -> list[bytes]:
    contents = []
    with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:gz") as tar:
        for name in (_META, _VAL_LABELS):
            member = tar.getmember(f"{path.name.removesuffix('.tar.gz')}/data/{name}")
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is None:
                raise ValueError(f"{name} is not a regular file")
            contents.append(_check_size(stream.read(MAX_BYTES + 1), name))
    return contents


def _check_size(content: bytes, name: str) -> bytes:
    if len(content) > MAX_BYTES:
        raise ValueError(f"{name} has more than {MAX_BYTES:,} bytes")
    return content


def _parse(path: Path, meta: bytes, val_labels: bytes) -> Devkit:
    leaves = [item for item in read_structs(meta) if item["num_children"] == [0.0]]  # the others are superclasses
    leaves.sort(key=lambda item: str(item["WNID"]))
    if not leaves or not all(re.fullmatch(r"n\d{8}", str(item["WNID"])) for item in leaves):
        raise ValueError(f"{_META} contains no classes with WordNet identifiers")
    classes = [Class(str(item["WNID"]), str(item["words"]), int(item["num_train_images"][0])) for item in leaves]
    label_of = {int(item["ILSVRC2012_ID"][0]): label for label, item in enumerate(leaves)}
    return Devkit(path, tuple(classes), tuple(label_of[int(line)] for line in val_labels.split()))
