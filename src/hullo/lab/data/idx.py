"""The idx format of MNIST and its kin: a header of big-endian numbers, then bytes."""

from __future__ import annotations

import gzip
import math
import struct

import torch
from torch import Tensor


def read_idx(content: bytes, name: str) -> Tensor:
    """The uint8 tensor in a gzipped idx file; `name` is what errors call it.

    The header is two zero bytes, 8 for bytes, the number of dimensions, and each dimension as four bytes.

    Examples:
        >>> content = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + b"abc")
        >>> read_idx(content, "three.gz")
        tensor([97, 98, 99], dtype=torch.uint8)
    """
    try:
        data = gzip.decompress(content)
    except (EOFError, OSError) as error:
        raise ValueError(f"{name}: not a whole gzip file ({error})") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"{name}: begins with {data[:4].hex(' ')!r}, but idx files of bytes with '00 00 08'")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise ValueError(f"{name}: ends within its header, after {len(data)} of {start} bytes")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    if len(data) - start != math.prod(shape):
        raise ValueError(f"{name}: {len(data) - start} bytes for the shape {shape} in its header")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[start:].reshape(shape)
