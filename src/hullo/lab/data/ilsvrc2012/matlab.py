"""Read MATLAB level 5 files as far as the ILSVRC-2012 devkit needs: an array of structs of strings and numbers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8", 16: "u1"}
_STRUCT, _TEXT = 2, 4
MAX_BYTES = 2**26
"""The largest decompressed size in bytes."""

Value = str | list[float]


def read_structs(content: bytes) -> list[dict[str, Value]]:
    """Return the array of structs in a little-endian file as dictionaries of strings and lists of numbers.

    A file consists of a header of 128 bytes and elements: a type, a size and as many bytes, padded to a multiple of
    eight, or compressed. A matrix is an element of elements: its class, its dimensions, its name, then its values; the
    values of a struct are matrices.
    """
    if content[126:128] != b"IM":
        raise ValueError(f"starts with {content[:16]!r}; must be a little-endian MATLAB level 5 file")
    try:
        ((kind, data),) = _elements(content[128:])
        if kind == _COMPRESSED:
            ((kind, data),) = _elements(_inflate(data))
        flags, _, _, length, fields, *values = _elements(data)
        if kind != _MATRIX or flags[1][0] != _STRUCT:
            raise ValueError("contains no array of structs")
        (width,) = struct.unpack("<i", length[1])
        names = [name.rstrip(b"\0").decode() for (name,) in struct.iter_unpack(f"{width}s", fields[1])]
        parsed = [_value(matrix) for _, matrix in values]
    except (zlib.error, struct.error, ArithmeticError, LookupError, TypeError) as error:
        raise ValueError(f"is damaged ({error})") from error
    return [dict(zip(names, parsed[k : k + len(names)], strict=True)) for k in range(0, len(parsed), len(names))]


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    content = stream.decompress(data, MAX_BYTES)
    if not stream.eof:
        raise ValueError(f"is truncated, or has more than {MAX_BYTES:,} bytes")
    return content


def _value(matrix: bytes) -> Value:
    flags, _, _, (kind, data) = _elements(matrix)
    values = np.frombuffer(data, "<" + _NUMBERS[kind])  # MATLAB chooses the smallest type that holds them
    if flags[1][0] != _TEXT:
        return [float(value) for value in values]
    return data.decode() if kind == 16 else "".join(map(chr, values))


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        kind, size = struct.unpack_from("<II", data, position)
        if kind >> 16:  # up to four bytes are stored in the tag itself
            kind, size, start, position = kind & 0xFFFF, kind >> 16, position + 4, position + 8
        else:
            start = position + 8
            position = start + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(data):
            raise ValueError(f"is truncated: {size} bytes expected at {start} of {len(data)}")
        yield kind, data[start : start + size]
