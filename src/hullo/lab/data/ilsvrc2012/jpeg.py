"""Find damage in the middle of a JPEG, which decoders conceal silently.

Pillow raises an error if a file is truncated. It does not report the warnings of libjpeg: markers within compressed
data, restarts out of order, too little or too much compressed data. So this module parses the markers. To find how much
data an image uses, it decodes the image with other data appended, and with its last bytes replaced: pixels that change
depend on these bytes.

Damage that leaves a valid image of the same number of blocks cannot be found: a flipped bit of a coefficient, or a few
bytes after which the decoder resynchronizes.
"""

from __future__ import annotations

import io
import math
import re
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive, all with Huffman codes
_PROGRESSIVE, _END, _SCAN, _LINES, _RESTARTS = 0xC2, 0xD9, 0xDA, 0xDC, 0xDD
_BETWEEN_SCANS = {0xC4, _END, _SCAN, 0xDB, _LINES, _RESTARTS, 0xFE, *range(0xE0, 0xF0)}
_MARKER = re.compile(rb"\xff+([\x01-\xfe])")
_RESTART = re.compile(rb"\xff+[\xd0-\xd7]")
FILLER = bytes((37 * i + 11) % 251 for i in range(400))
"""Arbitrary data without a marker."""
SURPLUS = 8
"""Number of surplus bytes that are tolerated."""


class Scan(NamedTuple):
    """Start and end of the compressed data of a scan."""

    start: int
    end: int


class Frame(NamedTuple):
    """The frame header of a JPEG: the coding, the height, the width, and the sampling factors of each component."""

    kind: int
    height: int
    width: int
    sampling: dict[int, tuple[int, int]]

    def units(self, components: bytes) -> int:
        """Return the number of blocks of a scan of one component, or of groups of interleaved blocks."""
        largest = [max(factors) for factors in zip(*self.sampling.values(), strict=True)]
        sides = self.width, self.height
        if len(components) > 1:
            return math.prod(_ceil(side, 8 * factor) for side, factor in zip(sides, largest, strict=True))
        factors = self.sampling[components[0]]
        return math.prod(_ceil(_ceil(side * o, m), 8) for side, o, m in zip(sides, factors, largest, strict=True))


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def find_damage(content: bytes) -> str | None:
    """Return a description of the damage in a JPEG that can be decoded, if any is found; None for other formats.

    >>> buffer = io.BytesIO()
    >>> Image.radial_gradient("L").save(buffer, "JPEG")
    >>> whole = buffer.getvalue()
    >>> find_damage(whole)
    >>> find_damage(whole[:1000] + whole[1100:])
    'too little compressed data'
    """
    if not content.startswith(SOI):
        return None
    try:
        progressive, scans = _read_scans(content)
    except (LookupError, struct.error):
        return "truncated markers"
    except ValueError as error:
        return str(error)
    return _check_amount(content, scans[-1], progressive=progressive)


def _read_scans(content: bytes) -> tuple[bool, list[Scan]]:
    """Parse all markers; return whether the JPEG is progressive, and its scans. Raise a ValueError for a bad marker."""
    frame, interval, scans = None, 0, []
    position = len(SOI)
    while True:
        match = _MARKER.match(content, position)
        if match is None:
            raise ValueError(f"no marker at byte {position:,}, where one is expected")
        marker, position = match[1][0], match.end()
        if marker == _END and frame and scans:
            return frame.kind == _PROGRESSIVE, scans
        (length,) = struct.unpack_from(">H", content, position)
        body, position = content[position + 2 : position + length], position + length
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", body, 1)
            factors = {body[i]: (body[i + 1] >> 4, body[i + 1] & 15) for i in range(6, 6 + 3 * body[5], 3)}
            frame = Frame(marker, height, width, factors)
        elif marker == _RESTARTS:
            (interval,) = struct.unpack(">H", body)
        elif marker == _SCAN and frame:
            scans.append(_read_scan(content, position, frame, body[1 : 1 + 2 * body[0] : 2], interval))
            position = scans[-1].end


def _read_scan(content: bytes, start: int, frame: Frame, components: bytes, interval: int) -> Scan:
    """Find the end of the compressed data: the first marker that is allowed there and is not a restart."""
    last = frame.kind != _PROGRESSIVE and len(components) == len(frame.sampling)
    expected = _ceil(frame.units(components), interval) - 1 if interval else 0
    restarts = 0
    for match in _MARKER.finditer(content, start):
        marker = match[1][0]
        if 0xD0 <= marker <= 0xD7 and restarts < expected:
            if marker != 0xD0 + restarts % 8:
                raise ValueError(f"a restart out of order at byte {match.start():,}")
            restarts += 1
        elif marker in ({_END, _LINES} if last else _BETWEEN_SCANS):
            if restarts < expected and frame.height:
                raise ValueError(f"{restarts:,} of {expected:,} restarts")
            return Scan(start, match.start())
        else:
            raise ValueError(f"the marker ff {marker:02x} within compressed data at byte {match.start():,}")
    raise LookupError("no end")


def _check_amount(content: bytes, scan: Scan, *, progressive: bool) -> str | None:
    """Return whether the last scan has too little or too much compressed data."""
    before, data = content[: scan.start], content[scan.start : scan.end]
    decode = _decode if progressive else _decode_means
    padded = _RESTART.sub(lambda match: FILLER[:32] + match[0], data) + FILLER
    pixels = decode(before + data + EOI)
    if not np.array_equal(pixels, decode(before + padded + EOI)):
        return "too little compressed data"
    if progressive or len(data) <= SURPLUS:
        return None
    replaced = before + data[:-SURPLUS].rstrip(b"\xff") + FILLER + EOI
    if np.array_equal(pixels, decode(replaced)) and np.array_equal(_decode(content), _decode(replaced)):
        return "too much compressed data"
    return None


def _decode(content: bytes) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
        return np.asarray(image)


def _decode_means(content: bytes) -> NDArray[np.uint8]:
    """Decode only the mean of each block of pixels, in a third of the time."""
    with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
        image.draft(None, (1, 1))
        return np.asarray(image)
