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
import io
import json
import os
import warnings
import weakref
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hullo.lab.data.ilsvrc2012.source import DEVKIT, SPLITS, TARS, EncodedImage, Source
from hullo.lab.data.release import DataError, data_option
from hullo.lab.files import atomic_write, locked, make_directory, writing
from hullo.lab.progress import Progress

NAME = "ilsvrc2012"
NUM_RELEASED = {"train": 1_281_167, "val": 50_000}
MANIFEST, MEAN = "manifest.json", "mean.npy"
VERSION = 4
SHARD = 4096
"""Images per shard, 805 MB."""
SIDE = 256
SHAPE = (SIDE, SIDE, 3)
IMAGE_BYTES = int(np.prod(SHAPE))


class Split(NamedTuple):
    """The numbers of shards and of images of a split."""

    num_shards: int
    num_images: int


@dataclass(frozen=True)
class Pack:
    """The pack of ILSVRC-2012, or of a part of it, in a folder, ``DATA/NAME/packed``; it may not be finished."""

    folder: Path

    @cached_property
    def splits(self) -> dict[str, Split]:
        """The splits by name; a DataError if the pack is not finished."""
        path = self.folder / MANIFEST
        if not path.exists():
            raise DataError(f"{self.folder} contains no finished pack; make it with: {self.command}")
        try:
            values = json.loads(path.read_bytes())
            if values["version"] != VERSION:
                raise ValueError(f"format {values['version']}, this version of hullo reads {VERSION}")
            return {name: Split(*(values["splits"][name][field] for field in Split._fields)) for name in SPLITS}
        except (LookupError, OSError, TypeError, ValueError) as error:
            raise DataError(f"{path} cannot be used ({error}); delete it, then run: {self.command}") from error

    @property
    def name(self) -> str:
        return self.folder.parent.name

    @property
    def command(self) -> str:
        """The command that makes the pack."""
        part = "" if self.name == NAME else " --partial"
        return f"hullo data pack {self.name}{data_option(self.folder.parents[1])}{part}"

    @property
    def instructions(self) -> str:
        """Return how to get the data set: it cannot be fetched."""
        if self.name != NAME:
            return f"put the folders train and val of {self.name} into {self.folder.parent}, then run: {self.command}"
        files = [f"{file.name} ({file.size / 1e6:,.1f} MB, md5 {file.digest})" for file in (*TARS.values(), DEVKIT)]
        return (
            f"{self.name} can only be downloaded with an account at https://image-net.org; download {', '.join(files)} "
            f"to {self.folder.parent}, then run: {self.command}"
        )

    @property
    def is_complete(self) -> bool:
        """Return whether the pack contains every released image."""
        return all(split.num_images == NUM_RELEASED[name] for name, split in self.splits.items())

    def overview(self) -> tuple[str, str, str, str, str]:
        """Return the name, the content, the size, the state and the location, for the list of data sets."""
        size = f"{sum(NUM_RELEASED.values()) * IMAGE_BYTES / 1e6:,.1f} MB"
        state = "not packed" if self.folder.parent.is_dir() else "not fetched"
        if (self.folder / MANIFEST).exists():
            state = "packed" if self.is_complete else "packed in part"
        return self.name, "1,281,167 + 50,000 color images of things, 256 x 256", size, state, str(self.folder.parent)

    def check(self, progress: Progress) -> tuple[bool, list[str]]:
        """Return whether the pack is complete and intact, and lines that describe what was found."""
        if not (self.folder / MANIFEST).exists():
            return False, [f"{self.name} is not packed in {self.folder}", self.instructions]
        paths, flaws = self.shards(*self.splits), []
        for done, path in enumerate(paths):
            progress.start_step(f"verifying {path}", done, len(paths))
            try:
                if Shard.open(path).digest != _digest(path):
                    flaws.append(f"{path} is altered")
            except DataError as error:
                flaws.append(str(error))
        if flaws:
            return False, [*flaws, f"delete the altered files, then run: {self.command}"]
        counts = (f"{split.num_images:,} of {NUM_RELEASED[name]:,} {name}" for name, split in self.splits.items())
        state = "ready" if self.is_complete else "incomplete, but usable"
        return self.is_complete, [f"{self.name} is {state} in {self.folder}: {' and '.join(counts)} images"]

    def shards(self, *splits: str) -> list[Path]:
        """Return the paths of the shards of splits."""
        numbered = ((split, number) for split in splits for number in range(self.splits[split].num_shards))
        return [self.folder / f"{split}-{number:03}.npy" for split, number in numbered]

    def images(self, split: str) -> PackedImages:
        """Return the images of a split."""
        return PackedImages(self.shards(split))

    def load_mean(self) -> Tensor:
        """Return the mean training image, float32 of shape (256, 256, 3)."""
        return torch.from_numpy(np.load(self.folder / MEAN))


class Shard(NamedTuple):
    """A shard: its file of pixels, the names and labels of its images, their sum, the digest of the file."""

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
            command = Pack(path.parent).command
            raise DataError(f"{path} is missing or damaged ({error}); make it again with: {command}") from error
        return cls(path, names, labels, total, digest, pixels.offset)


