"""Compute the gradients of weights of a population's convolutions of stride one, row by row.

A program takes one member, a block of columns of several images and some input columns, and walks down the input's
rows: input columns are multiplied with the output rows that they contribute to, UNROLL input rows at a time, which
share output rows. GROUP neighboring output columns are one row of the matrix product, as in
:mod:`hullo.population.kernels.row_conv`. Each program writes its sums, which are added in a fixed order.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator,assignment,var-annotated"
# ruff: noqa: N803, N806, RUF005 (Triton: constants are in capitals, tuples are added)
from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.kernels.triton import INTERPRETED
from hullo.population.kernels import processors
from hullo.population.kernels.launch import launch, wait_for_previous
from hullo.population.kernels.layouts import is_stacked, locate_member
from hullo.population.kernels.row_conv import ALL, Sizes, block, split_rows


class WeightTile(NamedTuple):
    """Hold the settings of `_weight_gradient_kernel`."""

    group: int  # output columns in a row of the product
    taps: int  # input columns per program
    positions: int  # pairs of an image and a group
    segment: int  # input rows per program
    unroll: int  # input rows per step
    warps: int
    stages: int


WEIGHT_TILES = {
    (3, 16, 16): WeightTile(2, 4, 64, ALL, 2, 4, 3),
    (3, 32, 32): WeightTile(2, 4, 64, ALL, 1, 8, 3),
    (3, 32, 64): WeightTile(1, 2, 128, ALL, 1, 4, 3),
    (3, 64, 64): WeightTile(1, 1, 128, ALL, 1, 4, 3),
}
"""By kernel, input and output channels; chosen as in :mod:`hullo.population.kernels.row_conv`."""


def choose_weight_tile(sizes: Sizes, x: Tensor) -> WeightTile | None:
    """Return the settings with which to compute the weights' gradient; None where others have to."""
    tile = WEIGHT_TILES.get((sizes.kernel, sizes.in_channels, sizes.out_channels))
    if tile is None or not (x.dtype == torch.bfloat16 or INTERPRETED):
        return None
    blocks = triton.cdiv(sizes.kernel + tile.group - 1, tile.taps)
    groups = x.shape[-4] * triton.cdiv(sizes.out_size[1], tile.group)
    programs = triton.cdiv(groups, tile.positions) * blocks * sizes.members
    if sizes.in_channels == sizes.out_channels == 64 and programs > 3 * processors(x):
        return None  # for larger images cuDNN is faster
    return tile._replace(segment=split_rows(sizes.in_size[0], programs, x))


