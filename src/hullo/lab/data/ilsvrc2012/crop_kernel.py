"""Triton kernel: crop and flip packed images and subtract the mean image, with one read and one write per pixel.

The reference is :func:`hullo.lab.data.ilsvrc2012.augment.crop`. A program computes ROWS rows of one image, COLUMNS
values of each at a time. The source of a row is contiguous, and reversed by pixels if the image is flipped; from row to
row all addresses change by constants.
"""

# mypy: disable-error-code="assignment,no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, RUF005 (constants are in capitals, and tuples grow by addition alone, in Triton)
from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

ROWS, COLUMNS, WARPS = 8, 256, 4
"""Three tiles of 256 columns cover the 3 * 227 values of a row with little waste."""


def crop(images: Tensor, crops: Tensor, mean: Tensor, side: int, dtype: torch.dtype) -> Tensor:
    """Return crops of shape (count, C, side, side) in channels-last memory format, each value rounded once.

    Args:
        images: uint8, (count, H, W, C).
        crops: per image: flipped (0 or 1), first row, first column; (count, 3).
        mean: the mean image in float32, (H, W, C).
        side: height and width of the crops.
        dtype: float32, bfloat16 or float16.
    """
    count, height, width, channels = images.shape
    output = torch.empty(count, side, side, channels, dtype=dtype, device=images.device)
    with torch.cuda.device_of(images):
        _crop[(count * triton.cdiv(side, ROWS),)](
            images.contiguous(), crops.contiguous(), mean.contiguous(), output,
            HEIGHT=height, WIDTH=width, SIDE=side, CHANNELS=channels, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
        )  # fmt: skip
    return output.permute(0, 3, 1, 2)


@triton.jit
def _crop(
    images, crops, mean, output,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = (SIDE + ROWS - 1) // ROWS
    image = tl.program_id(0) // parts
    row = tl.program_id(0) % parts * ROWS
    flipped = tl.load(crops + 3 * image) == 1
    top = tl.load(crops + 3 * image + 1).to(tl.int32) + row
    left = tl.load(crops + 3 * image + 2).to(tl.int32)
    first_value = (top * WIDTH + left) * CHANNELS
    images += image.to(tl.int64) * (HEIGHT * WIDTH * CHANNELS) + first_value
    output += (image.to(tl.int64) * SIDE + row) * (SIDE * CHANNELS)
    mean += first_value
    for start in tl.static_range(0, SIDE * CHANNELS, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        backwards = (SIDE - 1 - column // CHANNELS) * CHANNELS + column % CHANNELS
        source = tl.where(flipped, backwards, column)
        is_column = column < SIDE * CHANNELS
        rows = ()
        for i in tl.static_range(ROWS):  # issue all loads before the first store
            inside = is_column & (row + i < SIDE)
            pixels = tl.load(images + source + i * WIDTH * CHANNELS, mask=inside, other=0)
            mean_values = tl.load(mean + source + i * WIDTH * CHANNELS, mask=inside, other=0.0)
            rows = rows + (pixels.to(tl.float32) - mean_values,)
        for i in tl.static_range(ROWS):
            inside = is_column & (row + i < SIDE)
            tl.store(output + column + i * SIDE * CHANNELS, rows[i].to(output.dtype.element_ty), mask=inside)
