"""Read the idx format of MNIST: a header of big-endian integers, then bytes."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib

import torch
from torch import Tensor

MAX_BYTES = 2**40
"""The largest size of a tensor in bytes."""


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
