"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 28 x 28 grayscale images of ten classes of clothes."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from hullo.lab.data.dataset import Dataset
from hullo.lab.data.release import File, Release

MAX_BYTES = 2**40
"""The largest size of a tensor in bytes."""
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
FILES = (
    File("train-images-idx3-ubyte.gz", 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    File("train-labels-idx1-ubyte.gz", 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    File("t10k-images-idx3-ubyte.gz", 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    File("t10k-labels-idx1-ubyte.gz", 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)


def read_idx(content: bytes, name: str, dims: int | None = None) -> Tensor:
    """Return the uint8 tensor of a gzipped idx file.

    The header is two zero bytes, 8 for uint8, the number of dimensions, and each dimension as four bytes. No more bytes
    are decompressed than the header announces.

    Args:
        content: the bytes of the file.
        name: its name, for error messages.
        dims: the required number of dimensions; by default any.

    Examples:
        >>> content = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + b"abc")
        >>> read_idx(content, "three.gz")
        tensor([97, 98, 99], dtype=torch.uint8)
    """
    try:
        with gzip.open(io.BytesIO(content)) as file:
            prefix = file.read(4)
            if len(prefix) < 4 or prefix[:3] != b"\0\0\x08":
                raise ValueError(f"{name}: starts with {prefix.hex(' ')!r}; idx files of bytes start with '00 00 08'")
            header = file.read(4 * prefix[3])
            if len(header) < 4 * prefix[3]:
                given, expected = 4 + len(header), 4 + 4 * prefix[3]
                raise ValueError(f"{name}: the header is truncated after {given} of {expected} bytes")
            shape = struct.unpack(f">{prefix[3]}I", header)
            if (dims is not None and len(shape) != dims) or math.prod(max(1, side) for side in shape) > MAX_BYTES:
                raise ValueError(f"{name}: the header has shape {shape}; must have {dims or 'fewer'} dimensions")
            data = bytearray(file.read(math.prod(shape) + 1))
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{name}: truncated or damaged gzip file ({error})") from error
    if len(data) != math.prod(shape):
        more = " or more" if len(data) > math.prod(shape) else ""
        raise ValueError(f"{name}: {len(data)} bytes{more} for the shape {shape} in its header")
    return (torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)).reshape(shape)


def read(name: str, content: Callable[[str], bytes]) -> Dataset:
    """Read the data set from four idx files named as in the official release."""

    def tensors(part: str) -> tuple[Tensor, Tensor]:
        images, labels = (f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        return read_idx(content(images), images, 3)[:, None], read_idx(content(labels), labels, 1).long()

    return Dataset(name, CLASSES, *tensors("train"), *tensors("t10k"))


RELEASE = Release(
    name="fashion-mnist",
    summary="60,000 + 10,000 grayscale images of clothes, 28 x 28",
    address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    folder="fashion-mnist",
    files=FILES,
    read=read,
)
