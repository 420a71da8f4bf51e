"""A finished pack of ILSVRC-2012: random access to images and labels, and the mean image."""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hullo.lab.data.ilsvrc2012.decoding import SHAPE
from hullo.lab.data.ilsvrc2012.shards import COMMAND, HEADER, IMAGE_BYTES, Flaws, Shard
from hullo.lab.data.ilsvrc2012.source import SPLITS, readable
from hullo.lab.data.ilsvrc2012.workers import available_cores
from hullo.lab.data.release import DataError
from hullo.lab.files import check_regular, open_regular
from hullo.lab.spec.schema import Integer, List, Object, Text, read_json

MANIFEST = "manifest.json"
MEAN = "mean.safetensors"
VERSION = 3
MAX_BYTES = 2**28
"""The largest size of a manifest in bytes."""

_SHARD = Object({"file": Text(), "num_images": Integer(), "sha256": Text()})
_FLAWS = List(List(Text(), 2), empty=True)
_PART = Object({"shards": List(_SHARD), "broken": _FLAWS, "damaged": _FLAWS, "num_released": Integer()})
_MANIFEST = Object(
    {
        "version": Integer(),
        "classes": List(List(Text(), 2)),
        "parts": Object(dict.fromkeys(SPLITS, _PART)),
        "mean_sha256": Text(),
    }
)


@dataclass(frozen=True)
class ShardEntry:
    """The entry of a shard in the manifest: its file name, its number of images, its digest."""

    file: str
    num_images: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """A split of a pack: its shards, its broken and damaged images, and the number of released images.

    Damaged images are in the pack, broken ones are not.
    """

    shards: tuple[ShardEntry, ...]
    broken: Flaws
    damaged: Flaws
    num_released: int

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Part:
        """Return the split described by an entry of the manifest."""
        shards = tuple(ShardEntry(**shard) for shard in values["shards"])
        broken, damaged = (tuple((name, why) for name, why in values[kind]) for kind in ("broken", "damaged"))
        return cls(shards, broken, damaged, values["num_released"])

    @property
    def num_images(self) -> int:
        return sum(shard.num_images for shard in self.shards)


@dataclass(frozen=True)
class Pack:
    """A pack as described by its manifest: the classes, as (WordNet identifier, words), and its splits."""

    folder: Path
    classes: tuple[tuple[str, str], ...]
    parts: dict[str, Part]
    mean_sha256: str

    @classmethod
    def open(cls, folder: Path) -> Pack:
        """Open the pack in a folder; raise a DataError if it is not finished."""
        path = folder / MANIFEST
        with readable(path):
            try:
                with open_regular(path) as file:
                    content = file.read(MAX_BYTES)
            except FileNotFoundError as error:
                raise DataError(f"{folder} contains no finished pack; make it with: {COMMAND}") from error
        try:
            values = read_json(content)
            version = values.get("version") if isinstance(values, dict) else None
            if type(version) is int and version != VERSION:
                raise DataError(f"{path} has version {version}, not {VERSION}; delete it, then run: {COMMAND}")
            _MANIFEST.check(values, "")
        except DataError:
            raise
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}); delete it, then run: {COMMAND}") from error
        parts = {split: Part.parse(values["parts"][split]) for split in SPLITS}
        classes = tuple((wnid, words) for wnid, words in values["classes"])
        return cls(folder, classes, parts, values["mean_sha256"])

    def manifest(self) -> bytes:
        """Return the content of the manifest."""
        values = asdict(self)
        del values["folder"]
        return json.dumps({"version": VERSION, **values}, indent=1).encode()

    @property
    def is_complete(self) -> bool:
        """Return whether the pack contains every released image."""
        return all(part.num_images == part.num_released for part in self.parts.values())

    @cached_property
    def mean(self) -> Tensor:
        """Return the mean training image, float32 of shape (256, 256, 3)."""
        path = self.folder / MEAN
        try:
            check_regular(path.stat(), path)
            mean = load_file(path)["mean"]
            if mean.dtype != torch.float32 or mean.shape != SHAPE or not 0 <= mean.min() <= mean.max() <= 255:
                raise ValueError(
                    f"{mean.dtype} of shape {tuple(mean.shape)}; must be pixels in float32 of shape {SHAPE}"
                )
        except (KeyError, OSError, SafetensorError, ValueError) as error:
            raise DataError(f"{path} is missing or damaged ({error}); make it again with: {COMMAND}") from error
        return mean

    def images(self, split: str) -> PackedImages:
        """Return the images of a split."""
        images = PackedImages([self.folder / shard.file for shard in self.parts[split].shards])
        if len(images) and (label := int(images.labels.max())) >= len(self.classes):
            raise DataError(
                f"{self.folder}: label {label} in {split}, {len(self.classes)} classes; delete it, then run: {COMMAND}"
            )
        return images

    def flaws(self, on_progress: Callable[[float], None]) -> list[str]:
        """Verify the checksums of all files; return a message for each file that is missing or altered."""
        entries = [entry for part in self.parts.values() for entry in part.shards]
        flaws = self._mean_flaw()
        with ThreadPoolExecutor(available_cores()) as threads:  # hashing releases the GIL
            futures = {threads.submit(self._flaw, entry): entry for entry in entries}
            for done, future in enumerate(as_completed(futures), 1):
                flaws += future.result()
                on_progress(done / len(entries))
        return sorted(flaws)

    def _mean_flaw(self) -> list[str]:
        path = self.folder / MEAN
        try:
            with open_regular(path) as file:
                is_intact = hashlib.file_digest(file, "sha256").hexdigest() == self.mean_sha256
        except OSError:
            is_intact = False
        return [] if is_intact else [f"{path} is missing or altered: expected sha256 {self.mean_sha256}"]

    def _flaw(self, entry: ShardEntry) -> list[str]:
        path = self.folder / entry.file
        try:
            shard = Shard.open(path)
        except DataError as error:
            return [str(error)]
        is_intact = shard.digest == entry.sha256 and len(shard.labels) == entry.num_images and shard.verify()
        return [] if is_intact else [f"{path} is altered: expected sha256 {entry.sha256}"]


class PackedImages:
    """The images of a split by index, and `labels`, int64, on the CPU."""

    def __init__(self, paths: Sequence[Path]) -> None:
        shards = [Shard.open(path) for path in paths]
        counts = [len(shard.labels) for shard in shards]
        self.labels = torch.from_numpy(np.concatenate([shard.labels for shard in shards]))
        self._shard = np.repeat(np.arange(len(shards)), counts)
        self._start = HEADER + IMAGE_BYTES * np.concatenate([np.arange(count) for count in counts])
        self._paths = list(paths)
        self._files = [os.open(path, os.O_RDONLY) for path in paths]
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