def weight_gradient(dy: Tensor, x: Tensor, sizes: Sizes, tile: WeightTile) -> Tensor:
    """Return the gradient of the weights, (members * out_channels, in_channels, kernel, kernel), channels last."""
    height, width = sizes.in_size
    segment = min(tile.segment, height)
    groups, images = triton.cdiv(sizes.out_size[1], tile.group), x.shape[-4]
    splits = triton.cdiv(images * groups, tile.positions) * triton.cdiv(height, segment)
    blocks = triton.cdiv(sizes.kernel + tile.group - 1, tile.taps)
    shape = sizes.members * sizes.out_channels, sizes.kernel, sizes.kernel, sizes.in_channels
    partial = torch.empty(splits * tile.group, *shape, dtype=torch.float32, device=x.device)
    launch(
        _weight_gradient_kernel, splits * blocks * sizes.members, dy, x, partial, sizes.members, images,
        follows=True, STACKED=is_stacked(x), IN=sizes.in_channels, HEIGHT=height, WIDTH=width,
        OUT=sizes.out_channels, OUT_HEIGHT=sizes.out_size[0], OUT_WIDTH=sizes.out_size[1],
        KERNEL=sizes.kernel, PADDING=sizes.padding, OUT_BLOCK=block(sizes.out_channels),
        GROUP=tile.group, TAPS=tile.taps, IN_BLOCK=block(tile.taps * sizes.in_channels),
        POSITIONS=tile.positions, SEGMENT=segment, UNROLL=tile.unroll,
        BIG=max(x.numel(), dy.numel(), partial.numel()) >= 2**31, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return add_parts(partial, x.dtype).permute(0, 3, 1, 2)


def add_parts(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum over the first dimension, in a fixed order, so that every run gives the same bits."""
    total = torch.empty(partial.shape[1:], dtype=dtype, device=partial.device)
    programs = triton.cdiv(total.numel(), 512)
    launch(_add_kernel, programs, total, partial, total.numel(), len(partial), follows=True, BLOCK=512)
    return total


@triton.jit
def _weight_gradient_kernel(
    dy_ptr, x_ptr, partial_ptr, members, images,
    IN: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr, KERNEL: tl.constexpr, PADDING: tl.constexpr, OUT_BLOCK: tl.constexpr,
    GROUP: tl.constexpr, TAPS: tl.constexpr, IN_BLOCK: tl.constexpr, POSITIONS: tl.constexpr, SEGMENT: tl.constexpr,
    UNROLL: tl.constexpr, STACKED: tl.constexpr, BIG: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_previous(EARLY)
    BLOCKS: tl.constexpr = (KERNEL + GROUP + TAPS - 2) // TAPS
    GROUPS: tl.constexpr = (OUT_WIDTH + GROUP - 1) // GROUP
    SEGMENTS: tl.constexpr = (HEIGHT + SEGMENT - 1) // SEGMENT
    member = tl.program_id(0) % members
    first_tap = tl.program_id(0) // members % BLOCKS * TAPS
    split = tl.program_id(0) // members // BLOCKS
    first = split % SEGMENTS * SEGMENT
    last = tl.minimum(first + SEGMENT, HEIGHT)
    index = split // SEGMENTS * POSITIONS + tl.arange(0, POSITIONS)[:, None]
    image, column = index // GROUPS, index % GROUPS * GROUP
    if BIG:
        image, split = image.to(tl.int64), split.to(tl.int64)
    k, n = tl.arange(0, IN_BLOCK)[None, :], tl.arange(0, GROUP * OUT_BLOCK)[None, :]
    x_column, y_column = column - PADDING + first_tap + k // IN, column + n // OUT_BLOCK
    x_first, x_pixel = locate_member(member, members, images, HEIGHT * WIDTH, IN, STACKED, BIG)
    x_ptrs = x_ptr + x_first + (image * (HEIGHT * WIDTH) + x_column) * x_pixel + k % IN
    x_known = (image < images) & (k < TAPS * IN) & (x_column >= 0) & (x_column < WIDTH)
    y_first, y_pixel = locate_member(member, members, images, OUT_HEIGHT * OUT_WIDTH, OUT, STACKED, BIG)
    dy_ptrs = dy_ptr + y_first + (image * (OUT_HEIGHT * OUT_WIDTH) + y_column) * y_pixel + n % OUT_BLOCK
    dy_known = (image < images) & (y_column < OUT_WIDTH) & (n % OUT_BLOCK < OUT)
    sums = ()
    for _ in tl.static_range(KERNEL):
        sums = sums + (tl.zeros([IN_BLOCK, GROUP * OUT_BLOCK], tl.float32),)
    for top in tl.range(first, last, UNROLL, num_stages=STAGES):
        dy = ()  # of the output rows that these input rows contribute to
        for r in tl.static_range(UNROLL + KERNEL - 1):
            y_row = top + PADDING - KERNEL + 1 + r
            known = dy_known & (y_row >= 0) & (y_row < OUT_HEIGHT)
            dy = dy + (tl.load(dy_ptrs + y_row * OUT_WIDTH * y_pixel, mask=known, other=0.0),)
        for r in tl.static_range(UNROLL):
            known = x_known & (top + r < last)
            x = tl.load(x_ptrs + (top + r) * WIDTH * x_pixel, mask=known, other=0.0).trans()
            added = ()
            for ky in tl.static_range(KERNEL):
                added = added + (tl.dot(x, dy[r + KERNEL - 1 - ky], sums[ky], input_precision="ieee"),)
            sums = added
    k = tl.arange(0, IN_BLOCK)[:, None]
    g, out = n // OUT_BLOCK, n % OUT_BLOCK
    kx = first_tap + k // IN - g
    known = (k < TAPS * IN) & (kx >= 0) & (kx < KERNEL) & (out < OUT)
    filter_at = ((split * GROUP + g) * members + member) * OUT + out
    for ky in tl.static_range(KERNEL):
        tl.store(partial_ptr + ((filter_at * KERNEL + ky) * KERNEL + kx) * IN + k % IN, sums[ky], mask=known)


@triton.jit
def _add_kernel(total_ptr, partial_ptr, size, splits, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    wait_for_previous(EARLY)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(splits):
        total += tl.load(partial_ptr + at, mask=at < size, other=0.0)
        partial_ptr += size
    tl.store(total_ptr + at, total.to(total_ptr.dtype.element_ty), mask=at < size)
