"""A shard of a pack: thousands of decoded images in one safetensors file.

    images   uint8  (count, 256, 256, 3)   each image starts at a multiple of 4096 bytes
    labels   int64  (count,)
    sum      int64  (256, 256, 3)          of all images, for their mean
    names    uint8  (bytes,)               of the images, one per line
    broken   uint8  (bytes,)               JSON: [name, reason] of each image that could not be decoded
    damaged  uint8  (bytes,)               JSON: [name, reason] of each decoded image with damage

The header's metadata contain the sha256 of everything after the header. Shards are written atomically.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hullo.lab.data.ilsvrc2012.decoding import SHAPE, ImageError, decode
from hullo.lab.data.ilsvrc2012.jpeg import find_damage
from hullo.lab.data.ilsvrc2012.source import EncodedImage
from hullo.lab.data.release import DataError
from hullo.lab.files import atomic_write, open_regular
from hullo.lab.spec.schema import Integer, List, Text, read_json

COMMAND = "hullo data pack ilsvrc2012"

HEADER = 4096
"""Size of the header in bytes: one page, which aligns images with pages."""

IMAGE_BYTES = int(np.prod(SHAPE))
COUNTED = ("labels", "names", "broken", "damaged")
"""The tensors whose lengths vary between shards."""

Flaws = tuple[tuple[str, str], ...]
"""Pairs of an image's name and what is wrong with it."""


@dataclass(frozen=True)
class Shard:
    """A shard file: its digest, labels and flaws; images stay on disk."""

    path: Path
    digest: str
    labels: NDArray[np.int64]
    broken: Flaws
    damaged: Flaws

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Open a shard without reading its images; raise a DataError unless `write_shard` wrote it."""
        try:
            with open_regular(path) as file:
                header, size = file.read(HEADER), os.fstat(file.fileno()).st_size
            layout = read_json(header[8:])
            counts = [layout[name]["shape"][0] for name in COUNTED]
            List(Integer(most=size), len(COUNTED)).check(counts, "shapes")
            digest = layout["__metadata__"]["sha256"]
            Text().check(digest, "sha256")
            if header != _header(counts, digest):
                raise ValueError("its header is not that of a shard")
            with safe_open(path, framework="numpy") as file:  # raises an error for a truncated file
                labels, *flaws = (file.get_tensor(name) for name in ("labels", "broken", "damaged"))
            if len(labels) and labels.min() < 0:
                raise ValueError(f"the label {labels.min()}")
            return cls(path, digest, labels, *(_read_flaws(array.tobytes()) for array in flaws))
        except (LookupError, OSError, SafetensorError, TypeError, ValueError) as error:
            raise DataError(f"{path} is missing or damaged ({error}); make it again with: {COMMAND}") from error

    def sum(self) -> NDArray[np.int64]:
        """Return the sum of all images."""
        total: NDArray[np.int64] = self._tensor("sum")
        return total

    def names(self) -> list[str]:
        """Return the names of the images."""
        lines: NDArray[np.uint8] = self._tensor("names")
        return lines.tobytes().decode(errors="replace").splitlines()  # damaged names match no image

    def _tensor(self, name: str) -> Any:
        with safe_open(self.path, framework="numpy") as file:
            return file.get_tensor(name)

    def holds(self, images: Sequence[EncodedImage]) -> bool:
        """Return whether the shard contains exactly these images, with the same broken and damaged ones."""
        broken, damaged = dict(self.broken), dict(self.damaged)
        decoded = [image for image in images if image.name not in broken]
        return (
            len(decoded) == len(images) - len(broken)
            and self.names() == [image.name for image in decoded]
            and self.labels.tolist() == [image.label for image in decoded]
            and all(
                _flaws(image) == (broken.get(image.name), damaged.get(image.name))
                for image in images
                if image.name in broken or image.name in damaged
            )
        )

    def verify(self) -> bool:
        """Return whether the digest of the file is right."""
        with open_regular(self.path) as file:
            file.seek(HEADER)
            return hashlib.file_digest(file, "sha256").hexdigest() == self.digest


def write_shard(path: Path, images: Iterable[EncodedImage]) -> None:
    """Decode images into a shard, and list the broken and damaged ones in it."""
    digest = hashlib.sha256()
    labels: list[int] = []
    names: list[str] = []
    flaws: dict[str, list[tuple[str, str]]] = {"broken": [], "damaged": []}
    total = np.zeros(SHAPE, np.int64)
    with atomic_write(path) as file:
        file.seek(HEADER)  # the header is written last
        for image in images:
            try:
                pixels, damage = _decode(image)
            except ImageError as error:
                flaws["broken"].append((image.name, _one_line(error)))
                continue
            if damage:
                flaws["damaged"].append((image.name, damage))
            digest.update(pixels.data)
            file.write(pixels.data)
            total += pixels
            labels.append(image.label)
            names.append(image.name)
        rest: dict[str, NDArray[Any]] = {
            "labels": np.array(labels, np.int64),
            "sum": total,
            "names": np.frombuffer("\n".join(names).encode(), np.uint8),
            **{kind: np.frombuffer(json.dumps(listed).encode(), np.uint8) for kind, listed in flaws.items()},
        }
        for array in rest.values():
            digest.update(array.data)
            file.write(array.data)
        file.seek(0)
        file.write(_header([len(rest[name]) for name in COUNTED], digest.hexdigest()))


def _decode(image: EncodedImage) -> tuple[NDArray[np.uint8], str | None]:
    """Return the pixels of an image, and a description of its damage, if any is found."""
    try:
        content = image.encoded.read()
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror}") from error
    return decode(content), find_damage(content)


def _flaws(image: EncodedImage) -> tuple[str | None, str | None]:
    """Return why an image cannot be decoded, or else a description of its damage, if any."""
    try:
        return None, _decode(image)[1]
    except ImageError as error:
        return _one_line(error), None


def _read_flaws(content: bytes) -> Flaws:
    flaws = read_json(content)
    List(List(Text(), 2), empty=True).check(flaws, "flaws")
    return tuple((name, reason) for name, reason in flaws)


def _one_line(error: ImageError) -> str:
    return "".join(filter(str.isprintable, str(error)))[:200]


def _header(counts: Sequence[int], digest: str) -> bytes:
    """Return the header of a shard; `counts` are the lengths of the tensors `COUNTED`."""
    count, names, broken, damaged = counts
    header: dict[str, object] = {"__metadata__": {"sha256": digest}}
    end = 0
    for name, dtype, size, shape in (
        ("images", "U8", 1, (count, *SHAPE)),
        ("labels", "I64", 8, (count,)),
        ("sum", "I64", 8, SHAPE),
        ("names", "U8", 1, (names,)),
        ("broken", "U8", 1, (broken,)),
        ("damaged", "U8", 1, (damaged,)),
    ):
        start, end = end, end + size * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    return struct.pack("<Q", HEADER - 8) + json.dumps(header).encode().ljust(HEADER - 8)
