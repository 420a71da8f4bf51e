"""CIFAR-10 (Krizhevsky, 2009), binary version: 32 x 32 color images of ten classes of objects."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hullo.lab.data.dataset import Dataset
from hullo.lab.data.release import File, Release

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = (
    File("data_batch_1.bin", 30_730_000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    File("data_batch_2.bin", 30_730_000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    File("data_batch_3.bin", 30_730_000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    File("data_batch_4.bin", 30_730_000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    File("data_batch_5.bin", 30_730_000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    File("test_batch.bin", 30_730_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32


def read_batches(contents: list[bytes]) -> tuple[Tensor, Tensor]:
    """Return images and labels from files that hold, for each image, its label and its red, green and blue pixels.

    Examples:
        >>> images, labels = read_batches([bytes([3]) + bytes(3072), bytes([5]) + bytes(3072)])
        >>> images.shape, labels
        (torch.Size([2, 3, 32, 32]), tensor([3, 5]))
    """
    records = torch.frombuffer(bytearray().join(contents), dtype=torch.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, *SHAPE).contiguous(), records[:, 0].long()


def read(name: str, content: Callable[[str], bytes]) -> Dataset:
    """Read the data set from the five training batches and the test batch of the official release."""
    train = read_batches([content(f"data_batch_{number}.bin") for number in range(1, 6)])
    return Dataset(name, CLASSES, *train, *read_batches([content("test_batch.bin")]))


RELEASE = Release(
    name="cifar10",
    summary="50,000 + 10,000 color images of objects, 32 x 32",
    address="https://www.cs.toronto.edu/~kriz/",
    archive=File("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530", algorithm="md5"),
    folder="cifar-10-batches-bin",
    files=FILES,
    read=read,
)
