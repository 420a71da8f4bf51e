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

# A part of the package, for examples and tests without downloads: the first 600 training and the first 100 test images
# of each class, in the order of the full files.
SAMPLE = Release(
    name="fashion-mnist-sample",
    summary="6,000 + 1,000 of Fashion-MNIST's images",
    folder="fashion-mnist-sample",
    files=(
        File(
            "train-images-idx3-ubyte.gz", 2_615_845, "8cdd6eb3db9f71d038db812672f156fd89a164a94f767144b5586d415d3cfa4f"
        ),
        File("train-labels-idx1-ubyte.gz", 3_078, "ad10c5b63cc571a1b1e3466e319c5712cf94438f98643f47a64c2239b56ea625"),
        File("t10k-images-idx3-ubyte.gz", 436_247, "1d883f3966f98d7fc5011e0ff22f6e190d3b994ad0583bfd53c4b120eb39f754"),
        File("t10k-labels-idx1-ubyte.gz", 519, "4f81dd80fbbee90c38545ee999e120b1c191bf127f0aa516f21ef7e023d316a9"),
    ),
    read=read,
)
