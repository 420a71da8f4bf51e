"""Statistics of each channel of images with channels last, which form a matrix: a row per pixel, a column per channel.

Stacked images (see :mod:`hullo.population.kernels.layouts`) form one matrix for each member. This module has the tiling
of such matrices, helpers that several kernels share, and the kernels that know nothing of activations: the mean and
variance of each column, and the totals of partial sums. No column depends on another, so members do not either. There
are no atomic additions, so every run gives the same bits.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor
from torch.autograd.graph import increment_version

from hullo.population.kernels import processors
from hullo.population.kernels.launch import launch, wait_for_previous
from hullo.population.kernels.layouts import all_channels, is_stacked


class Tile(NamedTuple):
    """Hold the settings of a kernel."""

    loads: int  # of 16 bytes that a thread makes per tile of a tensor
    warps: int
    programs: int  # of a multiprocessor
    columns: int = 128  # the most of a program


TILES = {
    "partial_statistics": Tile(8, 4, 6, 64),
    "apply": Tile(4, 4, 6),
    "backward_sums": Tile(1, 4, 4, 64),
    "backward_input": Tile(2, 4, 7),
}
"""The tiles of the kernel here and of those in :mod:`hullo.population.kernels.bn_act`. In bfloat16 and with three
bases, the registers of a multiprocessor of compute capability 9.0 suffice for all its programs."""


class Tiling(NamedTuple):
    """Describe how a kernel partitions images: into lanes of COLUMNS, whose `tiles` are shared by `splits` programs.

    Each of STACK matrices has CHANNELS columns and is ACROSS lanes wide.
    """

    pixels: int
    tiles: int
    splits: int
    constants: dict[str, Any]

    @classmethod
    def of(cls, x: Tensor, tile: Tile) -> Tiling:
        stack = len(x) if is_stacked(x) else 1
        channels, pixels = x.shape[-3], x.numel() // all_channels(x)
        widths = [columns for columns in (128, 64, 32) if columns <= tile.columns] + [16] * (channels <= 16)
        columns = min(widths, key=lambda columns: triton.cdiv(channels, columns) * columns)
        held = 32 * tile.warps * 16 // x.element_size() // columns  # rows that different threads hold
        rows, across = tile.loads * held, triton.cdiv(channels, columns)
        lanes = stack * across
        tiles = triton.cdiv(pixels, rows)
        most = max(1, tile.programs * processors(x) // lanes)
        splits = triton.cdiv(tiles, triton.cdiv(tiles, most))  # fewer, if that does not lengthen the longest program
        constants = {
            "STACK": stack,
            "CHANNELS": channels,
            "ACROSS": across,
            "ROWS": rows,
            "HELD": held,
            "COLUMNS": columns,
            "EVEN": pixels % rows == channels % columns == 0,
            "BIG": x.numel() >= 2**31,
            "num_warps": tile.warps,
        }
        return cls(pixels, tiles, splits, constants)

    @property
    def programs(self) -> int:
        return int(self.splits * self.constants["STACK"] * self.constants["ACROSS"])

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.pixels, self.tiles, self.splits


def compute_statistics(
    x: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    momentum: float,
    bias: Tensor | None,
    moments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of each column, and update the running ones in place.

    The running ones are updated as in PyTorch's batch norm: with the mean of x plus the bias, and with the unbiased
    variance. `moments` holds sums and sums of squares of each column over parts of x, (2, parts, channels); without
    them x is read.
    """
    tiling, channels = Tiling.of(x, TILES["partial_statistics"]), all_channels(x)
    partial = moments
    if partial is None:
        partial = torch.empty(3, tiling.splits, channels, dtype=torch.float32, device=x.device)
        launch(partial_statistics, tiling.programs, x, partial, *tiling.sizes, follows=False, **tiling.constants)
    mean, variance = torch.empty(2, channels, dtype=torch.float32, device=x.device)
    splits = partial.shape[1]
    parts, columns = _merge_shape(splits)
    launch(
        _merge_statistics, triton.cdiv(channels, columns), partial, mean, variance, running_mean, running_variance,
        bias, momentum, tiling.pixels, tiling.tiles, splits, follows=True, CHANNELS=channels,
        ROWS=tiling.constants["ROWS"], PARTS=parts, COLUMNS=columns, BIAS=bias is not None, SUMS=moments is not None,
    )  # fmt: skip
    increment_version((running_mean, running_variance))
    return mean, variance


