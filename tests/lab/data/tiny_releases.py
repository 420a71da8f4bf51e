"""Tiny files in the official formats."""

import gzip
import hashlib
import struct

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
