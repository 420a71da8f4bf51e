"""An image as it was released to 256 x 256 pixels in red, green and blue."""

from __future__ import annotations

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

SIDE = 256
SHAPE = (SIDE, SIDE, 3)


class ImageError(ValueError):
    """An image that cannot be decoded, with the reason."""


def decode(content: bytes) -> NDArray[np.uint8]:
    """The image in JPEG or PNG, whatever it is called, as uint8 of shape (256, 256, 3).

    Both sides are resized alone, as the protocol has it, with a triangle filter over the pixels that one pixel becomes
    or comes from. Grey is repeated, CMYK converted (inverted, as Adobe writes it and all read it), alpha dropped. What
    the metadata say is not looked at: no image is turned, and damage there is none of the image's. A JPEG that is
    damaged in its middle, but ends as it should, is decoded all the same; see `hullo.lab.data.ilsvrc2012.jpeg`.

    Examples:
        >>> buffer = io.BytesIO()
        >>> Image.new("L", (500, 375), 77).save(buffer, "JPEG")
        >>> pixels = decode(buffer.getvalue())
        >>> pixels.shape, pixels.min(), pixels.max()
        ((256, 256, 3), np.uint8(77), np.uint8(77))
    """
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image,
        ):
            small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    except UnidentifiedImageError as error:
        begins = f"begins with {content[:8].hex(' ')!r}" if content else "is empty"
        raise ImageError(f"neither JPEG nor PNG: {begins}") from error
    except Exception as error:  # no list of what Pillow may raise on damaged files is complete
        raise ImageError(str(error) or type(error).__name__) from error
    return np.asarray(small)
