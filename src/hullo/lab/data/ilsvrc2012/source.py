"""List the images of ILSVRC-2012 per split, from the official tars or from the extracted folders."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hullo.lab.data.ilsvrc2012 import devkit as devkits
from hullo.lab.data.release import DataError, File
from hullo.lab.files import open_regular

SPLITS = ("train", "val")
TARS = {
    "train": File("ILSVRC2012_img_train.tar", 147_897_477_120, "1d675b47d978889d74fa0da5fadfb00e", "md5"),
    "val": File("ILSVRC2012_img_val.tar", 6_744_924_160, "29b22e2961454d5413ddabcf34fc5622", "md5"),
}
NUM_IMAGES = {"train": 1_281_167, "val": 50_000}
CLASSES = 1000
MAX_BYTES = 2**28
"""The largest size of an image file in bytes; the largest released image has 15 million."""

_WNID = re.compile(r"n\d{8}")

OnProgress = Callable[[float], None]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an OSError from reading a path, or a path below it, into a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{error.filename or path} cannot be read ({error.strerror}); make it readable, then try again"
        ) from error


class Bytes(NamedTuple):
    """The file and the range of bytes of an image; in a tar, too, they are contiguous."""

    path: str
    start: int = 0
    size: int = -1  # up to the file's end, or as much as an image may have

    def read(self) -> bytes:
        with open_regular(Path(self.path)) as file:
            file.seek(self.start)
            return file.read(MAX_BYTES if self.size < 0 else self.size)


class EncodedImage(NamedTuple):
    """A released image: its name, its label, and its encoded bytes."""

    name: str
    label: int
    encoded: Bytes


@dataclass(frozen=True)
class Source:
    """The released files of ILSVRC-2012 in a folder.

    Each split is a tar, as released, or a folder `train` or `val`; the tar is used if both exist. Training images are
    in folders or tars named by WordNet identifiers. Val images may be, too; otherwise the devkit has their labels.
    """

    folder: Path

    @cached_property
    def devkit(self) -> devkits.Devkit | None:
        return devkits.find_devkit(self.folder)

    def paths_of(self, split: str) -> list[Path]:
        """Return the tar and the folder of a split, as far as they exist."""
        with readable(self.folder):
            names = os.listdir(self.folder) if self.folder.is_dir() else []
        return [self.folder / name for name in (TARS[split].name, split) if name in names]

    def path_of(self, split: str) -> Path:
        """Return the tar or the folder of a split; raise a DataError if there is neither."""
        for path in self.paths_of(split):
            return path
        state = f"has neither {TARS[split].name} nor a folder {split}" if self.folder.is_dir() else "is not a directory"
        tars = " and ".join(tar.name for tar in TARS.values())
        raise DataError(
            f"{self.folder} {state}; put there {tars}, or the folders {' and '.join(SPLITS)}, and "
            f"{devkits.ARCHIVE}, packed or extracted"
        )

    def shortfall(self, split: str) -> str:
        """Return a remark on a tar that is shorter than the released one, or an empty string."""
        path, released = self.path_of(split), TARS[split]
        size = path.stat().st_size
        if path.name != released.name or size >= released.size:
            return ""
        return f" ({path.name} has {size:,} of the released {released.size:,} bytes: truncated, unless you repacked it)"

    @cached_property
    def wnids(self) -> tuple[str, ...]:
        """Return the WordNet identifiers of the classes, in the order of their labels."""
        if self.devkit is not None:
            return tuple(item.wnid for item in self.devkit.classes)
        val = self.path_of("val")
        wnids = sorted(filter(_WNID.fullmatch, os.listdir(val))) if val.is_dir() else []
        if len(wnids) == CLASSES:
            return tuple(wnids)
        raise DataError(
            f"{self.folder} has no devkit, which has the labels of val images that are not sorted into {CLASSES} "
            f"folders; {devkits.REMEDY}"
        )

    def num_released(self, split: str) -> int:
        """Return the number of released images of a split."""
        if self.devkit is None:
            return NUM_IMAGES[split]
        return len(self.devkit.val_labels) if split == "val" else sum(item.num_images for item in self.devkit.classes)

    def images(self, split: str, on_progress: OnProgress = lambda _: None) -> list[EncodedImage]:
        """Return the images of a split, sorted by name; call `on_progress` with the completed fraction."""
        path = self.path_of(split)
        with readable(path):
            return self._list(split, path, on_progress)

    def _list(self, split: str, path: Path, on_progress: OnProgress) -> list[EncodedImage]:
        label_of = {wnid: label for label, wnid in enumerate(self.wnids)}
        labels = self.devkit.val_labels if split == "val" and self.devkit else ()
        val_labels = {f"ILSVRC2012_val_{number:08}.JPEG": label for number, label in enumerate(labels, 1)}
        images = []
        for wnid, name, encoded in (
            _in_tar(path, on_progress=on_progress) if path.is_file() else _in_folder(path, on_progress)
        ):
            if not name.isprintable():
                raise DataError(f"{path}: invalid file name {name!r}; rename the image, or remove it")
            if wnid and wnid not in label_of:
                raise DataError(f"{path}: {wnid} is not one of the {len(label_of):,} classes of ILSVRC-2012; remove it")
            label = label_of[wnid] if wnid else val_labels.get(name)
            if label is None:
                raise DataError(f"{path}: {name} has no label; remove it, or move it to the folder of its class")
            if val_labels.get(name, label) != label:
                raise DataError(
                    f"{path}: {name} is in {wnid}, but its class is {self.wnids[val_labels[name]]}; move it there"
                )
            images.append(EncodedImage(name, label, encoded))
        images.sort()
        for first, second in pairwise(images):
            if first.name == second.name:
                raise DataError(f"{path} has {first.name} twice; remove one of them")
        return images


Listing = Iterator[tuple[str, str, Bytes]]
"""Per image: the WordNet identifier of its folder or tar, if any, its name, its bytes."""


def _in_folder(folder: Path, on_progress: OnProgress) -> Listing:
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    for done, entry in enumerate(entries):
        if _WNID.fullmatch(entry.name) and entry.is_dir():
            for name in os.listdir(entry):
                if name.endswith(".JPEG"):
                    yield entry.name, name, Bytes(f"{entry.path}/{name}")
        elif entry.name.endswith(".tar"):
            yield from _in_tar(Path(entry.path), Path(entry).stem)
        elif entry.name.endswith(".JPEG"):
            yield "", entry.name, Bytes(entry.path)
        on_progress((done + 1) / len(entries))


def _in_tar(path: Path, wnid: str = "", on_progress: OnProgress = lambda _: None) -> Listing:
    size = path.stat().st_size

    def members(file: BinaryIO, wnid: str) -> Listing:
        with tarfile.open(fileobj=file, mode="r:") as tar:  # from the current position: also a tar within a tar
            for member in tar:
                end = member.offset_data + member.size
                if not member.offset_data <= end <= size:
                    raise tarfile.ReadError(f"{member.name} would end at byte {end:,} of {size:,}")
                inner = member.name.endswith(".tar")
                if (inner or member.name.endswith(".JPEG")) and (not member.isreg() or member.issparse()):
                    raise tarfile.ReadError(f"{member.name} is not a regular file")
                if inner and wnid:
                    raise tarfile.ReadError(f"{member.name} is a tar in the tar of a class")
                if inner:
                    file.seek(member.offset_data)
                    yield from members(file, Path(member.name).stem)
                elif member.name.endswith(".JPEG"):
                    yield wnid, Path(member.name).name, Bytes(str(path), member.offset_data, member.size)
                on_progress(end / size)

    try:
        with open_regular(path) as file:
            yield from members(file, wnid)
    except DataError:
        raise
    except (*devkits.DAMAGE, ValueError) as error:
        sizes = [f"; expected {tar.size:,} bytes, md5 {tar.digest}" for tar in TARS.values() if tar.name == path.name]
        raise DataError(f"{path} is truncated or damaged ({error}){''.join(sizes)}; download it again") from error
