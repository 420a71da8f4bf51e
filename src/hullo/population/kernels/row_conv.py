"""Compute convolutions of stride one for a population, row by row.

Members have few channels, so a convolution is limited by how often it reads its input. A program takes one member and a
block of columns of several images and walks down the input's rows. Each row is read once for every kernel column and
multiplied with the weights of all kernel rows: KERNEL running sums belong to the output rows that it reaches, and the
oldest is stored. GROUP neighboring output columns share their input columns: they are one row of the matrix product,
whose weights are then a band matrix.

The gradient for the input is the same convolution of the output's gradient with the flipped weights. In training, batch
norms need the mean and variance of the outputs: a program that is MEASURED adds up its outputs and their squares as it
stores them. For the gradient of the weights, a program multiplies some input columns with the output rows that they
contribute to, UNROLL input rows at a time, which share output rows; its sums are added to others in a fixed order.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator,assignment,misc,var-annotated,attr-defined"
# ruff: noqa: N803, N806, RUF005 (Triton: constants are in capitals, tuples are added)
from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.kernels.device_math import widen
from hullo.kernels.triton import INTERPRETED
from hullo.population.kernels import processors
from hullo.population.kernels.launch import launch, wait_for_previous
from hullo.population.kernels.layouts import Shape, all_channels, block, empty_images, is_stacked, locate_member


class Tile(NamedTuple):
    """Hold the settings of `_convolve_kernel`."""

    group: int  # output columns in a row of the product
    taps: int  # input columns in a block of its inner axis
    rows: int  # pairs of an image and a group
    segment: int  # output rows per program
    warps: int
    stages: int
    prefetch: bool  # load the next row through L1 into registers
    shifted: bool  # hold running sums by kernel row, and store a copy of the last


ALL = 2**16  # rows of an image

TILES = {  # by kernel, input and output channels
    (3, 16, 16): Tile(2, 4, 128, ALL, 8, 3, False, True),
    (3, 32, 32): Tile(2, 4, 64, ALL, 4, 3, False, False),
    (3, 32, 64): Tile(1, 1, 64, ALL, 4, 3, False, False),
    (3, 64, 32): Tile(1, 1, 128, ALL, 8, 3, False, False),
    (3, 64, 64): Tile(1, 1, 128, ALL, 8, 1, True, False),
    (5, 50, 20): Tile(1, 5, 64, ALL, 8, 3, False, False),
}
MOMENT_TILES = {  # where the statistics of the outputs are computed, too
    (3, 16, 16): Tile(2, 4, 64, ALL, 4, 3, False, True),
    (3, 32, 32): Tile(2, 4, 64, ALL, 4, 3, False, False),
}
"""The fastest of many settings on an H200 for layers of LeNet-5, KerasNet and ResNet-56, where faster than cuDNN or the
kernels for any stride. Each was checked against float32 there; for some other settings Triton 3.6 made code with wrong
results, so no shape is served that was not measured."""


def choose_tile(shape: Shape, x: Tensor, *, measured: bool = False) -> Tile | None:
    """Return the settings with which to convolve x; None for what `_convolve_kernel` does not serve."""
    tiles = MOMENT_TILES if measured else TILES
    tile = tiles.get(shape.layer) if _is_served(shape, x) else None
    if tile is None or not all(0 <= padding < shape.kernel for padding in shape.padding):
        return None  # in wider padding there are output rows without an input row
    height, width = shape.out_size
    programs = triton.cdiv(x.shape[-4] * triton.cdiv(width, tile.group), tile.rows) * shape.members
    if shape.in_channels == shape.out_channels == 64 and programs > 2 * processors(x):
        return None  # loading the weights of so many programs takes too long
    return tile._replace(segment=min(tile.segment, split_rows(height, programs, x)))


def _is_served(shape: Shape, x: Tensor) -> bool:
    return shape.stride == 1 and not shape.line and (x.dtype == torch.bfloat16 or INTERPRETED)


def is_tuned_for(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the settings were measured and checked: in bfloat16, on Hopper, with this version of Triton."""
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    return INTERPRETED or (hopper and dtype == torch.bfloat16 and triton.__version__.startswith("3.6."))


