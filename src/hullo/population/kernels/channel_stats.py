"""Treat images with channels last as a matrix: a row per pixel of each image, a column per channel.

Here is how kernels cut such a matrix up, what they have in common, and two that know nothing of activations: the
statistics of each column, and the sums of what programs leave behind. No column sees another, so that members never do;
nothing is added atomically, so that every run gives the same bits.
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

from hullo.kernels import device_math
from hullo.kernels.triton import INTERPRETED


class Tile(NamedTuple):
    """Say what suits a kernel: how often a thread reads 16 bytes of a tensor at a time, the warps of a program, and how
    many programs a multiprocessor has."""

    times: int
    warps: int
    programs: int


TILES = {"measure": Tile(4, 4, 8), "apply": Tile(2, 4, 8), "collect": Tile(2, 4, 4), "pull": Tile(2, 4, 8)}
"""Of the kernel here and of those in :mod:`hullo.population.kernels.bn_act`: in bfloat16 and with three bases, all
programs of a multiprocessor of compute capability 9.0 find registers at once."""

NARROW = 32
"""Columns of a program where little is read."""


class Cut(NamedTuple):
    """Say how a kernel partitions images: into lanes of COLUMNS, each of `tiles` that `splits` programs share."""

    pixels: int
    tiles: int
    splits: int
    constants: dict[str, Any]

    @classmethod
    def of(cls, x: Tensor, tile: Tile) -> Cut:
        channels, pixels = x.shape[1], x.numel() // x.shape[1]
        columns = min((128, 64, 32), key=lambda columns: triton.cdiv(channels, columns) * columns)
        held = 32 * tile.warps * 16 // x.element_size() // columns  # rows that are in different threads
        rows, lanes = tile.times * held, triton.cdiv(channels, columns)
        tiles = triton.cdiv(pixels, rows)
        processors = 4 if INTERPRETED else torch.cuda.get_device_properties(x.device).multi_processor_count
        most = max(1, tile.programs * processors // lanes)
        splits = triton.cdiv(tiles, triton.cdiv(tiles, most))  # fewer, where that keeps no one waiting longer
        constants = {
            "CHANNELS": channels,
            "LANES": lanes,
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
        return int(self.splits * self.constants["LANES"])

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.pixels, self.tiles, self.splits


def launch(kernel: Any, programs: int, *arguments: Any, follows: bool, **constants: Any) -> None:
    """Launch a kernel on tensors and numbers. One that `follows` another of these, with nothing in between, is sent off
    while that one still runs, and waits for its end: that saves most of a launch."""
    device = arguments[0].device
    early = device_math.HARDWARE.value and torch.cuda.get_device_capability(device) >= (9, 0)
    options = {"launch_pdl": True} if early and follows else {}
    with torch.cuda.device_of(arguments[0]):
        kernel[(programs,)](*arguments, **constants, EARLY=early, **options)


def take_statistics(
    x: Tensor, running_mean: Tensor, running_variance: Tensor, momentum: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of each column.

    The running ones take up a share of `momentum` of the new, in place, as in PyTorch's batch norm: of the mean of x
    and the bias, and of the unbiased variance.
    """
    cut, channels = Cut.of(x, TILES["measure"]), x.shape[1]
    partial = torch.empty(3, cut.splits, channels, dtype=torch.float32, device=x.device)
    mean, variance = torch.empty(2, channels, dtype=torch.float32, device=x.device)
    launch(_measure, cut.programs, x, partial, *cut.sizes, follows=False, **cut.constants)
    launch(
        _settle, triton.cdiv(channels, NARROW), partial, mean, variance, running_mean, running_variance,
        mean if bias is None else bias, momentum, *cut.sizes, follows=True,
        CHANNELS=channels, ROWS=cut.constants["ROWS"], PARTS=_parts(cut.splits), COLUMNS=NARROW, BIAS=bias is not None,
    )  # fmt: skip
    increment_version((running_mean, running_variance))
    return mean, variance


def add_moments(partial: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Return the sums (2, channels) over programs of (2, splits, channels), of ds and of ds * (x - mean) / deviation.

    The second comes without its deviation, sqrt(variance + eps).
    """
    _, splits, channels = partial.shape
    sums = torch.empty(2, channels, dtype=torch.float32, device=partial.device)
    launch(
        _add, 2 * triton.cdiv(channels, NARROW), partial, variance, sums, eps, splits, follows=True,
        CHANNELS=channels, PARTS=_parts(splits), COLUMNS=NARROW,
    )  # fmt: skip
    return sums


def _parts(splits: int) -> int:
    return min(128, int(triton.next_power_of_2(splits)))


# Shared by several kernels.


@triton.jit
def begin(EARLY: tl.constexpr):
    """Wait for the kernel before; from here on the next may be sent off."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def place(
    tile, column, pixels, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
    BIG: tl.constexpr,
):  # fmt: skip
    """Return where a tile starts, the offsets of its entries from there, and which of them exist."""
    if BIG:
        tile = tile.to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    inside = tl.full([ROWS, COLUMNS], True, tl.int1) if EVEN else (tile * ROWS + row < pixels) & (column < CHANNELS)
    return tile * (ROWS * CHANNELS), row * CHANNELS + column, inside


