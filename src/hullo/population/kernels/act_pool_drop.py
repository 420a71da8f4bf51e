"""Compute activation, pooling and dropout of a population in one pass forward and one backward.

    y = drop(max_pool2d(combine(x + bias, rows, bases), 2))

for images with channels last. Only x is kept. The backward pass computes the activations of each 2 x 2 window again,
finds the maximum as PyTorch does (the first of equals; NaN wins), and writes each entry of the gradient once. Windows
are the rows of a matrix whose columns are the channels of all members; a program takes COLUMNS of these, ROWS windows
at a time. It keeps the sums for the gradients of coefficients and bias in registers, and
:class:`hullo.population.kernels.channel_stats.PartialSums` adds up those of all programs, so every run gives the same
bits.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from hullo.bases import Base
from hullo.kernels.codegen import fill
from hullo.population.kernels import processors
from hullo.population.kernels.channel_stats import PartialSums, fold, shared_columns, spread
from hullo.population.kernels.dropout import NO_DROPOUT, Dropout, keep_columns, open_columns
from hullo.population.kernels.kinds import Kind, Kinds, all_alike, build_branches, choose_kernels, hull_parts
from hullo.population.kernels.launch import launch, once_differentiable, wait_for_previous

TILES, WARPS = {2: 1024, 4: 512}, 4
"""By the bytes of an entry: how many windows and channels a tile has, one times the other; the warps of a program.
These are 16 bytes a thread from each of the four corners."""
COLUMNS, PROGRAMS = (128, 64, 32), 8
"""The numbers of channels that a program may have; the programs of a multiprocessor."""


def _widths(channels: int) -> list[int]:
    """Return the numbers of channels of a program that divide those of a member."""
    return [columns for columns in COLUMNS if channels % columns == 0]


def combine_pool_drop(
    x: Tensor,
    rows: Tensor,
    bases: Iterable[Base],
    dropout: Dropout,
    *,
    bias: Tensor | None = None,
    flat: bool = False,
    kinds: Kinds | None = None,
) -> Tensor:
    """Return images (B, channels, H, W) after activation, 2 x 2 max pooling and dropout.

    Args:
        x: the output of a convolution; it is copied if channels are not last.
        rows: coefficients, N for all channels or one row for each of equally many of them.
        bases: the N base functions; each has a formula.
        dropout: which entries are kept; the rate is zero unless members have multiples of four channels.
        bias: of each channel, added to x.
        flat: whether the result is (members, B, height * width * channels), with channels last.
        kinds: which bases each member uses, if they differ. Coefficients of others are zero, so programs whose channels
            belong to several members compute all bases.
    """
    if kinds is not None and not _widths(x.shape[1] // len(dropout.seeds)):
        kinds = None
    call = _Call(tuple(bases), flat, dropout, kinds)
    pooled: Tensor = _CombinePoolDrop.apply(x, rows, bias, call)
    return pooled


class _Call(NamedTuple):
    """Hold the arguments of a call that need no gradient."""

    bases: tuple[Base, ...]
    flat: bool
    dropout: Dropout
    kinds: Kinds | None

    def constants(self, x: Tensor, rows: Tensor, bias: Tensor | None) -> dict[str, Any]:
        """Return the constants of the kernels."""
        _, channels, height, width = x.shape
        own = channels // len(self.dropout.seeds)
        widths = COLUMNS if self.kinds is None else _widths(own)  # then each program has channels of one member
        columns = min(widths, key=lambda columns: triton.cdiv(channels, columns) * columns)
        return (self.dropout.constants() if self.dropout.rate else NO_DROPOUT) | {
            "HEIGHT": height,
            "WIDTH": width,
            "CHANNELS": channels,
            "OWN": own,
            **shared_columns(x, rows),
            "BIAS": bias is not None,
            "DROP": bool(self.dropout.rate),
            "FLAT": self.flat,
            "LANES": triton.cdiv(channels, columns),
            "ROWS": TILES[x.itemsize] // columns,
            "COLUMNS": columns,
            "BIG": x.numel() >= 2**31,
            "num_warps": WARPS,
        }

    def start(self, x: Tensor) -> int:
        """Return how many entries of a member come before these images."""
        return self.dropout.first * (x.shape[1] // len(self.dropout.seeds)) * (x.shape[2] // 2) * (x.shape[3] // 2)


class _CombinePoolDrop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, bias: Tensor | None, call: _Call) -> Tensor:
        x, rows = x.contiguous(memory_format=torch.channels_last), rows.contiguous()
        seeds, steps, *_ = call.dropout
        ctx.save_for_backward(x, rows, bias, seeds, steps)
        ctx.call = call
        batch, channels, height, width = x.shape
        y = torch.empty(batch, height // 2, width // 2, channels, dtype=x.dtype, device=x.device)
        windows = batch * (height // 2) * (width // 2)
        constants = call.constants(x, rows, bias)
        tiles, splits = _share(windows, constants, x)
        kernels, kinds = choose_kernels(_kernels, call.bases, x.dtype, call.kinds)
        kernels["forward"][(splits * constants["LANES"],)](
            *kinds, x, bias, rows, seeds, steps, y, windows, call.start(x), tiles, splits, **constants
        )
        return y.view(len(seeds), batch, -1) if call.flat else y.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, rows, bias, seeds, steps = ctx.saved_tensors
        call: _Call = ctx.call
        batch, _, height, width = x.shape
        gradient = gradient.contiguous(memory_format=torch.contiguous_format if call.flat else torch.channels_last)
        windows = batch * triton.cdiv(height, 2) * triton.cdiv(width, 2)
        constants = call.constants(x, rows, bias)
        tiles, splits = _share(windows, constants, x)
        learned = ctx.needs_input_grad[1]
        bases = len(call.bases) if learned else 0
        partial = PartialSums.empty(x, splits, int(bias is not None), bases, constants["EACH"])
        dx, drows = torch.empty_like(x), torch.empty_like(rows) if learned else None
        kernels, kinds = choose_kernels(_kernels, call.bases, x.dtype, call.kinds)
        launch(
            kernels["backward"], splits * constants["LANES"], *kinds, gradient, x, bias, rows, seeds, steps, dx,
            partial.data, windows, call.start(x), tiles, splits, follows=False, LEARNED=learned, **constants,
        )  # fmt: skip
        sums = partial.add_up(drows, dtype=torch.float32 if bias is None else bias.dtype)
        return dx, drows, None if bias is None else sums[0], None


def _share(windows: int, constants: dict[str, Any], x: Tensor) -> tuple[int, int]:
    """Return how many tiles a lane of columns has, and how many programs share them."""
    tiles = triton.cdiv(windows, constants["ROWS"])
    return tiles, min(tiles, max(1, PROGRAMS * processors(x) // constants["LANES"]))


@functools.cache
def _kernels(bases: tuple[Base, ...], dtype: torch.dtype, kinds: tuple[Kind, ...] = ()) -> dict[str, Any]:
    """Return the kernels `forward` and `backward` of a set of bases."""
    texts = [fill(_TEMPLATE, _parts(bases, kind)) for kind in kinds or all_alike(bases)]
    label = f"pooled({','.join(base.name for base in bases)}) {kinds} on {dtype}"
    member = "tl.program_id(0) % LANES * COLUMNS // OWN"
    helpers = (open_columns, keep_columns, fold, spread, wait_for_previous)
    return build_branches(texts, label, dtype, member, *helpers)


def _parts(bases: tuple[Base, ...], kind: Kind) -> dict[str, list[str]]:
    """Return the parts of the kernels for members of a kind."""
    c = ", ".join(f"c{i}" for i in range(len(kind[0])))
    return hull_parts(bases, kind, "ROWS", "splits * (CHANNELS // EACH)") | {
        "DEFINE": [f"def combined(x, {c}):"],
        "COLUMNS": _COLUMNS.strip().splitlines(),
        "WINDOWS": _WINDOWS.strip().splitlines() + [f"a{q} = combined(x{q}, {c})" for q in range(4)],
    }


_TEMPLATE = """
@triton.jit
$DEFINE
    $VALUES
    $COMBINED
    return y


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def wins(later, earlier):
    return (later > earlier) | (later != later)


