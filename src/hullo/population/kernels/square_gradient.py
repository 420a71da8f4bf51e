"""Compute the gradient of the images of a convolution with stride two, for a population.

A square of 2 x 2 pixels of the images is one row of the matrix product: its pixels share the outputs around them, which
are then loaded once for the four. With a 3 x 3 kernel those are four outputs, where the pixels one by one would load
nine. A weight is multiplied with zeros where a pixel has no tap of an output.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806 (constants are in capitals, in Triton)
from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.kernels.triton import INTERPRETED
from hullo.population.kernels.launch import launch, wait_for_previous
from hullo.population.kernels.layouts import Shape, block, empty_images, is_stacked, locate_member

STRIDE = 2


class Tile(NamedTuple):
    """Hold the settings of `_square_kernel`."""

    rows: int  # squares per program
    inner: int  # numbers of each per step
    warps: int
    stages: int


TILES = {  # by kernel, input and output channels of the convolution
    (1, 16, 32): Tile(64, 32, 4, 2),
    (1, 32, 64): Tile(64, 32, 4, 2),
    (3, 16, 32): Tile(128, 32, 4, 3),
    (3, 32, 64): Tile(128, 64, 8, 3),
}
"""The fastest of many settings on an H200 for layers of ResNet-20 and ResNet-56, each checked against float32 there."""


def choose_tile(shape: Shape, dy: Tensor) -> Tile | None:
    """Return the settings for a layer; None for one that was not measured."""
    is_served = shape.stride == STRIDE and not shape.line and (dy.dtype == torch.bfloat16 or INTERPRETED)
    return TILES.get(shape.layer) if is_served else None


def input_gradient(dy: Tensor, weight: Tensor, shape: Shape, tile: Tile) -> Tensor:
    """Return the gradient of images from that of the outputs of their convolution."""
    dx, images = empty_images(dy, shape.members, shape.in_channels, shape.in_size), dy.shape[-4]
    height, width = shape.in_size
    squares = images * triton.cdiv(height, STRIDE) * triton.cdiv(width, STRIDE)
    first = -((shape.kernel - 1 - shape.padding[0]) // STRIDE)  # the first output around a square, from its own
    taps = (STRIDE - 1 + shape.padding[0]) // STRIDE - first + 1
    launch(
        _square_kernel, triton.cdiv(squares, tile.rows) * shape.members, dx, dy, weight, shape.members, images,
        follows=True, STACKED=is_stacked(dy), CHANNELS=shape.out_channels, HEIGHT=shape.out_size[0],
        WIDTH=shape.out_size[1], KERNEL=shape.kernel, PADDING=shape.padding[0], FIRST=first, TAPS=taps,
        INNER=min(tile.inner, block(taps * taps * shape.out_channels)), OUT=shape.in_channels, OUT_HEIGHT=height,
        OUT_WIDTH=width, STRIDE=STRIDE, OUT_BLOCK=max(8, triton.next_power_of_2(shape.in_channels)), ROWS=tile.rows,
        BIG=max(dx.numel(), dy.numel()) >= 2**31, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return dx


@triton.jit
def _square_kernel(
    dx_ptr, dy_ptr, weight_ptr, members, images,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr, PADDING: tl.constexpr,
    FIRST: tl.constexpr, TAPS: tl.constexpr, INNER: tl.constexpr, OUT: tl.constexpr, OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr, STRIDE: tl.constexpr, OUT_BLOCK: tl.constexpr, ROWS: tl.constexpr, BIG: tl.constexpr,
    STACKED: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_previous(EARLY)
    H: tl.constexpr = (OUT_HEIGHT + STRIDE - 1) // STRIDE
    W: tl.constexpr = (OUT_WIDTH + STRIDE - 1) // STRIDE
    member = tl.program_id(0) % members
    position = tl.program_id(0) // members * ROWS + tl.arange(0, ROWS)[:, None]
    image, row, column = position // (H * W), position // W % H, position % W
    n = tl.arange(0, STRIDE * STRIDE * OUT_BLOCK)[None, :]
    below, right, out = n // (STRIDE * OUT_BLOCK), n // OUT_BLOCK % STRIDE, n % OUT_BLOCK
    dx = tl.zeros([ROWS, STRIDE * STRIDE * OUT_BLOCK], tl.float32)
    for first in tl.range(0, TAPS * TAPS * CHANNELS, INNER, num_stages=STAGES):
        k = first + tl.arange(0, INNER)[None, :]
        windows = load_pixels(
            dy_ptr, image, row + FIRST + k // (CHANNELS * TAPS), column + FIRST + k // CHANNELS % TAPS, k % CHANNELS,
            (image < images) & (k < TAPS * TAPS * CHANNELS), member, members, images, CHANNELS, HEIGHT, WIDTH, STACKED,
            BIG,
        )  # fmt: skip
        k = first + tl.arange(0, INNER)[:, None]
        ky = below + PADDING - STRIDE * (FIRST + k // (CHANNELS * TAPS))
        kx = right + PADDING - STRIDE * (FIRST + k // CHANNELS % TAPS)
        used = (ky >= 0) & (ky < KERNEL) & (kx >= 0) & (kx < KERNEL) & (k < TAPS * TAPS * CHANNELS) & (out < OUT)
        at = ((member * CHANNELS + k % CHANNELS) * (KERNEL * KERNEL) + ky * KERNEL + kx) * OUT + out
        dx = tl.dot(windows, tl.load(weight_ptr + at, mask=used, other=0.0), dx, input_precision="ieee")
    if BIG:
        image = image.to(tl.int64)
    row, column = row * STRIDE + below, column * STRIDE + right
    known = (image < images) & (row < OUT_HEIGHT) & (column < OUT_WIDTH) & (out < OUT)
    start, pixel = locate_member(member, members, images, OUT_HEIGHT * OUT_WIDTH, OUT, STACKED, BIG)
    to = start + ((image * OUT_HEIGHT + row) * OUT_WIDTH + column) * pixel + out
    tl.store(dx_ptr + to, dx.to(dx_ptr.dtype.element_ty), mask=known)


@triton.jit
def load_pixels(
    x_ptr, image, row, column, channel, known, member, members, images,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STACKED: tl.constexpr, BIG: tl.constexpr,
):  # fmt: skip
    """Load a channel of pixels of one member's images, zero outside."""
    pixel = (image * HEIGHT + row) * WIDTH + column
    if BIG:
        pixel = pixel.to(tl.int64)
    inside = known & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    start, apart = locate_member(member, members, images, HEIGHT * WIDTH, CHANNELS, STACKED, BIG)
    return tl.load(x_ptr + start + pixel * apart + channel, mask=inside, other=0.0)