@triton.jit
def centre(x_ptr, start, at, inside, level, EVEN: tl.constexpr):
    """Return the entries of a tile less the levels of their columns; zero where there are none."""
    x = tl.load(x_ptr + start + at, mask=inside, other=0.0).to(tl.float32) - level
    if not EVEN:
        x = tl.where(inside, x, 0.0)
    return x


@triton.jit
def fold(tile, HELD: tl.constexpr):
    """Add a tile's rows up to HELD rows, those that one thread holds, so that nothing moves between threads."""
    return tl.sum(tl.reshape(tile, [tile.shape[0] // HELD, HELD, tile.shape[1]]), axis=0)


@triton.jit
def count_rows(split, pixels, tiles, splits, ROWS: tl.constexpr):
    """Return how many rows the tiles of a program have; the very last tile may be cut short."""
    missing = tl.where((tiles - 1 - split) % splits == 0, tiles * ROWS - pixels, 0)
    return (tiles - 1 - split + splits) // splits * ROWS - missing


@triton.jit
def _measure(
    x_ptr, partial_ptr, pixels, tiles, splits, CHANNELS: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr, BIG: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Store the first row of each program, the mean of its rows less the first, and the squares around their mean.

    Sums are those of differences from the first. With n rows that is off their mean by sqrt(n) deviations at the most,
    so that squares lose n roundings at the most, however far the mean is from zero.
    """
    begin(EARLY)
    split = tl.program_id(0) // LANES
    column = tl.program_id(0) % LANES * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    known = column < CHANNELS
    start, _, _ = place(split, column, pixels, CHANNELS, ROWS, COLUMNS, EVEN, BIG)
    first = tl.load(x_ptr + start + column, mask=known, other=0.0).to(tl.float32)
    sums = tl.zeros([HELD, COLUMNS], tl.float32)
    squares = tl.zeros([HELD, COLUMNS], tl.float32)
    for tile in range(split, tiles, splits):
        start, at, inside = place(tile, column, pixels, CHANNELS, ROWS, COLUMNS, EVEN, BIG)
        x = centre(x_ptr, start, at, inside, first, EVEN)
        sums += fold(x, HELD)
        squares += fold(x * x, HELD)
    total = tl.sum(sums, axis=0)[None, :]
    mean = total / count_rows(split, pixels, tiles, splits, ROWS)
    to = partial_ptr + split * CHANNELS + column
    tl.store(to, first, mask=known)
    tl.store(to + splits * CHANNELS, mean, mask=known)
    tl.store(to + 2 * splits * CHANNELS, tl.sum(squares, axis=0)[None, :] - total * mean, mask=known)


@triton.jit
def _settle(
    partial_ptr, mean_ptr, variance_ptr, running_mean_ptr, running_variance_ptr, bias_ptr, momentum,
    pixels, tiles, splits, CHANNELS: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
    BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Merge the statistics of all programs in float64, where the squares of float32 numbers are exact."""
    begin(EARLY)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    known = column < CHANNELS
    sums = tl.zeros([PARTS, COLUMNS], tl.float64)
    squares = tl.zeros([PARTS, COLUMNS], tl.float64)
    for part in range(0, splits, PARTS):
        split = part + tl.arange(0, PARTS)[:, None]
        at, inside = partial_ptr + split * CHANNELS + column, (split < splits) & known
        mean = tl.load(at, mask=inside, other=0.0).to(tl.float64)
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
    _take_up(running_mean_ptr + column, mean, momentum, known)
    _take_up(running_variance_ptr + column, around / (pixels - 1), momentum, known)


@triton.jit
def _take_up(running_ptr, new, momentum, known):
    old = tl.load(running_ptr, mask=known, other=0.0).to(tl.float32)
    running = old * (1 - momentum) + new.to(tl.float32) * momentum
    tl.store(running_ptr, running.to(running_ptr.dtype.element_ty), mask=known)


@triton.jit
def _add(
    partial_ptr, variance_ptr, sums_ptr, eps, splits, CHANNELS: tl.constexpr, PARTS: tl.constexpr,
    COLUMNS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    which = tl.program_id(0) % 2
    column = tl.program_id(0) // 2 * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    known = column < CHANNELS
    sums = tl.zeros([PARTS, COLUMNS], tl.float64)
    for part in range(0, splits, PARTS):
        split = part + tl.arange(0, PARTS)[:, None]
        at = (which * splits + split) * CHANNELS + column
        sums += tl.load(partial_ptr + at, mask=(split < splits) & known, other=0.0)
    variance = tl.load(variance_ptr + column, mask=known, other=1.0).to(tl.float32)
    total = tl.sum(sums, axis=0)[None, :].to(tl.float32) * tl.where(which == 1, tl.rsqrt(variance + eps), 1.0)
    tl.store(sums_ptr + which * CHANNELS + column, total, mask=known)
