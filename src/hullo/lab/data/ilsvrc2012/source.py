"""The released files of ILSVRC-2012, as official tars or as folders: every image and its label."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from hullo.lab.data.release import DataError, File

SPLITS = ("train", "val")
TARS = {
    "train": File("ILSVRC2012_img_train.tar", 147_897_477_120, "1d675b47d978889d74fa0da5fadfb00e", "md5"),
    "val": File("ILSVRC2012_img_val.tar", 6_744_924_160, "29b22e2961454d5413ddabcf34fc5622", "md5"),
}
DEVKIT = File("ILSVRC2012_devkit_t12.tar.gz", 2_568_145, "fa75699e90414af021442c21a62c3abf", "md5")
DEVKIT_FOLDERS = ("ILSVRC2012_devkit_t12", "devkit")

_WNID = re.compile(r"n\d{8}")


class EncodedImage(NamedTuple):
    """A released image: its name, its label, and where its bytes are, in a file or in a tar."""

    name: str
    label: int
    path: str
    start: int = 0
    size: int = -1

    def read(self) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return file.read(self.size)


class Devkit(NamedTuple):
    """The WordNet identifiers of the classes, sorted, and the labels of the val images.

    Labels are positions in this order, as in other libraries, not the numbers of the devkit.
    """

    wnids: list[str]
    val_labels: list[int]


@dataclass(frozen=True)
class Source:
    """The released files of ILSVRC-2012 in a folder.

    A split is the released tar, or a folder `train` or `val` of images or of folders by class. Val images that are not
    sorted by class have their labels in the devkit.
    """

    folder: Path

    @cached_property
    def devkit(self) -> Devkit | None:
        """The devkit, packed or extracted, or None."""
        places = (self.folder / name for name in (DEVKIT.name, *DEVKIT_FOLDERS))
        return next((_read_devkit(path) for path in places if path.exists()), None)

    @cached_property
    def wnids(self) -> list[str]:
        """The WordNet identifiers of the classes, in the order of their labels."""
        if self.devkit is not None:
            return self.devkit.wnids
        val = self.path_of("val")
        wnids = sorted(filter(_WNID.fullmatch, os.listdir(val))) if val.is_dir() else []
        if not wnids:
            raise DataError(
                f"{self.folder} has no devkit, and val images are not sorted into folders; put {DEVKIT.name} (md5 "
                f"{DEVKIT.digest}) there"
            )
        return wnids

    def path_of(self, split: str) -> Path:
        """Return the tar or the folder of a split."""
        for path in (self.folder / TARS[split].name, self.folder / split):
            if path.exists():
                return path
        tars = " and ".join(tar.name for tar in TARS.values())
        raise DataError(
            f"{self.folder} has neither {TARS[split].name} nor a folder {split}; put there {tars}, or the folders "
            f"{' and '.join(SPLITS)}, and {DEVKIT.name}"
        )

    def images(self, split: str, on_progress: Callable[[float], None] = lambda _: None) -> list[EncodedImage]:
        """Return the images of a split, sorted by name; call `on_progress` with the completed fraction."""
        path = self.path_of(split)
        labels = {wnid: label for label, wnid in enumerate(self.wnids)}
        if split == "val" and self.devkit:
            numbered = enumerate(self.devkit.val_labels, 1)
            labels |= {f"ILSVRC2012_val_{number:08}.JPEG": label for number, label in numbered}
        images = []
        try:
            for wnid, name, place in _list_tar(path, on_progress) if path.is_file() else _list_folder(path):
                label = labels.get(name, labels.get(wnid))
                if label is None:
                    where = f"{wnid}, which is not its class" if wnid else "no folder of a class"
                    raise DataError(f"{path}: {name!r} is in {where}; move it, or remove it")
                images.append(EncodedImage(name, label, *place))
        except tarfile.TarError as error:
            raise _damaged(path, TARS[split], error) from error
        if not images:
            raise DataError(f"{path} contains no images, files named *.JPEG")
        return sorted(images)


Listing = Iterator[tuple[str, str, tuple[str, int, int]]]
"""Per image: the WordNet identifier of its folder or tar, if any, its name, and its file, first byte and size."""


def _list_folder(folder: Path, wnid: str = "") -> Listing:
    for path in sorted(folder.iterdir()):
        if path.name.endswith(".JPEG"):
            yield wnid, path.name, (str(path), 0, -1)
        elif _WNID.fullmatch(path.name) and path.is_dir():
            yield from _list_folder(path, path.name)


def _list_tar(path: Path, on_progress: Callable[[float], None]) -> Listing:
    size = path.stat().st_size

    def members(file: io.BufferedReader, wnid: str) -> Listing:
        with tarfile.open(fileobj=file, mode="r:") as tar:  # from the current position: also a tar within a tar
            for member in tar:
                if member.isreg() and member.name.endswith(".tar"):
                    file.seek(member.offset_data)
                    yield from members(file, Path(member.name).stem)
                elif member.isreg() and member.name.endswith(".JPEG"):
                    yield wnid, Path(member.name).name, (str(path), member.offset_data, member.size)
                on_progress(min(member.offset_data / size, 1.0))

    with path.open("rb") as file:
        yield from members(file, "")


def _read_devkit(path: Path) -> Devkit:
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped]
    except ImportError:
        raise DataError(
            f"{path} needs SciPy, which is not installed; install it: pip install '.[ilsvrc]' in a clone of hullo"
        ) from None
    try:
        meta, truth = (_read_member(path, name) for name in ("meta.mat", "ILSVRC2012_validation_ground_truth.txt"))
        synsets: Any = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        leaves = {str(item["WNID"]): int(item["ILSVRC2012_ID"]) for item in synsets if item["num_children"] == 0}
        wnids = sorted(leaves)
        label_of = {leaves[wnid]: label for label, wnid in enumerate(wnids)}
        return Devkit(wnids, [label_of[int(line)] for line in truth.split()])
    except Exception as error:  # SciPy raises exceptions of many types for damaged files
        raise _damaged(path, DEVKIT, error) from error


def _read_member(path: Path, name: str) -> bytes:
    """Return a file of the devkit, from its archive or its folder."""
    if path.name != DEVKIT.name:
        return (path / "data" / name).read_bytes()
    with tarfile.open(path) as tar:
        member = tar.extractfile(f"{DEVKIT.name.removesuffix('.tar.gz')}/data/{name}")
        return member.read() if member else b""


def _damaged(path: Path, file: File, error: Exception) -> DataError:
    return DataError(f"{path} is truncated or damaged ({type(error).__name__}: {error}); download {file.name} again")
