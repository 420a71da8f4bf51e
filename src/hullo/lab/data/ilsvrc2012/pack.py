"""A pack of ILSVRC-2012: all images decoded once into a few large files, for random access.

    train-000.npy   uint8 (count, 256, 256, 3)
    train-000.npz   names and labels of these images, their sum, the sha256 of train-000.npy
    mean.npy        the mean training image, float32
    manifest.json   written last

Images that cannot be decoded are left out. If packing is killed, the next call writes only the missing shards, and
those that lack images.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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


class Shard(NamedTuple):
    """A shard: its file of pixels, the names and labels of its images, their sum, the digest of the pixels."""

    path: Path
    names: NDArray[np.str_]
    labels: NDArray[np.int64]
    sum: NDArray[np.int64]
    digest: str
    offset: int  # of the first pixel in the file

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Open a shard without reading its images."""
        try:
            with path.with_suffix(".npz").open("rb") as file, np.load(file) as index:
                names, labels, total = (index[name] for name in ("names", "labels", "sum"))
                digest = str(index["sha256"])
            pixels = np.load(path, mmap_mode="r")  # raises an error for a truncated file
        except (EOFError, LookupError, OSError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path} is missing or damaged ({error}); make it again with: {COMMAND}") from error
        return cls(path, names, labels, total, digest, pixels.offset)


def write_shard(path: Path, images: Sequence[EncodedImage], threads: ThreadPoolExecutor, progress: Progress) -> None:
    """Decode images into a shard; those that cannot be decoded are left out, with a note."""
    decoded, total = [], np.zeros(SHAPE, np.int64)
    with atomic_write(path) as file:
        _write_header(file, len(images))
        for start in range(0, len(images), CHUNK):
            chunk = images[start : start + CHUNK]
            for image, pixels in zip(chunk, threads.map(_decode, chunk), strict=True):
                if isinstance(pixels, str):
                    progress.note(f"{image.name} is broken: {pixels}")
                    continue
                decoded.append(image)
                total += pixels
                file.write(pixels.data)
            progress.update(min(start + CHUNK, len(images)) / len(images))
        file.seek(0)
        _write_header(file, len(decoded))  # as long as before: NumPy leaves room for a growing first dimension
    names, labels = [image.name for image in decoded], [image.label for image in decoded]
    with atomic_write(path.with_suffix(".npz")) as file:
        np.savez(file, names=names, labels=np.array(labels, np.int64), sum=total, sha256=_digest(path))


def _write_header(file: Any, count: int) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, *SHAPE)}
    np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _decode(image: EncodedImage) -> NDArray[np.uint8] | str:
    """Return the pixels of an image, or why it cannot be decoded; Pillow decodes without the GIL."""
    try:
        return decode(image.read())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ImageError as error:
        return str(error)


class Split(NamedTuple):
    """A split of a pack: its numbers of shards, of images, and of released images."""

    num_shards: int
    num_images: int
    num_released: int


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
            splits = {split: Split(*(values["splits"][split][name] for name in Split._fields)) for split in SPLITS}
            return cls(folder, [(wnid, words) for wnid, words in values["classes"]], splits)
        except (LookupError, OSError, TypeError, ValueError) as error:
            raise DataError(f"{path} cannot be used ({error}); delete it, then run: {COMMAND}") from error

    @property
    def is_complete(self) -> bool:
        """Return whether the pack contains every released image."""
        return all(split.num_images == split.num_released for split in self.splits.values())

    def load_mean(self) -> Tensor:
        """Return the mean training image, float32 of shape (256, 256, 3)."""
        return torch.from_numpy(np.load(self.folder / MEAN))

    def images(self, split: str) -> PackedImages:
        """Return the images of a split."""
        return PackedImages(list(self._shards(split)))

    def _shards(self, *splits: str) -> Iterator[Path]:
        for split in splits:
            yield from (self.folder / f"{split}-{number:03}.npy" for number in range(self.splits[split].num_shards))

    def find_flaws(self, on_progress: Callable[[float], None]) -> list[str]:
        """Verify the digests of all shards; return a message for each that is missing or altered."""

        def check(path: Path) -> str:
            try:
                return "" if Shard.open(path).digest == _digest(path) else f"{path} is altered"
            except DataError as error:
                return str(error)

        paths, flaws = list(self._shards(*self.splits)), []
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
        is_decoded = labels >= 0  # earlier versions kept broken images, with the label -1
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
        return _finish(source, folder, layout, partial=partial)


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


def _is_done(path: Path, images: Sequence[EncodedImage]) -> bool:
    """Return whether a shard contains exactly these images."""
    try:
        shard = Shard.open(path)
    except DataError:
        return False
    pairs = zip(shard.names.tolist(), shard.labels.tolist(), strict=True)
    return list(pairs) == [(image.name, image.label) for image in images]


def _finish(source: Source, folder: Path, layout: Mapping[Path, Sequence[EncodedImage]], *, partial: bool) -> Pack:
    """Write the mean image and the manifest."""
    shards = {split: [Shard.open(path) for path in layout if path.name.startswith(split)] for split in SPLITS}
    counts = {split: sum(len(shard.labels) for shard in opened) for split, opened in shards.items()}
    if (broken := sum(map(len, layout.values())) - sum(counts.values())) and not partial:
        raise DataError(
            f"{broken:,} images are broken; the others are packed in {folder}; replace the broken ones in "
            f"{source.folder} and pack again, or leave them out with --partial"
        )
    splits = {name: Split(len(opened), counts[name], source.num_released(name)) for name, opened in shards.items()}
    total = np.sum([shard.sum for shard in shards["train"]], axis=0)
    with atomic_write(folder / MEAN) as file:
        np.save(file, (total / max(1, counts["train"])).astype(np.float32))
    values = {name: split._asdict() for name, split in splits.items()}
    with atomic_write(folder / MANIFEST) as file:
        file.write(json.dumps({"version": VERSION, "classes": source.classes, "splits": values}, indent=1).encode())
    return Pack(folder, source.classes, splits)
