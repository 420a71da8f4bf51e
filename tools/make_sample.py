"""Write the sample of Fashion-MNIST that comes with the package, from the full data set.

    hullo data fetch fashion-mnist
    python tools/make_sample.py src/hullo/lab/data/fashion-mnist-sample

It prints the lines for `hullo.lab.data.sample`, where the files' sizes and digests are kept.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import struct
from pathlib import Path

import torch
from torch import Tensor

from hullo.lab.data import load


def first_of_each_class(labels: Tensor, each: int) -> Tensor:
    """Return the positions of the first `each` labels of every class, in order."""
    is_class = labels[:, None] == labels.unique()
    return ((is_class.cumsum(0) <= each) & is_class).any(1).nonzero().squeeze(1)


def pack_idx(content: Tensor) -> bytes:
    """Return a tensor of bytes as a gzipped idx file, the same at every run."""
    header = bytes([0, 0, 8, content.ndim]) + struct.pack(f">{content.ndim}I", *content.shape)
    return gzip.compress(header + bytes(content.flatten().tolist()), compresslevel=9, mtime=0)


def make_sample(data_dir: str | None = None) -> dict[str, bytes]:
    """Return the sample's four files by name."""
    full = load("fashion-mnist", data_dir)
    files = {}
    for part, images, labels, each in (
        ("train", full.train_images, full.train_labels, 600),
        ("t10k", full.test_images, full.test_labels, 100),
    ):
        chosen = first_of_each_class(labels, each)
        files[f"{part}-images-idx3-ubyte.gz"] = pack_idx(images[chosen, 0])
        files[f"{part}-labels-idx1-ubyte.gz"] = pack_idx(labels[chosen].to(torch.uint8))
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write the files")
    parser.add_argument("--data", help="the data directory that holds fashion-mnist")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, content in make_sample(options.data).items():
        (options.folder / name).write_bytes(content)
        print(f'    File("{name}", {len(content):_}, "{hashlib.sha256(content).hexdigest()}"),')


if __name__ == "__main__":
    main()
