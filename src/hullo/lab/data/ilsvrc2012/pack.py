"""A pack of ILSVRC-2012: all images decoded once into a few large files, for random access.

    train-000.npy   uint8 (count, 256, 256, 3)
    train-000.npz   names and labels of these images; why some are broken; their sum; the sha256 of train-000.npy
    mean.npy        the mean training image, float32
    manifest.json   written last

A broken image, which cannot be decoded, has the label -1 and no pixels. If packing is killed, the next call writes
only the missing shards, and those with broken images.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hullo.lab.data.ilsvrc2012.decoding import SHAPE, ImageError, decode
from hullo.lab.data.ilsvrc2012.source import SPLITS, EncodedImage, Source
from hullo.lab.data.release import DataError
from hullo.lab.files import atomic_write, locked, make_directory, writing
from hullo.lab.progress import Progress

COMMAND = "hullo data pack ilsvrc2012"
MANIFEST, MEAN = "manifest.json", "mean.npy"
VERSION = 4
SHARD = 4096
"""Images per shard, 805 MB."""
CHUNK = 256
"""Images that are decoded ahead of writing."""
IMAGE_BYTES = int(np.prod(SHAPE))


@dataclass(frozen=True)
class Shard:
    """A shard: the names and labels of its images, why some are broken, their sum, the digest of their pixels."""

    path: Path
    names: NDArray[np.str_]
    labels: NDArray[np.int64]
    flaws: NDArray[np.str_]
    sum: NDArray[np.int64]
    digest: str
    offset: int  # of the first pixel in the file

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Open a shard without reading its images."""
        try:
            with path.with_suffix(".npz").open("rb") as file, np.load(file) as index:
                names, labels, flaws, total = (index[name] for name in ("names", "labels", "flaws", "sum"))
                digest = str(index["sha256"])
            pixels = np.load(path, mmap_mode="r")  # raises an error for a truncated file
        except (EOFError, LookupError, OSError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path} is missing or damaged ({error}); make it again with: {COMMAND}") from error
        return cls(path, names, labels, flaws, total, digest, pixels.offset)

    @property
    def broken(self) -> dict[str, str]:
        """The images that could not be decoded, each with the reason."""
        return {str(self.names[i]): str(self.flaws[i]) for i in (self.labels < 0).nonzero()[0]}

    def holds(self, images: Sequence[EncodedImage]) -> bool:
        """Return whether the shard contains these images, and none is broken."""
        pairs = zip(self.names.tolist(), self.labels.tolist(), strict=True)
        return list(pairs) == [(image.name, image.label) for image in images]

    def is_intact(self) -> bool:
        """Return whether the digest of the pixels is right."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.digest


def write_shard(path: Path, images: Sequence[EncodedImage], threads: ThreadPoolExecutor, progress: Progress) -> None:
    """Decode images into a shard."""
    labels, flaws = np.array([image.label for image in images]), [""] * len(images)
    total = np.zeros(SHAPE, np.int64)
    with atomic_write(path) as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(images), *SHAPE)}
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
        for start in range(0, len(images), CHUNK):
            for i, pixels in enumerate(threads.map(_decode, images[start : start + CHUNK]), start):
                if isinstance(pixels, str):
                    progress.note(f"{images[i].name} is broken: {pixels}")
                    labels[i], flaws[i], pixels = -1, pixels, np.zeros(SHAPE, np.uint8)
                total += pixels
                file.write(pixels.data)
            progress.update(min(start + CHUNK, len(images)) / len(images))
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    names = [image.name for image in images]
    with atomic_write(path.with_suffix(".npz")) as file:
        np.savez(file, names=names, labels=labels, flaws=flaws, sum=total, sha256=digest)


def _decode(image: EncodedImage) -> NDArray[np.uint8] | str:
    """Return the pixels of an image, or why it cannot be decoded; Pillow decodes without the GIL."""
    try:
        return decode(image.read())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ImageError as error:
        return "".join(filter(str.isprintable, str(error)))[:200]


@dataclass(frozen=True)
class Split:
    """A split of a pack: its numbers of shards, of images, of released images; its broken images with the reasons."""

    num_shards: int
    num_images: int
    num_released: int
    broken: dict[str, str]


@dataclass(frozen=True)
class Pack:
    """A finished pack: its classes as (WordNet identifier, words), and its splits."""

    folder: Path
    classes: list[tuple[str, str]]
    splits: dict[str, Split]

    @classmethod
    def open(cls, folder: Path) -> Pack:
        """Open the pack in a folder; raise a DataError if it is not finished."""
        path = folder / MANIFEST
        if not path.exists():
            raise DataError(f"{folder} contains no finished pack; make it with: {COMMAND}")
        try:
            values: dict[str, Any] = json.loads(path.read_bytes())
            if values["version"] != VERSION:
                raise ValueError(f"format {values['version']}, this version of hullo reads {VERSION}")
            splits = {split: Split(**values["splits"][split]) for split in SPLITS}
            return cls(folder, [(wnid, words) for wnid, words in values["classes"]], splits)
        except (LookupError, OSError, TypeError, ValueError) as error:
            raise DataError(f"{path} cannot be used ({error}); delete it, then run: {COMMAND}") from error

    @property
    def is_complete(self) -> bool:
        """Return whether the pack contains every released image."""
        return all(split.num_images == split.num_released for split in self.splits.values())

    @cached_property
    def mean(self) -> Tensor:
        """The mean training image, float32 of shape (256, 256, 3)."""
        path = self.folder / MEAN
        try:
            return torch.from_numpy(np.load(path))
        except (EOFError, OSError, ValueError) as error:
            raise DataError(f"{path} is missing or damaged ({error}); make it again with: {COMMAND}") from error

    def shards(self, split: str) -> list[Path]:
        """Return the paths of the shards of a split."""
        return [self.folder / f"{split}-{number:03}.npy" for number in range(self.splits[split].num_shards)]

    def images(self, split: str) -> PackedImages:
        """Return the images of a split."""
        return PackedImages(self.shards(split))

    def find_flaws(self, on_progress: Callable[[float], None]) -> list[str]:
        """Verify the digests of all shards; return a message for each that is missing or altered."""

        def check(path: Path) -> str:
            try:
                return "" if Shard.open(path).is_intact() else f"{path} is altered"
            except DataError as error:
                return str(error)

        paths, flaws = [path for split in self.splits for path in self.shards(split)], []
        with ThreadPoolExecutor() as threads:  # hashing releases the GIL
            for done, flaw in enumerate(threads.map(check, paths), 1):
                flaws += [flaw] * bool(flaw)
                on_progress(done / len(paths))
        return flaws


class PackedImages:
    """The images of a split by index, and `labels`, int64, on the CPU."""

    def __init__(self, paths: list[Path]) -> None:
        shards = [Shard.open(path) for path in paths]
        labels = np.concatenate([shard.labels for shard in shards])
        starts = [shard.offset + IMAGE_BYTES * np.arange(len(shard.labels)) for shard in shards]
        numbers = np.repeat(np.arange(len(shards)), [len(shard.labels) for shard in shards])
        is_decoded = labels >= 0
        self.labels = torch.from_numpy(labels[is_decoded])
        self._shard, self._start = numbers[is_decoded], np.concatenate(starts)[is_decoded]
        self._paths, self._files = paths, [os.open(path, os.O_RDONLY) for path in paths]
        weakref.finalize(self, _close, self._files)

    def __len__(self) -> int:
        return len(self.labels)

    def read_into(self, out: NDArray[np.uint8], indices: NDArray[np.int64]) -> None:
        """Read the images of these indices into an array of shape (count, 256, 256, 3).

        The system call releases the GIL, so other threads can run.
        """
        shards = self._shard[indices].tolist()
        for pixels, shard, start in zip(out, shards, self._start[indices].tolist(), strict=True):
            if os.preadv(self._files[shard], [pixels.data], start) != IMAGE_BYTES:
                raise DataError(f"{self._paths[shard]} is truncated; make it again with: {COMMAND}")

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image, uint8 of shape (256, 256, 3), and its label."""
        out = np.empty((1, *SHAPE), np.uint8)
        self.read_into(out, np.array([range(len(self))[index]]))
        return torch.from_numpy(out[0]), int(self.labels[index])


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def pack(source: Source, folder: Path, progress: Progress, *, partial: bool, workers: int | None = None) -> Pack:
    """Write the missing shards of a pack, then its manifest.

    Images that are missing or broken are reported. With `partial` the pack is finished without them; otherwise the
    shards are kept, but no manifest is written.
    """

    def refuse(_: int) -> None:
        raise DataError(f"another process is packing into {folder}; wait until it has finished, or stop it")

    chosen = _choose(source, progress, partial=partial)
    make_directory(folder)
    layout = {
        folder / f"{split}-{number:03}.npy": images[start : start + SHARD]
        for split, images in chosen.items()
        for number, start in enumerate(range(0, len(images), SHARD))
    }
    remedy = "choose another directory with --data; finished shards are kept"
    with writing(folder, remedy), locked(folder / ".lock", refuse):
        missing = {path: images for path, images in layout.items() if not _is_done(path, images)}
        if missing:
            (folder / MANIFEST).unlink(missing_ok=True)
        with ThreadPoolExecutor(workers) as threads:
            for done, (path, images) in enumerate(missing.items(), len(layout) - len(missing)):
                progress.start_step(f"packing {path.stem}", done, len(layout))
                write_shard(path, images, threads, progress)
        return _finish(source, folder, list(layout), partial=partial)


