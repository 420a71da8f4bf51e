"""Compute the gradient of the images of a convolution with stride two, for a population.

A square of 2 x 2 pixels of the images is one row of the matrix product: its pixels share the outputs around them, which
are then loaded once for the four. With a 3 x 3 kernel those are four outputs, where the pixels one by one would load
nine. A weight is multiplied with zeros where a pixel has no tap of an output.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806 (constants are in capitals, in Triton)
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.kernels.triton import INTERPRETED
from hullo.population.kernels.launch import launch, wait_for_previous
from hullo.population.kernels.layouts import empty_images, is_stacked, locate_member
from hullo.population.kernels.row_conv import Sizes, block

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


def choose_tile(sizes: Sizes, dy: Tensor) -> Tile | None:
    """Return the settings for a layer; None for one that was not measured."""
    layer = sizes.kernel, sizes.in_channels, sizes.out_channels
    return TILES.get(layer) if dy.dtype == torch.bfloat16 or INTERPRETED else None


class Part(NamedTuple):
    """Hold the gradient of a convolution's outputs, its weights and sizes."""

    dy: Tensor
    weight: Tensor
    sizes: Sizes

    def constants(self, inner: int) -> dict[str, int]:
        """Return the constants of the kernel's loop over the outputs around a square."""
        sizes = self.sizes
        first = -((sizes.kernel - 1 - sizes.padding) // STRIDE)  # the first output around a square, from its own
        taps = (STRIDE - 1 + sizes.padding) // STRIDE - first + 1
        return {
            "CHANNELS": sizes.out_channels, "HEIGHT": sizes.out_size[0], "WIDTH": sizes.out_size[1],
            "KERNEL": sizes.kernel, "PADDING": sizes.padding, "FIRST": first, "TAPS": taps,
            "INNER": min(inner, block(taps * taps * sizes.out_channels)),
        }  # fmt: skip


def input_gradient(parts: Sequence[Part], tile: Tile) -> Tensor:
    """Return the gradient of images that one or two convolutions read, the sum of both."""
    one, other = parts[0], parts[-1]
    sizes, dy = one.sizes, one.dy
    height, width = sizes.in_size
    dx, images = empty_images(dy, sizes.members, sizes.in_channels, sizes.in_size), dy.shape[-4]
    squares = images * triton.cdiv(height, STRIDE) * triton.cdiv(width, STRIDE)
    launch(
        _square_kernel, triton.cdiv(squares, tile.rows) * sizes.members, dx, dy, one.weight, other.dy, other.weight,
        sizes.members, images, follows=True, STACKED=is_stacked(dy), **one.constants(tile.inner),
        **{f"{name}_2": number for name, number in other.constants(tile.inner).items()}, TWO=len(parts) > 1,
        OUT=sizes.in_channels, OUT_HEIGHT=height, OUT_WIDTH=width, STRIDE=STRIDE,
        OUT_BLOCK=max(8, triton.next_power_of_2(sizes.in_channels)), ROWS=tile.rows,
        BIG=max(dx.numel(), *(part.dy.numel() for part in parts)) >= 2**31, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return dx


@triton.jit
def _square_kernel(
    dx_ptr, dy_ptr, weight_ptr, dy_2_ptr, weight_2_ptr, members, images,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr, PADDING: tl.constexpr,
    FIRST: tl.constexpr, TAPS: tl.constexpr, INNER: tl.constexpr, CHANNELS_2: tl.constexpr, HEIGHT_2: tl.constexpr,
    WIDTH_2: tl.constexpr, KERNEL_2: tl.constexpr, PADDING_2: tl.constexpr, FIRST_2: tl.constexpr,
    TAPS_2: tl.constexpr, INNER_2: tl.constexpr, TWO: tl.constexpr, OUT: tl.constexpr, OUT_HEIGHT: tl.constexpr,
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
    dx = _add_products(
        dx, dy_ptr, weight_ptr, image, row, column, below, right, out, member, members, images,
        CHANNELS, HEIGHT, WIDTH, KERNEL, PADDING, FIRST, TAPS, INNER, OUT, STRIDE, STACKED, BIG, STAGES,
    )  # fmt: skip
    if TWO:
        dx = _add_products(
            dx, dy_2_ptr, weight_2_ptr, image, row, column, below, right, out, member, members, images,
            CHANNELS_2, HEIGHT_2, WIDTH_2, KERNEL_2, PADDING_2, FIRST_2, TAPS_2, INNER_2, OUT, STRIDE, STACKED, BIG,
            STAGES,
        )  # fmt: skip
    if BIG:
        image = image.to(tl.int64)
    row, column = row * STRIDE + below, column * STRIDE + right
    known = (image < images) & (row < OUT_HEIGHT) & (column < OUT_WIDTH) & (out < OUT)
    start, pixel = locate_member(member, members, images, OUT_HEIGHT * OUT_WIDTH, OUT, STACKED, BIG)
    to = start + ((image * OUT_HEIGHT + row) * OUT_WIDTH + column) * pixel + out
    tl.store(dx_ptr + to, dx.to(dx_ptr.dtype.element_ty), mask=known)


@triton.jit
def _add_products(
    dx, dy_ptr, weight_ptr, image, row, column, below, right, out, member, members, images,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr, PADDING: tl.constexpr,
    FIRST: tl.constexpr, TAPS: tl.constexpr, INNER: tl.constexpr, OUT: tl.constexpr, STRIDE: tl.constexpr,
    STACKED: tl.constexpr, BIG: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add the outputs around squares times their weights."""
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
    return dx


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
