"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 28 x 28 grayscale images of ten classes of clothes."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable

import torch
from torch import Tensor

from hullo.lab.data.dataset import Dataset
from hullo.lab.data.release import File, Release

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


def read_idx(content: bytes) -> Tensor:
    """Return the uint8 tensor of a gzipped idx file.

    The header is two zero bytes, 8 for uint8, the number of dimensions, and each dimension as four bytes.

    Examples:
        >>> read_idx(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + b"abc"))
        tensor([97, 98, 99], dtype=torch.uint8)
    """
    data = bytearray(gzip.decompress(content))
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * data[3]).reshape(shape)


def read(name: str, content: Callable[[str], bytes]) -> Dataset:
    """Read the data set from four idx files named as in the official release."""

    def tensors(part: str) -> tuple[Tensor, Tensor]:
        images, labels = (read_idx(content(f"{part}-{kind}-ubyte.gz")) for kind in ("images-idx3", "labels-idx1"))
        return images[:, None], labels.long()

    return Dataset(name, CLASSES, *tensors("train"), *tensors("t10k"))


RELEASE = Release(
    name="fashion-mnist",
    summary="60,000 + 10,000 grayscale images of clothes, 28 x 28",
    address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    folder="fashion-mnist",
    files=FILES,
    read=read,
)