def _choose(source: Source, progress: Progress, *, partial: bool) -> dict[str, list[EncodedImage]]:
    """Return the images of each split: all that were released, or, if `partial`, those available."""
    chosen, incomplete = {}, []
    for done, split in enumerate(SPLITS):
        progress.start_step(f"looking through {source.path_of(split)}", done, len(SPLITS))
        chosen[split] = source.images(split, progress.update)
        if len(chosen[split]) != source.num_released(split):
            incomplete.append(f"{len(chosen[split]):,} of {source.num_released(split):,} {split} images")
    state = f"{source.folder} has {' and '.join(incomplete)}"
    if incomplete and not partial:
        raise DataError(f"{state}; download the rest, or add --partial to pack these")
    if incomplete:
        progress.note(f"{state}; only these are packed")
    return chosen


def _is_done(path: Path, images: list[EncodedImage]) -> bool:
    try:
        return Shard.open(path).holds(images)
    except DataError:
        return False


def _finish(source: Source, folder: Path, paths: list[Path], *, partial: bool) -> Pack:
    """Write the mean image and the manifest."""
    shards = {split: [Shard.open(path) for path in paths if path.name.startswith(split)] for split in SPLITS}
    splits = {}
    for split, opened in shards.items():
        broken = {name: reason for shard in opened for name, reason in shard.broken.items()}
        num_images = sum(len(shard.labels) for shard in opened) - len(broken)
        splits[split] = Split(len(opened), num_images, source.num_released(split), broken)
    if (count := sum(len(split.broken) for split in splits.values())) and not partial:
        raise DataError(
            f"{count:,} images are broken; the others are packed in {folder}; replace the broken ones in "
            f"{source.folder} and pack again, or leave them out with --partial"
        )
    total = np.sum([shard.sum for shard in shards["train"]], axis=0)
    with atomic_write(folder / MEAN) as file:
        np.save(file, (total / max(1, splits["train"].num_images)).astype(np.float32))
    values = {name: vars(split) for name, split in splits.items()}
    with atomic_write(folder / MANIFEST) as file:
        file.write(json.dumps({"version": VERSION, "classes": source.classes, "splits": values}, indent=1).encode())
    return Pack(folder, source.classes, splits)
