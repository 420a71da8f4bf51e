"""A sample of Fashion-MNIST that is part of the package, for examples and tests without downloads.

It consists of the first 600 training and the first 100 test images of each class, in the order of the full files.
"""

from __future__ import annotations

from hullo.lab.data import fashion_mnist
from hullo.lab.data.release import File, Release

FILES = (
    File("train-images-idx3-ubyte.gz", 2_615_845, "8cdd6eb3db9f71d038db812672f156fd89a164a94f767144b5586d415d3cfa4f"),
    File("train-labels-idx1-ubyte.gz", 3_078, "ad10c5b63cc571a1b1e3466e319c5712cf94438f98643f47a64c2239b56ea625"),
    File("t10k-images-idx3-ubyte.gz", 436_247, "1d883f3966f98d7fc5011e0ff22f6e190d3b994ad0583bfd53c4b120eb39f754"),
    File("t10k-labels-idx1-ubyte.gz", 519, "4f81dd80fbbee90c38545ee999e120b1c191bf127f0aa516f21ef7e023d316a9"),
)

RELEASE = Release(
    name="fashion-mnist-sample",
    summary="6,000 + 1,000 of Fashion-MNIST's images",
    folder="fashion-mnist-sample",
    files=FILES,
    read=fashion_mnist.read,
)