class PartialSums(NamedTuple):
    """Hold the sums of each program of a backward pass, one after the other in memory: `by_column` sums of each column,
    (by_column, splits, channels), then those of dy * y for each base, (bases, splits, channels // each)."""

    data: Tensor
    splits: int
    channels: int
    by_column: int
    bases: int
    each: int

    @classmethod
    def empty(cls, x: Tensor, splits: int, by_column: int, bases: int, each: int) -> PartialSums:
        """Allocate memory for `splits` programs; `each` neighboring columns share coefficients, and have one sum."""
        channels = all_channels(x)
        size = splits * (by_column * channels + bases * channels // each)
        data = torch.empty(size, dtype=torch.float32, device=x.device)
        return cls(data, splits, channels, by_column, bases, each)

    def add_up(
        self, drows: Tensor | None, *, dtype: torch.dtype = torch.float32, zeros: Tensor | None = None
    ) -> Tensor:
        """Return the totals of the columns, (by_column, channels).

        The same launch writes those of each base and group of columns to `drows`, and sets `zeros`, (channels,), to
        zero.
        """
        sums = torch.empty(self.by_column, self.channels, dtype=dtype, device=self.data.device)
        rows = 0 if drows is None else drows.numel()
        group = self.channels // self.each * self.bases // max(1, rows)
        parts, columns = _merge_shape(self.splits)
        programs = self.by_column * triton.cdiv(self.channels, columns) + rows
        if programs:
            launch(
                _add_partial_sums, programs, self.data, sums, drows, zeros, self.splits, follows=True,
                CHANNELS=self.channels, BY_COLUMN=self.by_column, BASES=self.bases, EACH=self.each, GROUP=group,
                ZEROS=zeros is not None, PARTS=parts, COLUMNS=columns,
                BLOCK=min(1024, triton.next_power_of_2(self.splits * max(1, group))),
            )  # fmt: skip
        return sums


def shared_columns(x: Tensor, rows: Tensor) -> dict[str, int]:
    """Return how many columns have one row of coefficients, and how many of those a thread loads at once."""
    group = all_channels(x) // (len(rows) if rows.dim() == 2 else 1)
    each = 16 // x.element_size()
    return {"GROUP": group, "EACH": 1 if group % each or x.shape[-3] % each else each}


def _merge_shape(splits: int) -> tuple[int, int]:
    """Return how many partial results of how many columns a program that merges them loads at once."""
    parts = min(256, int(triton.next_power_of_2(splits)))
    return parts, max(8, min(32, 2048 // parts))


# Shared by several kernels.


@triton.jit
def assign_lane(STACK: tl.constexpr, ACROSS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return what a program works on: one of the STACK matrices, its first column there, and its number in the lane."""
    lane = tl.program_id(0) % (STACK * ACROSS)
    matrix = lane // ACROSS if STACK > 1 else tl.full([], 0, tl.int32)
    return matrix, lane % ACROSS * COLUMNS, tl.program_id(0) // (STACK * ACROSS)


@triton.jit
def locate(
    tile, matrix, column, pixels, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
    BIG: tl.constexpr,
):  # fmt: skip
    """Return the offset of a tile, the offsets of its entries from there, and which of them exist."""
    if BIG:
        tile, matrix = tile.to(tl.int64), matrix.to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    inside = tl.full([ROWS, COLUMNS], True, tl.int1) if EVEN else (tile * ROWS + row < pixels) & (column < CHANNELS)
    return (matrix * pixels + tile * ROWS) * CHANNELS, row * CHANNELS + column, inside


@triton.jit
def center(x, level, inside, EVEN: tl.constexpr):
    """Return x minus the level of each column; zero for entries that do not exist."""
    return x - level if EVEN else tl.where(inside, x - level, 0.0)


@triton.jit
def fold(tile, HELD: tl.constexpr):
    """Add the rows of a tile up to HELD rows; all summands are in one thread, so that nothing is exchanged."""
    if tile.shape[0] == HELD:
        return tile
    return tl.sum(tl.reshape(tile, [tile.shape[0] // HELD, HELD, tile.shape[1]]), axis=0)


@triton.jit
def spread(numbers, EACH: tl.constexpr):
    """Return a row with each number repeated EACH times; a thread has neighboring columns and holds it once."""
    copies = tl.broadcast_to(numbers[:, :, None], [1, numbers.shape[1], EACH])
    return tl.reshape(copies, [1, numbers.shape[1] * EACH])


@triton.jit
def count_rows(split, pixels, tiles, splits, ROWS: tl.constexpr):
    """Return how many rows the tiles of a program have; the last tile may be incomplete."""
    missing = tl.where((tiles - 1 - split) % splits == 0, tiles * ROWS - pixels, 0)
    return (tiles - 1 - split + splits) // splits * ROWS - missing


@triton.jit
def partial_statistics(
    x_ptr, partial_ptr, pixels, tiles, splits, STACK: tl.constexpr, CHANNELS: tl.constexpr, ACROSS: tl.constexpr,
    ROWS: tl.constexpr, HELD: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr, BIG: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Store a program's first row, the mean of its rows minus the first, and the squared deviations from their mean.

    Sums are those of differences from the first row. With n rows it differs from their mean by sqrt(n) standard
    deviations at most, so that the squares lose n roundings at most, however far the mean is from zero.
    """
    wait_for_previous(EARLY)
    matrix, first_column, split = assign_lane(STACK, ACROSS, COLUMNS)
    column = first_column + tl.arange(0, COLUMNS)[None, :]
    known = column < CHANNELS
    start, _, _ = locate(split, matrix, column, pixels, CHANNELS, ROWS, COLUMNS, EVEN, BIG)
    first = tl.load(x_ptr + start + column, mask=known, other=0.0).to(tl.float32)
    sums = tl.zeros([HELD, COLUMNS], tl.float32)
    squares = tl.zeros([HELD, COLUMNS], tl.float32)
    for tile in range(split, tiles, splits):
        start, at, inside = locate(tile, matrix, column, pixels, CHANNELS, ROWS, COLUMNS, EVEN, BIG)
        x = center(tl.load(x_ptr + start + at, mask=inside, other=0.0).to(tl.float32), first, inside, EVEN)
        sums += fold(x, HELD)
        squares += fold(x * x, HELD)
    total = tl.sum(sums, axis=0)[None, :]
    mean = total / count_rows(split, pixels, tiles, splits, ROWS)
    to = partial_ptr + (split * STACK + matrix) * CHANNELS + column
    size = splits * (STACK * CHANNELS)
    tl.store(to, first, mask=known)
    tl.store(to + size, mean, mask=known)
    tl.store(to + 2 * size, tl.sum(squares, axis=0)[None, :] - total * mean, mask=known)


@triton.jit
def _merge_statistics(
    partial_ptr, mean_ptr, variance_ptr, running_mean_ptr, running_variance_ptr, bias_ptr, momentum,
    pixels, tiles, splits, CHANNELS: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
    BIAS: tl.constexpr, SUMS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Merge the statistics of all programs, or SUMS, in float64, where the squares of float32 numbers are exact."""
    wait_for_previous(EARLY)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    known = column < CHANNELS
    sums = tl.zeros([PARTS, COLUMNS], tl.float64)
    squares = tl.zeros([PARTS, COLUMNS], tl.float64)
    for part in range(0, splits, PARTS):
        split = part + tl.arange(0, PARTS)[:, None]
        at, inside = partial_ptr + split * CHANNELS + column, (split < splits) & known
        mean = tl.load(at, mask=inside, other=0.0).to(tl.float64)
        if SUMS:
            sums += mean
            squares += tl.load(at + splits * CHANNELS, mask=inside, other=0.0)
        else:
            mean += tl.load(at + splits * CHANNELS, mask=inside, other=0.0)
            around = tl.load(at + 2 * splits * CHANNELS, mask=inside, other=0.0)
            total = mean * count_rows(split, pixels, tiles, splits, ROWS)
            sums += total
            squares += around + total * mean
    mean = tl.sum(sums, axis=0)[None, :] / pixels
    around = tl.sum(squares, axis=0)[None, :] - mean * mean * pixels
    around = tl.maximum(around, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(mean_ptr + column, mean.to(tl.float32), mask=known)
    tl.store(variance_ptr + column, (around / pixels).to(tl.float32), mask=known)
    if BIAS:
        mean += tl.load(bias_ptr + column, mask=known, other=0.0).to(tl.float32)
    _update_running(running_mean_ptr + column, mean, momentum, known)
    _update_running(running_variance_ptr + column, around / (pixels - 1), momentum, known)


@triton.jit
def _update_running(running_ptr, new, momentum, known):
    old = tl.load(running_ptr, mask=known, other=0.0).to(tl.float32)
    running = old * (1 - momentum) + new.to(tl.float32) * momentum
    tl.store(running_ptr, running.to(running_ptr.dtype.element_ty), mask=known)


@triton.jit
def _add_partial_sums(
    partial_ptr, sums_ptr, rows_ptr, zeros_ptr, splits, CHANNELS: tl.constexpr,
    BY_COLUMN: tl.constexpr, BASES: tl.constexpr, EACH: tl.constexpr, GROUP: tl.constexpr,
    ZEROS: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Add up one of the sums for COLUMNS columns or, in the later programs, the sum of a base for a group."""
    wait_for_previous(EARLY)
    first: tl.constexpr = BY_COLUMN * ((CHANNELS + COLUMNS - 1) // COLUMNS)
    program = tl.program_id(0)
    if program < first:
        which = program % BY_COLUMN
        column = program // BY_COLUMN * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        known = column < CHANNELS
        sums = tl.zeros([PARTS, COLUMNS], tl.float64)
        for part in range(0, splits, PARTS):
            split = part + tl.arange(0, PARTS)[:, None]
            at = (which * splits + split) * CHANNELS + column
            sums += tl.load(partial_ptr + at, mask=(split < splits) & known, other=0.0)
        total = tl.sum(sums, axis=0)[None, :].to(tl.float32)
        tl.store(sums_ptr + which * CHANNELS + column, total.to(sums_ptr.dtype.element_ty), mask=known)
        if ZEROS:
            nothing = tl.zeros([1, COLUMNS], zeros_ptr.dtype.element_ty)
            tl.store(zeros_ptr + column, nothing, mask=known & (which == 0))
    elif BASES > 0:
        base = (program - first) % BASES
        row = (program - first) // BASES
        start = partial_ptr + splits * (BY_COLUMN * CHANNELS + base * (CHANNELS // EACH)) + row * GROUP
        totals = tl.zeros([BLOCK], tl.float64)
        for block in range(0, splits * GROUP, BLOCK):
            index = block + tl.arange(0, BLOCK)
            at = index // GROUP * (CHANNELS // EACH) + index % GROUP
            totals += tl.load(start + at, mask=index < splits * GROUP, other=0.0)
        tl.store(rows_ptr + row * BASES + base, tl.sum(totals).to(rows_ptr.dtype.element_ty))
