"""Compute convolutions of stride one for a population, row by row.

Members have few channels, so a convolution is limited by how often it reads its input. A program takes one member and a
block of columns of several images and walks down the input's rows. Each row is read once for every kernel column and
multiplied with the weights of all kernel rows: KERNEL running sums belong to the output rows that it reaches, and the
oldest is stored. GROUP neighbouring output columns share their input columns: they are one row of the matrix product,
whose weights are then a band matrix.

The gradient for the input is the same convolution of the output's gradient with the flipped weights. The gradient for
the weights walks down the rows as well: input columns shifted by the kernel's columns are multiplied with output rows
shifted by the kernel's rows. Each program writes its sums, which are added in a fixed order.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator,assignment,misc,var-annotated,attr-defined"
# ruff: noqa: N803, N806, RUF005 (Triton: constants are in capitals, tuples are added)
from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.kernels.triton import INTERPRETED
from hullo.population.kernels import processors


class Sizes(NamedTuple):
    """Hold the sizes of a convolution of stride one; padding is that before the first row and column."""

    members: int
    in_channels: int
    out_channels: int
    kernel: int
    padding: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]

    def transposed(self) -> Sizes:
        """Return the sizes of the convolution that computes the input's gradient."""
        padding = self.kernel - 1 - self.padding
        return Sizes(
            self.members, self.out_channels, self.in_channels, self.kernel, padding, self.out_size, self.in_size
        )


class Tile(NamedTuple):
    """Hold the settings of `_convolve_kernel`."""

    group: int  # output columns in a row of the product
    taps: int  # input columns in a block of its inner axis
    rows: int  # pairs of an image and a group
    segment: int  # output rows per program
    warps: int
    stages: int
    prefetch: bool  # load the next row through L1 into registers


class WeightTile(NamedTuple):
    """Hold the settings of `_weight_gradient_kernel`."""

    columns: int  # kernel columns per program
    stacked: int  # kernel rows in a product
    products: int  # products per row
    positions: int  # pairs of an image and a column
    segment: int  # input rows per program
    warps: int
    stages: int
    prefetch: bool


ALL = 2**16  # rows of an image

TILES = {  # by kernel, input and output channels
    (3, 3, 16): Tile(2, 4, 64, ALL, 4, 1, True),
    (3, 16, 16): Tile(2, 4, 64, ALL, 4, 3, False),
    (3, 32, 32): Tile(1, 1, 128, ALL, 8, 3, False),
    (3, 32, 64): Tile(1, 1, 64, ALL, 4, 3, False),
    (3, 64, 32): Tile(1, 1, 64, ALL, 4, 3, False),
    (3, 64, 64): Tile(1, 1, 64, ALL, 4, 1, True),
    (5, 3, 20): Tile(1, 5, 64, 14, 4, 1, True),
    (5, 50, 20): Tile(1, 1, 128, ALL, 8, 1, False),
}
WEIGHT_TILES = {
    (3, 3, 16): WeightTile(3, 4, 1, 128, ALL, 4, 1, False),
    (3, 16, 16): WeightTile(4, 1, 3, 128, ALL, 4, 2, False),
    (3, 32, 32): WeightTile(4, 1, 3, 64, ALL, 4, 3, False),
    (3, 32, 64): WeightTile(2, 1, 3, 128, ALL, 4, 3, False),
    (5, 3, 20): WeightTile(5, 1, 5, 64, ALL, 4, 1, False),
}
"""The fastest of about a thousand settings on an H200 for layers of LeNet-5, KerasNet and ResNet-56, where faster than
cuDNN and the kernels for any stride. Each was checked against float32 there; for some other settings Triton 3.6 made
code with wrong results, so no shape is served that was not measured."""


def choose_tile(sizes: Sizes, x: Tensor) -> Tile | None:
    """Return the settings with which to convolve x; None for what `_convolve_kernel` does not serve."""
    tile = TILES.get((sizes.kernel, sizes.in_channels, sizes.out_channels)) if serves(x.dtype, x.device) else None
    behind = sizes.out_size[0] + sizes.kernel - 1 - sizes.in_size[0] - sizes.padding
    if tile is None or not (0 <= sizes.padding < sizes.kernel and 0 <= behind < sizes.kernel):
        return None  # in wider padding there are output rows without an input row
    height, width = sizes.out_size
    programs = triton.cdiv(len(x) * triton.cdiv(width, tile.group), tile.rows) * sizes.members
    if sizes.in_channels == sizes.out_channels == 64 and programs > 2 * processors(x):
        return None  # loading the weights of so many programs takes too long
    return tile._replace(segment=min(tile.segment, _split(height, programs, x)))