def split_rows(height: int, programs: int, x: Tensor) -> int:
    """Return how many rows a program takes: all, or fewer where programs for all rows would leave processors idle.

    Two programs per processor were fastest for ResNet-56 with 21 members, three with 13; with 60 nothing is split.
    """
    available = processors(x)
    if 10 * programs > 9 * available:
        return height
    segments = (3 if 2 * programs <= available else 2) * available // programs
    return int(triton.cdiv(height, min(segments, max(1, height // 4))))


def convolve_rows(
    x: Tensor, weight: Tensor, shape: Shape, tile: Tile, *, transposed: bool = False, measured: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the convolution of x; of the output's gradient with the flipped weights where `transposed`.

    Where `measured`, also return sums and sums of squares of each output channel, (2, parts, channels).
    """
    height, width = shape.out_size
    y, images = empty_images(x, shape.members, shape.out_channels, shape.out_size), x.shape[-4]
    segment = min(tile.segment, height)
    blocks = triton.cdiv(images * triton.cdiv(width, tile.group), tile.rows) * triton.cdiv(height, segment)
    moments = torch.empty(2, blocks if measured else 0, all_channels(y), device=x.device)
    launch(
        _convolve_kernel, blocks * shape.members, y, x, weight, moments, shape.members, images, moments.shape[1],
        follows=True, STACKED=is_stacked(x), IN=shape.in_channels, HEIGHT=shape.in_size[0], WIDTH=shape.in_size[1],
        OUT=shape.out_channels, OUT_HEIGHT=height, OUT_WIDTH=width,
        KERNEL=shape.kernel, PADDING=shape.padding[0], TRANSPOSED=transposed, MEASURED=measured,
        OUT_BLOCK=block(shape.out_channels), GROUP=tile.group, TAPS=tile.taps,
        IN_BLOCK=block(tile.taps * shape.in_channels), ROWS=tile.rows, SEGMENT=segment,
        BIG=max(x.numel(), y.numel()) >= 2**31, PREFETCH=tile.prefetch, SHIFTED=tile.shifted,
        STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return y, moments if measured else None


@triton.jit
def _convolve_kernel(
    y_ptr, x_ptr, weight_ptr, moments_ptr, members, images, parts,
    IN: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr, KERNEL: tl.constexpr, PADDING: tl.constexpr, TRANSPOSED: tl.constexpr,
    MEASURED: tl.constexpr, OUT_BLOCK: tl.constexpr, GROUP: tl.constexpr, TAPS: tl.constexpr, IN_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, SEGMENT: tl.constexpr, BIG: tl.constexpr, PREFETCH: tl.constexpr, SHIFTED: tl.constexpr,
    STACKED: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_previous(EARLY)
    SEGMENTS: tl.constexpr = (OUT_HEIGHT + SEGMENT - 1) // SEGMENT
    GROUPS: tl.constexpr = (OUT_WIDTH + GROUP - 1) // GROUP
    SLICES: tl.constexpr = (GROUP + KERNEL + TAPS - 2) // TAPS
    member = tl.program_id(0) % members  # programs that run at the same time read neighboring addresses
    part = tl.program_id(0) // members
    first = part % SEGMENTS * SEGMENT
    last = tl.minimum(first + SEGMENT, OUT_HEIGHT)
    index = part // SEGMENTS * ROWS + tl.arange(0, ROWS)[:, None]
    image, column = index // GROUPS, index % GROUPS * GROUP
    if BIG:
        image = image.to(tl.int64)
    weights = ()
    for s in tl.static_range(SLICES):
        for ky in tl.static_range(KERNEL):
            weights = weights + (
                _load_band(
                    weight_ptr, member, ky, s * TAPS, IN, OUT, KERNEL, TRANSPOSED, OUT_BLOCK, GROUP, TAPS, IN_BLOCK
                ),
            )
    n = tl.arange(0, GROUP * OUT_BLOCK)[None, :]
    out_column, out = column + n // OUT_BLOCK, n % OUT_BLOCK
    y_first, y_pixel = locate_member(member, members, images, OUT_HEIGHT * OUT_WIDTH, OUT, STACKED, BIG)
    y_at = y_first + (image * (OUT_HEIGHT * OUT_WIDTH) + out_column) * y_pixel + out
    stored = (image < images) & (out_column < OUT_WIDTH) & (out < OUT)
    total = tl.zeros([ROWS // 16, 8, OUT_BLOCK], tl.float32)
    squares = tl.zeros([ROWS // 16, 8, OUT_BLOCK], tl.float32)
    sums = ()  # that of output row r is in slot (r - PADDING - row) % KERNEL; where SHIFTED, in slot row + PADDING - r
    for _ in tl.static_range(KERNEL):
        sums = sums + (tl.zeros([ROWS, GROUP * OUT_BLOCK], tl.float32),)
    k = tl.arange(0, IN_BLOCK)[None, :]
    x_column = column - PADDING + k // IN
    x_first, x_pixel = locate_member(member, members, images, HEIGHT * WIDTH, IN, STACKED, BIG)
    x_ptrs = x_ptr + x_first + (image * (HEIGHT * WIDTH) + x_column) * x_pixel + k % IN
    begin, end = tl.maximum(first - PADDING, 0), tl.minimum(last - PADDING + KERNEL - 1, HEIGHT)
    ahead = ()
    if PREFETCH:
        ahead = _load_row(x_ptrs, image < images, x_column, k, begin, x_pixel, IN, HEIGHT, WIDTH, TAPS, SLICES)
    for row in tl.range(begin, end, num_stages=STAGES):
        if PREFETCH:
            x = ahead
            ahead = _load_row(x_ptrs, image < images, x_column, k, row + 1, x_pixel, IN, HEIGHT, WIDTH, TAPS, SLICES)
        else:
            x = _load_row(x_ptrs, image < images, x_column, k, row, x_pixel, IN, HEIGHT, WIDTH, TAPS, SLICES)
        for s in tl.static_range(SLICES):
            added = ()
            for slot in tl.static_range(KERNEL):
                w = weights[s * KERNEL + (slot if SHIFTED else (KERNEL - slot) % KERNEL)]
                if s == 0 and slot == 0:  # the first input row of this output row
                    added = added + (tl.dot(x[s], w, input_precision="ieee"),)
                else:
                    added = added + (tl.dot(x[s], w, sums[slot], input_precision="ieee"),)
            sums = added
        y_row = row + PADDING - KERNEL + 1
        y = sums[KERNEL - 1] + 0.0 if SHIFTED else sums[1 % KERNEL]
        y = y.to(y_ptr.dtype.element_ty)
        known = stored & (y_row >= first) & (y_row < last)
        tl.store(y_ptr + y_at + y_row * OUT_WIDTH * y_pixel, y, mask=known)
        if MEASURED:
            y = tl.where(known, widen(y), 0.0)
            total += fold(y, ROWS, GROUP, OUT_BLOCK)
            squares += fold(y * y, ROWS, GROUP, OUT_BLOCK)
        moved = ()
        for slot in tl.static_range(KERNEL):
            # a copy: the pipeliner takes no other dot's sum as it is
            moved = moved + (sums[(slot + (KERNEL - 1 if SHIFTED else 1)) % KERNEL] + 0.0,)
        sums = moved
    for ky in tl.static_range(1, KERNEL):  # output rows below the last input row
        y_row = end + PADDING - ky
        y = sums[ky if SHIFTED else KERNEL - ky].to(y_ptr.dtype.element_ty)
        known = stored & (y_row >= first) & (y_row < last)
        tl.store(y_ptr + y_at + y_row * OUT_WIDTH * y_pixel, y, mask=known)
        if MEASURED:
            y = tl.where(known, widen(y), 0.0)
            total += fold(y, ROWS, GROUP, OUT_BLOCK)
            squares += fold(y * y, ROWS, GROUP, OUT_BLOCK)
    if MEASURED:
        out = tl.arange(0, OUT_BLOCK)
        to = moments_ptr + (part * members + member) * OUT + out
        tl.store(to, tl.sum(tl.sum(total, axis=1), axis=0), mask=out < OUT)
        tl.store(to + parts * members * OUT, tl.sum(tl.sum(squares, axis=1), axis=0), mask=out < OUT)


@triton.jit
def fold(y, ROWS: tl.constexpr, GROUP: tl.constexpr, OUT_BLOCK: tl.constexpr):
    """Add what one thread has of each output channel: rows that are eight apart, and the columns of a group."""
    return tl.sum(tl.sum(tl.reshape(y, [ROWS // 16, 2, 8, GROUP, OUT_BLOCK]), axis=3), axis=1)


@triton.jit
def _load_band(
    weight_ptr, member, ky, first_tap,
    IN: tl.constexpr, OUT: tl.constexpr, KERNEL: tl.constexpr, TRANSPOSED: tl.constexpr, OUT_BLOCK: tl.constexpr,
    GROUP: tl.constexpr, TAPS: tl.constexpr, IN_BLOCK: tl.constexpr,
):  # fmt: skip
    """Load the weights from TAPS input columns to GROUP output columns, (TAPS * IN, GROUP * OUT), zero elsewhere."""
    k, n = tl.arange(0, IN_BLOCK)[:, None], tl.arange(0, GROUP * OUT_BLOCK)[None, :]
    tap, channel, out = k // IN, k % IN, n % OUT_BLOCK
    kx = first_tap + tap - n // OUT_BLOCK
    if TRANSPOSED:
        tap_at = (KERNEL - 1 - ky) * KERNEL + KERNEL - 1 - kx
        at = ((member * IN + channel) * (KERNEL * KERNEL) + tap_at) * OUT + out
    else:
        at = ((member * OUT + out) * (KERNEL * KERNEL) + ky * KERNEL + kx) * IN + channel
    return tl.load(weight_ptr + at, mask=(tap < TAPS) & (kx >= 0) & (kx < KERNEL) & (out < OUT), other=0.0)


@triton.jit
def _load_row(
    x_ptrs, known, x_column, k, row, pixel,
    IN: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """Load a row's columns from `x_column` on as SLICES blocks (ROWS, TAPS * IN), zero outside the images."""
    known = known & (k < TAPS * IN) & (row < HEIGHT)
    blocks = ()
    for s in tl.static_range(SLICES):
        inside = known & (x_column + s * TAPS >= 0) & (x_column + s * TAPS < WIDTH)
        blocks = blocks + (tl.load(x_ptrs + (row * WIDTH + s * TAPS) * pixel, mask=inside, other=0.0),)
    return blocks


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
"""By kernel, input and output channels; chosen as those of `_convolve_kernel`."""


def choose_weight_tile(shape: Shape, x: Tensor) -> WeightTile | None:
    """Return the settings with which to compute the weights' gradient; None where others have to."""
    tile = WEIGHT_TILES.get(shape.layer) if _is_served(shape, x) else None
    if tile is None:
        return None
    blocks = triton.cdiv(shape.kernel + tile.group - 1, tile.taps)
    groups = x.shape[-4] * triton.cdiv(shape.out_size[1], tile.group)
    programs = triton.cdiv(groups, tile.positions) * blocks * shape.members
    if shape.in_channels == shape.out_channels == 64 and programs > 3 * processors(x):
        return None  # for larger images cuDNN is faster
    return tile._replace(segment=split_rows(shape.in_size[0], programs, x))


def weight_gradient(dy: Tensor, x: Tensor, shape: Shape, tile: WeightTile) -> Tensor:
    """Return the gradient of the weights, (members * out_channels, in_channels, kernel, kernel), channels last."""
    height, width = shape.in_size
    segment = min(tile.segment, height)
    groups, images = triton.cdiv(shape.out_size[1], tile.group), x.shape[-4]
    splits = triton.cdiv(images * groups, tile.positions) * triton.cdiv(height, segment)
    blocks = triton.cdiv(shape.kernel + tile.group - 1, tile.taps)
    filters = shape.members * shape.out_channels, shape.kernel, shape.kernel, shape.in_channels
    partial = torch.empty(splits * tile.group, *filters, dtype=torch.float32, device=x.device)
    launch(
        _weight_gradient_kernel, splits * blocks * shape.members, dy, x, partial, shape.members, images,
        follows=True, STACKED=is_stacked(x), IN=shape.in_channels, HEIGHT=height, WIDTH=width,
        OUT=shape.out_channels, OUT_HEIGHT=shape.out_size[0], OUT_WIDTH=shape.out_size[1],
        KERNEL=shape.kernel, PADDING=shape.padding[0], OUT_BLOCK=block(shape.out_channels),
        GROUP=tile.group, TAPS=tile.taps, IN_BLOCK=block(tile.taps * shape.in_channels),
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
