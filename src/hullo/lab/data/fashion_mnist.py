"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 28 x 28 grayscale images of ten classes of clothes."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hullo.lab.data.dataset import Dataset
from hullo.lab.data.idx import read_idx
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