@triton.jit
def forward(
    x_ptr, bias_ptr, rows_ptr, seeds, steps, y_ptr, windows, start, tiles, splits,
    PURPOSE: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, OWN: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
    FLAT: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BIG: tl.constexpr, EACH: tl.constexpr,
):
    DOWN: tl.constexpr = HEIGHT // 2
    ACROSS: tl.constexpr = WIDTH // 2
    $COLUMNS
    $COEFFICIENTS
    for tile in range(tl.program_id(0) // LANES, tiles, splits):
        $WINDOWS
        y = larger(larger(a0, a1), larger(a2, a3))
        if DROP:
            kept = keep_columns(keys, start + window * OWN, lane * COLUMNS, LEAST, OWN, ROWS, COLUMNS)
            y = y * kept * SCALE
        tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward(
    dy_ptr, x_ptr, bias_ptr, rows_ptr, seeds, steps, dx_ptr, partial_ptr, windows, start, tiles, splits,
    PURPOSE: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, OWN: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
    FLAT: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BIG: tl.constexpr, EACH: tl.constexpr, LEARNED: tl.constexpr, EARLY: tl.constexpr,
):
    DOWN: tl.constexpr = (HEIGHT + 1) // 2
    ACROSS: tl.constexpr = (WIDTH + 1) // 2
    wait_for_previous(EARLY)
    $COLUMNS
    $COEFFICIENTS
    split = tl.program_id(0) // LANES
    $ZERO
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(split, tiles, splits):
        $WINDOWS
        dy = tl.load(dy_ptr + place, mask=whole, other=0.0).to(tl.float32)
        right_above, right_below = wins(a1, a0), wins(a3, a2)
        below = wins(tl.where(right_below, a3, a2), tl.where(right_above, a1, a0))
        x = tl.where(below, tl.where(right_below, x3, x2), tl.where(right_above, x1, x0))
        if DROP:
            dy *= keep_columns(keys, start + pooled * OWN, lane * COLUMNS, LEAST, OWN, ROWS, COLUMNS) * SCALE
        $VALUES
        $SLOPES
        $SLOPE
        dx = dy * slope
        if LEARNED:
            $ADD
        if BIAS:
            total += dx
        has_right = inside & (2 * j + 1 < WIDTH)
        has_below = inside & (2 * i + 1 < HEIGHT)
        dx = dx.to(dx_ptr.dtype.element_ty)
        nothing = tl.zeros_like(dx)
        above, dx = tl.where(below, nothing, dx), tl.where(below, dx, nothing)
        tl.store(dx_ptr + at, tl.where(right_above, nothing, above), mask=inside)
        tl.store(dx_ptr + at + CHANNELS, tl.where(right_above, above, nothing), mask=has_right)
        at += WIDTH * CHANNELS
        tl.store(dx_ptr + at, tl.where(right_below, nothing, dx), mask=has_below)
        tl.store(dx_ptr + at + CHANNELS, tl.where(right_below, dx, nothing), mask=has_right & has_below)
    if BIAS:
        tl.store(partial_ptr + split * CHANNELS + column, tl.sum(total, axis=0)[None, :], mask=known)
    if LEARNED:
        to = partial_ptr + (BIAS * splits * EACH + split) * (CHANNELS // EACH) + some // EACH
        $STORE
"""

# Done once per program: its columns and their numbers.
_COLUMNS = """
lane = tl.program_id(0) % LANES
column = lane * COLUMNS + tl.arange(0, COLUMNS)[None, :]
known = column < CHANNELS
some = lane * COLUMNS + EACH * tl.arange(0, COLUMNS // EACH)[None, :]
group = tl.where(some < CHANNELS, some, 0) // GROUP
if DROP:
    keys = open_columns(seeds, steps, lane * COLUMNS, PURPOSE, CHANNELS, OWN, COLUMNS)
if BIAS:
    bias = tl.load(bias_ptr + column, mask=known, other=0.0).to(tl.float32)
"""

# Done for each tile: its windows, DOWN x ACROSS of an image, their places and their entries. In the backward pass,
# windows may reach over the edge; those have no place in the pooled images.
_WINDOWS = """
window = tile * ROWS + tl.arange(0, ROWS)[:, None]
if BIG:
    window = window.to(tl.int64)
b = window // (DOWN * ACROSS)
i = window // ACROSS % DOWN
j = window % ACROSS
inside = known & (window < windows)
whole = inside & (i < HEIGHT // 2) & (j < WIDTH // 2)
pooled = (b * (HEIGHT // 2) + i) * (WIDTH // 2) + j
if FLAT:
    member = (column // OWN).to(window.dtype)
    places = windows // (DOWN * ACROSS) * (HEIGHT // 2 * (WIDTH // 2))
    place = (member * places + pooled) * OWN + column % OWN
else:
    place = pooled * CHANNELS + column
at = ((b * HEIGHT + 2 * i) * WIDTH + 2 * j) * CHANNELS + column
x0 = tl.load(x_ptr + at, mask=whole, other=0.0).to(tl.float32)
x1 = tl.load(x_ptr + at + CHANNELS, mask=whole, other=0.0).to(tl.float32)
x2 = tl.load(x_ptr + at + WIDTH * CHANNELS, mask=whole, other=0.0).to(tl.float32)
x3 = tl.load(x_ptr + at + (WIDTH + 1) * CHANNELS, mask=whole, other=0.0).to(tl.float32)
if BIAS:
    x0 += bias
    x1 += bias
    x2 += bias
    x3 += bias
"""