def choose_weight_tile(sizes: Sizes, x: Tensor) -> WeightTile | None:
    """Return the settings with which to compute the weights' gradient; None where others have to."""
    tile = (
        WEIGHT_TILES.get((sizes.kernel, sizes.in_channels, sizes.out_channels)) if serves(x.dtype, x.device) else None
    )
    if tile is None:
        return None
    blocks = triton.cdiv(sizes.kernel, tile.columns) * triton.cdiv(sizes.kernel, tile.stacked * tile.products)
    programs = triton.cdiv(len(x) * sizes.out_size[1], tile.positions) * blocks * sizes.members
    return tile._replace(segment=_split(sizes.in_size[0], programs, x))


def serves(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the settings were measured and checked: in bfloat16, on Hopper, with this version of Triton."""
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    return INTERPRETED or (hopper and dtype == torch.bfloat16 and triton.__version__.startswith("3.6."))


def _split(height: int, programs: int, x: Tensor) -> int:
    """Return how many rows a program takes: all, or fewer where programs for all rows would leave processors idle."""
    segments = min(max(1, 3 * processors(x) // (2 * programs)), max(1, height // 4))
    return int(triton.cdiv(height, segments))


def block(width: int) -> int:
    """Return the power of two that holds a width; a matrix product takes at least 16."""
    return max(16, int(triton.next_power_of_2(width)))


def convolve_rows(x: Tensor, weight: Tensor, sizes: Sizes, tile: Tile, *, transposed: bool = False) -> Tensor:
    """Return the convolution of x; of the output's gradient with the flipped weights where `transposed`."""
    height, width = sizes.out_size
    y = torch.empty(len(x), height, width, sizes.members * sizes.out_channels, dtype=x.dtype, device=x.device)
    segment = min(tile.segment, height)
    blocks = triton.cdiv(len(x) * triton.cdiv(width, tile.group), tile.rows) * triton.cdiv(height, segment)
    with torch.cuda.device_of(x):
        _convolve_kernel[(blocks * sizes.members,)](
            y, x, weight, sizes.members, len(x),
            IN=sizes.in_channels, HEIGHT=sizes.in_size[0], WIDTH=sizes.in_size[1],
            OUT=sizes.out_channels, OUT_HEIGHT=height, OUT_WIDTH=width,
            KERNEL=sizes.kernel, PADDING=sizes.padding, TRANSPOSED=transposed,
            OUT_BLOCK=block(sizes.out_channels), GROUP=tile.group, TAPS=tile.taps,
            IN_BLOCK=block(tile.taps * sizes.in_channels), ROWS=tile.rows, SEGMENT=segment,
            BIG=max(x.numel(), y.numel()) >= 2**31, PREFETCH=tile.prefetch,
            STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip
    return y.permute(0, 3, 1, 2)


def weight_gradient(dy: Tensor, x: Tensor, sizes: Sizes, tile: WeightTile) -> Tensor:
    """Return the gradient of the weights, (members * out_channels, in_channels, kernel, kernel), channels last."""
    height, width = sizes.in_size
    segment = min(tile.segment, height)
    splits = triton.cdiv(len(x) * sizes.out_size[1], tile.positions) * triton.cdiv(height, segment)
    kernel, filters = sizes.kernel, sizes.members * sizes.out_channels
    blocks = triton.cdiv(kernel, tile.columns) * triton.cdiv(kernel, tile.stacked * tile.products)
    dweight = torch.empty(filters, kernel, kernel, sizes.in_channels, dtype=x.dtype, device=x.device)
    partial = torch.empty(splits, *dweight.shape, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _weight_gradient_kernel[(splits * blocks * sizes.members,)](
            dy, x, partial, sizes.members, len(x),
            IN=sizes.in_channels, HEIGHT=height, WIDTH=width,
            OUT=sizes.out_channels, OUT_HEIGHT=sizes.out_size[0], OUT_WIDTH=sizes.out_size[1],
            KERNEL=kernel, PADDING=sizes.padding, OUT_BLOCK=block(sizes.out_channels),
            COLUMNS=tile.columns, STACKED=tile.stacked, PRODUCTS=tile.products,
            IN_BLOCK=block(tile.columns * sizes.in_channels), POSITIONS=tile.positions, SEGMENT=segment,
            BIG=max(x.numel(), dy.numel(), partial.numel()) >= 2**31, PREFETCH=tile.prefetch,
            STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip
        _add_kernel[(triton.cdiv(dweight.numel(), 512),)](dweight, partial, dweight.numel(), splits, BLOCK=512)
    return dweight.permute(0, 3, 1, 2)


@triton.jit
def _convolve_kernel(
    y_ptr, x_ptr, weight_ptr, members, images,
    IN: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr, KERNEL: tl.constexpr, PADDING: tl.constexpr, TRANSPOSED: tl.constexpr,
    OUT_BLOCK: tl.constexpr, GROUP: tl.constexpr, TAPS: tl.constexpr, IN_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, SEGMENT: tl.constexpr, BIG: tl.constexpr, PREFETCH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    SEGMENTS: tl.constexpr = (OUT_HEIGHT + SEGMENT - 1) // SEGMENT
    GROUPS: tl.constexpr = (OUT_WIDTH + GROUP - 1) // GROUP
    SLICES: tl.constexpr = (GROUP + KERNEL + TAPS - 2) // TAPS
    member = tl.program_id(0) % members  # programs that run at the same time read neighbouring addresses
    first = tl.program_id(0) // members % SEGMENTS * SEGMENT
    last = tl.minimum(first + SEGMENT, OUT_HEIGHT)
    index = tl.program_id(0) // members // SEGMENTS * ROWS + tl.arange(0, ROWS)[:, None]
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
    y_at = (image * (OUT_HEIGHT * OUT_WIDTH) + out_column) * members * OUT + member * OUT + out
    stored = (image < images) & (out_column < OUT_WIDTH) & (out < OUT)
    sums = ()  # of output rows `row + PADDING - ky`
    for _ in tl.static_range(KERNEL):
        sums = sums + (tl.zeros([ROWS, GROUP * OUT_BLOCK], tl.float32),)
    k = tl.arange(0, IN_BLOCK)[None, :]
    x_column = column - PADDING + k // IN
    x_ptrs = x_ptr + (image * (HEIGHT * WIDTH) + x_column) * members * IN + member * IN + k % IN
    begin, end = tl.maximum(first - PADDING, 0), tl.minimum(last - PADDING + KERNEL - 1, HEIGHT)
    ahead = ()
    if PREFETCH:
        ahead = _load_row(x_ptrs, image < images, x_column, k, begin, members, IN, HEIGHT, WIDTH, TAPS, SLICES)
    for row in tl.range(begin, end, num_stages=STAGES):
        if PREFETCH:
            x = ahead
            ahead = _load_row(x_ptrs, image < images, x_column, k, row + 1, members, IN, HEIGHT, WIDTH, TAPS, SLICES)
        else:
            x = _load_row(x_ptrs, image < images, x_column, k, row, members, IN, HEIGHT, WIDTH, TAPS, SLICES)
        for s in tl.static_range(SLICES):
            added = ()
            for ky in tl.static_range(KERNEL):
                added = added + (tl.dot(x[s], weights[s * KERNEL + ky], sums[ky], input_precision="ieee"),)
            sums = added
        y_row = row + PADDING - KERNEL + 1
        y = (sums[KERNEL - 1] + 0.0).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + y_at + y_row * OUT_WIDTH * members * OUT, y, mask=stored & (y_row >= first) & (y_row < last))
        moved = (tl.zeros([ROWS, GROUP * OUT_BLOCK], tl.float32),)
        for ky in tl.static_range(KERNEL - 1):
            moved = moved + (sums[ky] + 0.0,)  # the pipeliner takes no running sum of another dot as it is
        sums = moved
    for ky in tl.static_range(1, KERNEL):  # output rows below the last input row
        y_row = end + PADDING - ky
        y = (sums[ky] + 0.0).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + y_at + y_row * OUT_WIDTH * members * OUT, y, mask=stored & (y_row >= first) & (y_row < last))


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
    x_ptrs, known, x_column, k, row, members,
    IN: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """Load a row's columns from `x_column` on as SLICES blocks (ROWS, TAPS * IN), zero outside the images."""
    known = known & (k < TAPS * IN) & (row < HEIGHT)
    blocks = ()
    for s in tl.static_range(SLICES):
        inside = known & (x_column + s * TAPS >= 0) & (x_column + s * TAPS < WIDTH)
        blocks = blocks + (tl.load(x_ptrs + (row * WIDTH + s * TAPS) * members * IN, mask=inside, other=0.0),)
    return blocks


@triton.jit
def _weight_gradient_kernel(
    dy_ptr, x_ptr, partial_ptr, members, images,
    IN: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr, KERNEL: tl.constexpr, PADDING: tl.constexpr, OUT_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr, STACKED: tl.constexpr, PRODUCTS: tl.constexpr, IN_BLOCK: tl.constexpr,
    POSITIONS: tl.constexpr, SEGMENT: tl.constexpr, BIG: tl.constexpr, PREFETCH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    X_BLOCKS: tl.constexpr = (KERNEL + COLUMNS - 1) // COLUMNS
    Y_BLOCKS: tl.constexpr = (KERNEL + STACKED * PRODUCTS - 1) // (STACKED * PRODUCTS)
    SEGMENTS: tl.constexpr = (HEIGHT + SEGMENT - 1) // SEGMENT
    member = tl.program_id(0) % members
    part = tl.program_id(0) // members
    first_kx, first_ky = part % X_BLOCKS * COLUMNS, part // X_BLOCKS % Y_BLOCKS * (STACKED * PRODUCTS)
    split = part // (X_BLOCKS * Y_BLOCKS)
    first = split % SEGMENTS * SEGMENT
    index = split // SEGMENTS * POSITIONS + tl.arange(0, POSITIONS)[:, None]
    image, column = index // OUT_WIDTH, index % OUT_WIDTH
    if BIG:
        image, split = image.to(tl.int64), split.to(tl.int64)
    k, n = tl.arange(0, IN_BLOCK)[None, :], tl.arange(0, STACKED * OUT_BLOCK)[None, :]
    x_column = column - PADDING + first_kx + k // IN
    x_ptrs = x_ptr + (image * (HEIGHT * WIDTH) + x_column) * members * IN + member * IN + k % IN
    x_known = (image < images) & (k < COLUMNS * IN) & (x_column >= 0) & (x_column < WIDTH)
    y_row = PADDING - first_ky - n // OUT_BLOCK  # to be added to the input's row
    dy_ptrs = dy_ptr + ((image * OUT_HEIGHT + y_row) * OUT_WIDTH + column) * members * OUT + member * OUT
    dy_ptrs += n % OUT_BLOCK
    dy_known = (image < images) & (n % OUT_BLOCK < OUT)
    sums = ()
    for _ in tl.static_range(PRODUCTS):
        sums = sums + (tl.zeros([IN_BLOCK, STACKED * OUT_BLOCK], tl.float32),)
    ahead = ()
    if PREFETCH:
        ahead = _load_pair(
            x_ptrs, dy_ptrs, x_known, dy_known, y_row, first, members,
            IN, HEIGHT, WIDTH, OUT, OUT_HEIGHT, OUT_WIDTH, STACKED, PRODUCTS,
        )  # fmt: skip
    for row in tl.range(first, tl.minimum(first + SEGMENT, HEIGHT), num_stages=STAGES):
        if PREFETCH:
            blocks = ahead
            ahead = _load_pair(
                x_ptrs, dy_ptrs, x_known, dy_known, y_row, row + 1, members,
                IN, HEIGHT, WIDTH, OUT, OUT_HEIGHT, OUT_WIDTH, STACKED, PRODUCTS,
            )  # fmt: skip
        else:
            blocks = _load_pair(
                x_ptrs, dy_ptrs, x_known, dy_known, y_row, row, members,
                IN, HEIGHT, WIDTH, OUT, OUT_HEIGHT, OUT_WIDTH, STACKED, PRODUCTS,
            )  # fmt: skip
        added = ()
        for j in tl.static_range(PRODUCTS):
            added = added + (tl.dot(blocks[0].trans(), blocks[1 + j], sums[j], input_precision="ieee"),)
        sums = added
    k = tl.arange(0, IN_BLOCK)[:, None]
    kx, out = first_kx + k // IN, n % OUT_BLOCK
    for j in tl.static_range(PRODUCTS):
        ky = first_ky + j * STACKED + n // OUT_BLOCK
        filter_at = (split * members + member) * OUT + out
        known = (k < COLUMNS * IN) & (kx < KERNEL) & (ky < KERNEL) & (out < OUT)
        tl.store(partial_ptr + ((filter_at * KERNEL + ky) * KERNEL + kx) * IN + k % IN, sums[j], mask=known)


@triton.jit
def _load_pair(
    x_ptrs, dy_ptrs, x_known, dy_known, y_row, row, members,
    IN: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr, STACKED: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Load a row of the input, and PRODUCTS times STACKED rows of the output's gradient that it took part in."""
    blocks = (tl.load(x_ptrs + row * WIDTH * members * IN, mask=x_known & (row < HEIGHT), other=0.0),)
    for j in tl.static_range(PRODUCTS):
        at = row - j * STACKED
        known = dy_known & (y_row + at >= 0) & (y_row + at < OUT_HEIGHT)
        blocks = blocks + (tl.load(dy_ptrs + at * OUT_WIDTH * members * OUT, mask=known, other=0.0),)
    return blocks


@triton.jit
def _add_kernel(total_ptr, partial_ptr, size, splits, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(splits):
        total += tl.load(partial_ptr + at, mask=at < size, other=0.0)
        partial_ptr += size
    tl.store(total_ptr + at, total.to(total_ptr.dtype.element_ty), mask=at < size)