class PackedImages:
    """The images of a split by index, and `labels`, int64, on the CPU."""

    def __init__(self, paths: list[Path]) -> None:
        shards = [Shard.open(path) for path in paths]
        self.labels = torch.from_numpy(np.concatenate([shard.labels for shard in shards]))
        self._shard = np.repeat(np.arange(len(shards)), [len(shard.labels) for shard in shards])
        starts = [shard.offset + IMAGE_BYTES * np.arange(len(shard.labels)) for shard in shards]
        self._start = np.concatenate(starts)
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
                path = self._paths[shard]
                raise DataError(f"{path} is truncated; make it again with: {Pack(path.parent).command}")


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def make_pack(source: Source, folder: Path, progress: Progress, *, partial: bool = False) -> Pack:
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
        with ThreadPoolExecutor() as threads:
            for done, (path, images) in enumerate(missing.items(), len(layout) - len(missing)):
                progress.start_step(f"packing {path.stem}", done, len(layout))
                _write_shard(path, images, threads, progress)
        shards = {split: [Shard.open(path) for path in layout if path.name.startswith(split)] for split in SPLITS}
        splits = {name: Split(len(some), sum(len(shard.labels) for shard in some)) for name, some in shards.items()}
        broken = sum(map(len, chosen.values())) - sum(split.num_images for split in splits.values())
        if broken and not partial:
            raise DataError(
                f"{broken:,} images are broken; the others are packed in {folder}; replace the broken ones in "
                f"{source.folder} and pack again, or leave them out with --partial"
            )
        total = np.sum([shard.sum for shard in shards["train"]], axis=0)
        with atomic_write(folder / MEAN) as file:
            np.save(file, (total / max(1, splits["train"].num_images)).astype(np.float32))
        manifest = {"version": VERSION, "splits": {name: split._asdict() for name, split in splits.items()}}
        with atomic_write(folder / MANIFEST) as file:
            file.write(json.dumps(manifest, indent=1).encode())
    return Pack(folder)


def _choose(source: Source, progress: Progress, *, partial: bool) -> dict[str, list[EncodedImage]]:
    """Return the images of each split: all that were released, or, if `partial`, those available."""
    chosen = {}
    for done, split in enumerate(SPLITS):
        progress.start_step(f"looking through {source.path_of(split)}", done, len(SPLITS))
        chosen[split] = source.images(split, progress.update)
    counts = {split: len(images) for split, images in chosen.items()}
    if counts != NUM_RELEASED:
        found = [f"{count:,} of {NUM_RELEASED[split]:,} {split} images" for split, count in counts.items()]
        state = f"{source.folder} has {' and '.join(found)}"
        if not partial:
            raise DataError(f"{state}; download the rest, or add --partial to pack these")
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


def _write_shard(path: Path, images: Sequence[EncodedImage], threads: ThreadPoolExecutor, progress: Progress) -> None:
    """Decode images into a shard; those that cannot be decoded are left out, with a note."""
    pixels = np.empty((len(images), *SHAPE), np.uint8)
    decoded: list[EncodedImage] = []
    for done, (image, result) in enumerate(zip(images, threads.map(_decode, images), strict=True), 1):
        if isinstance(result, str):
            progress.note(f"{image.name} is broken: {result}")
        else:
            pixels[len(decoded)] = result
            decoded.append(image)
        progress.update(done / len(images))
    pixels = pixels[: len(decoded)]
    with atomic_write(path) as file:
        np.save(file, pixels)
    names, labels = [image.name for image in decoded], [image.label for image in decoded]
    total = pixels.sum(0, dtype=np.int64)
    with atomic_write(path.with_suffix(".npz")) as file:
        np.savez(file, names=names, labels=np.array(labels, np.int64), sum=total, sha256=_digest(path))


def _decode(image: EncodedImage) -> NDArray[np.uint8] | str:
    """Return the pixels of an image, or why it cannot be decoded; Pillow decodes without the GIL."""
    try:
        return decode(image.read())
    except Exception as error:  # Pillow raises exceptions of many types for damaged files
        return str(error).partition(" <")[0] or type(error).__name__  # without the address of a buffer


def decode(content: bytes) -> NDArray[np.uint8]:
    """Decode a JPEG or PNG image, whatever its file name, to uint8 of shape (256, 256, 3); errors are Pillow's.

    Height and width are resized independently, as in the paper's protocol, with an antialiased bilinear filter.
    Grayscale is repeated, CMYK is converted (inverted, as Adobe writes it), alpha is dropped. Metadata are ignored: no
    image is rotated, and damaged metadata do not matter.

    Examples:
        >>> buffer = io.BytesIO()
        >>> Image.new("L", (500, 375), 77).save(buffer, "JPEG")
        >>> pixels = decode(buffer.getvalue())
        >>> pixels.shape, pixels.min(), pixels.max()
        ((256, 256, 3), np.uint8(77), np.uint8(77))
    """
    with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
