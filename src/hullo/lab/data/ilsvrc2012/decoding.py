"""Decode released images to 256 x 256 RGB pixels."""

from __future__ import annotations

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 256
SHAPE = (SIDE, SIDE, 3)


def decode(content: bytes) -> NDArray[np.uint8]:
    """Decode a JPEG or PNG image, whatever its file name, to uint8 of shape (256, 256, 3); errors are Pillow's.

    Height and width are resized independently, as in the paper's protocol, with an antialiased bilinear filter.
    Grayscale is repeated, CMYK is converted (inverted, as Adobe writes it), alpha is dropped. Metadata are ignored: no
    image is rotated, and damaged metadata do not matter.

    Examples:
        >>> buffer = io.BytesIO()
        >>> Image.new("L", (500, 375), 77).save(buffer, "JPEG")
        >>> pixels = decode(buffer.getvalue())
        >>> pixels.shape, pixels.min(), pixels.max()
        ((256, 256, 3), np.uint8(77), np.uint8(77))
    """
    with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
