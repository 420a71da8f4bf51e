"""Tiny files in the official formats, and folders of images."""

import gzip
import hashlib
import struct
from pathlib import Path

from PIL import Image

from hullo.lab.data.release import File


def as_file(name, content, algorithm="sha256"):
    return File(name, len(content), hashlib.new(algorithm, content).hexdigest(), algorithm)


def as_idx(shape, content):
    return gzip.compress(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(content), mtime=0)


FASHION = {
    "train-images-idx3-ubyte.gz": as_idx((4, 2, 3), range(24)),
    "train-labels-idx1-ubyte.gz": as_idx((4,), [9, 0, 1, 9]),
    "t10k-images-idx3-ubyte.gz": as_idx((1, 2, 3), range(100, 106)),
    "t10k-labels-idx1-ubyte.gz": as_idx((1,), [5]),
}


def write_images(folder: Path, sizes: tuple[int, ...] = (8,), mode: str = "L") -> Path:
    """Write square images of two classes, two of each size, for training and for validation."""
    for split in ("train", "val"):
        for kind in ("cat", "dog"):
            (folder / split / kind).mkdir(parents=True)
            for number, size in enumerate(sizes * 2):
                Image.new(mode, (size, size), 40 * number).save(folder / split / kind / f"{number}.png")
    return folder
