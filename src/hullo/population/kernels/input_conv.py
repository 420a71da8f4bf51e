"""Compute a population's first convolution from the bytes of the data set, or from images in any type.

Each member trains on its own images, those of a data set flipped and shifted in their own way (see
:mod:`hullo.population.images`, whose `move` and `scale` are the plain form). With one or three channels per member, a
first convolution moves far more memory than it computes, so augmented images are never written, and others neither
rounded nor reordered beforehand: a program gathers the pixels of its windows and multiplies them with one member's
weights, and gathers them again in the backward pass.

A row of the matrix product is GROUP neighboring output columns, whose windows share most of their pixels: pixels are
gathered once for the group, and the weights are a band matrix. The gradients of a band's copies are added up.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806 (constants are in capitals, in Triton)
from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.kernels.device_math import widen
from hullo.population.kernels import processors
from hullo.population.kernels.launch import once_differentiable
from hullo.population.kernels.layouts import block, channels_last, locate_member
from hullo.population.kernels.row_conv import fold, is_tuned_for


class Tile(NamedTuple):
    """Hold the settings of a kernel: output columns in a row of the product, rows, warps, programs per processor."""

    group: int
    rows: int
    warps: int
    programs: int


Layer = tuple[bool, int, int, int]  # whether images are moved, channels, side, outputs

FORWARD: dict[Layer, Tile] = {
    (True, 3, 3, 16): Tile(4, 128, 4, 8),
    (True, 3, 3, 32): Tile(2, 128, 4, 8),
    (True, 3, 5, 20): Tile(4, 64, 4, 8),
    (False, 3, 3, 16): Tile(4, 64, 4, 12),
    (False, 3, 5, 20): Tile(4, 64, 4, 3),
}
BACKWARD: dict[Layer, Tile] = {
    (True, 3, 3, 16): Tile(4, 128, 4, 4),
    (True, 3, 3, 32): Tile(2, 128, 4, 4),
    (True, 3, 5, 20): Tile(4, 64, 4, 2),
    (False, 3, 3, 16): Tile(4, 128, 8, 4),
    (False, 3, 5, 20): Tile(4, 64, 4, 2),
}
DEFAULT = Tile(1, 128, 4, 8)
"""The fastest settings on an H200 for the first layers of the paper's networks, each checked there against float32; for
some others Triton 3.6 made code with wrong results, so what was not checked takes the default."""

LEAST_STACKED, MOST_STACKED = 16, 32
"""The numbers of outputs per member of first convolutions that may stack them."""
MOST_INNER, MOST_OUTPUTS = {2: 128, 4: 32}, 64
"""By the bytes of an entry, the most numbers of a window with its one, and the most outputs per member, for which
registers suffice and shared memory does on GPUs with 99 KB of it."""


def is_served(weight_shape: torch.Size, dtype: torch.dtype) -> bool:
    """Return whether a program holds a layer; `weight_shape` is that of one member, (outputs, inputs, side, side)."""
    outputs, *window = weight_shape
    return block(math.prod(window) + 1) <= MOST_INNER[dtype.itemsize] and block(outputs) <= MOST_OUTPUTS


def is_tuned(weight_shape: torch.Size, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether settings for images in any type were measured; elsewhere other convolutions may be faster."""
    outputs, inputs, side, _ = weight_shape
    return (False, inputs, side, outputs) in FORWARD and is_tuned_for(dtype, device)


def should_stack(outputs: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether a first convolution with so many outputs per member stacks them: where the next layers gain by it.

    Narrower and wider networks use convolutions of libraries, which do not take stacked images.
    """
    return LEAST_STACKED <= outputs <= MOST_STACKED and is_tuned_for(dtype, device)


def convolve(
    images: Tensor,
    order: Tensor | None,
    moves: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    *,
    same: bool,
    dtype: torch.dtype = torch.float32,
    measured: bool = False,
    stacked: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Convolve images with stride one; return (B, members * outputs, H, W), channels last, and moments.

    Args:
        images: bytes (count, channels, height, width), to be chosen, moved and scaled; without `order`, any numbers
            (members, B, channels, height, width). They get no gradient.
        order, moves: those of :class:`hullo.population.images.AugmentedImages`, or None.
        weight, bias: (members * outputs, channels, side, side), in any memory format, and (members * outputs) or None.
        same: whether images are padded with zeros such that the output has their size.
        dtype: that of the result and of the factors; sums are float32.
        measured: whether to return the moments of each output channel, as the convolutions of other layers do.
        stacked: whether to return (members, B, outputs, H, W); see :mod:`hullo.population.kernels.layouts`.
    """
    if not (images[0, 0] if order is None else images).is_contiguous():
        images = images.contiguous()
    padding = weight.shape[-1] // 2 if same else 0
    call = _Call(images, order, moves, padding, dtype, measured and dtype.itemsize == 2, stacked)
    own = weight.new_zeros(len(weight)) if bias is None else bias
    convolved: tuple[Tensor, Tensor | None] = _Convolve.apply(weight, own, call)
    return convolved


class _Call(NamedTuple):
    """Hold the arguments of a call that have no gradient."""

    images: Tensor
    order: Tensor | None
    moves: Tensor | None
    padding: int
    dtype: torch.dtype
    measured: bool
    stacked: bool

    def plan(self, tiles: dict[Layer, Tile], weight: Tensor) -> tuple[int, int, list[Any], dict[str, Any]]:
        """Return the number of members, how many programs each has, and the arguments and constants of both kernels."""
        members, batch = (self.images if self.order is None else self.order).shape[:2]
        channels, height, width = self.images.shape[-3:]
        side, outputs = weight.shape[-1], len(weight) // members
        layer = self.order is not None, channels, side, outputs
        tile = tiles.get(layer, DEFAULT) if is_tuned_for(self.dtype, weight.device) else DEFAULT
        out_height, out_width = height + 2 * self.padding - side + 1, width + 2 * self.padding - side + 1
        rows = batch * out_height * triton.cdiv(out_width, tile.group)
        if self.order is None or self.moves is None:
            where = [self.images, self.images, (*self.images.stride()[:2], 0, 0, 0)]
        else:
            where = [self.order, self.moves, (*self.order.stride(), *self.moves.stride())]
        count = triton.cdiv(rows, tile.rows)
        splits = min(count, max(1, tile.programs * processors(self.images) // members))
        constants = {
            "CHANNELS": channels,
            "HEIGHT": height,
            "WIDTH": width,
            "SIDE": side,
            "PADDING": self.padding,
            "OUT_HEIGHT": out_height,
            "OUT_WIDTH": out_width,
            "OUT": outputs,
            "GROUP": tile.group,
            "IN_BLOCK": block(channels * side * (side + tile.group - 1) + 1),
            "OUT_BLOCK": block(outputs),
            "ROWS": tile.rows,
            "MOVED": self.order is not None,
            "STACKED": self.stacked,
            "num_warps": tile.warps,
        }
        return members, splits, [splits, self.images, *where, members, rows, count], constants


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, call: _Call) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(weight, bias)
        ctx.call = call
        ctx.set_materialize_grads(False)
        members, splits, varying, constants = call.plan(FORWARD, weight)
        batch = (call.images if call.order is None else call.order).shape[1]
        pixels = batch, constants["OUT_HEIGHT"], constants["OUT_WIDTH"]
        shape = (members, *pixels, constants["OUT"]) if call.stacked else (*pixels, len(weight))
        y = torch.empty(shape, dtype=call.dtype, device=weight.device)
        moments = torch.empty(2, splits if call.measured else 0, len(weight), device=weight.device)
        _forward_kernel[(splits * members,)](
            y, weight, bias.contiguous(), weight.stride(), moments, *varying,
            **constants, MEASURED=call.measured,
        )  # fmt: skip
        ctx.mark_non_differentiable(moments)
        return y.movedim(-1, -3), moments if call.measured else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        weight, bias = ctx.saved_tensors
        members, splits, varying, constants = ctx.call.plan(BACKWARD, weight)
        gradient = channels_last(gradient)
        shape = splits, members, constants["IN_BLOCK"], constants["GROUP"] * constants["OUT_BLOCK"]
        partial = torch.empty(shape, dtype=torch.float32, device=weight.device)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        fixed = {name: constants[name] for name in ("CHANNELS", "SIDE", "OUT", "GROUP", "IN_BLOCK", "OUT_BLOCK")}
        blocks = triton.cdiv((weight[0].numel() + 1) * constants["OUT"], 256)
        _backward_kernel[(splits * members,)](gradient, partial, *varying, **constants)
        _add_kernel[(blocks * members,)](
            dweight, dbias, partial, splits, dweight.stride(), dbias.stride(0), members, **fixed, BLOCK=256
        )
        return dweight, dbias, None


@triton.jit
def _forward_kernel(
    y_ptr, weight_ptr, bias_ptr, weight_strides, moments_ptr, splits, images, order, moves, strides, members, rows,
    tiles,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, PADDING: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, IN_BLOCK: tl.constexpr,
    OUT_BLOCK: tl.constexpr, ROWS: tl.constexpr, MOVED: tl.constexpr, STACKED: tl.constexpr, MEASURED: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0) % members  # programs that run at the same time write neighboring addresses
    COLUMNS: tl.constexpr = GROUP + SIDE - 1
    k, n = tl.arange(0, IN_BLOCK)[:, None], tl.arange(0, GROUP * OUT_BLOCK)[None, :]
    out = n % OUT_BLOCK
    kx = k % COLUMNS - n // OUT_BLOCK
    at = (member * OUT + out) * weight_strides[0] + k // (SIDE * COLUMNS) * weight_strides[1]
    at += k // COLUMNS % SIDE * weight_strides[2] + kx * weight_strides[3]
    known = (out < OUT) & (k < CHANNELS * SIDE * COLUMNS) & (kx >= 0) & (kx < SIDE)
    weights = tl.load(weight_ptr + at, mask=known, other=0.0)
    bias = tl.load(bias_ptr + member * OUT + out, mask=out < OUT, other=0.0)
    weights = tl.where(k == CHANNELS * SIDE * COLUMNS, bias.to(weights.dtype), weights)  # windows have a one there
    weights = weights.to(y_ptr.dtype.element_ty)
    total = tl.zeros([ROWS // 16, 8, OUT_BLOCK], tl.float32)
    squares = tl.zeros([ROWS // 16, 8, OUT_BLOCK], tl.float32)
    for tile in tl.range(tl.program_id(0) // members, tiles, splits, num_stages=1):  # a pixel at a time is slow ahead
        windows = _load_windows(
            images, order, moves, strides, rows, member, tile, CHANNELS, HEIGHT, WIDTH, SIDE, PADDING, OUT_HEIGHT,
            OUT_WIDTH, GROUP, IN_BLOCK, ROWS, MOVED, weights.dtype,
        )  # fmt: skip
        y = tl.dot(windows, weights, input_precision="ieee").to(weights.dtype)
        to, kept = _locate_outputs(tile, n, member, members, rows, OUT_WIDTH, OUT, GROUP, OUT_BLOCK, ROWS, STACKED)
        tl.store(y_ptr + to, y, mask=kept)
        if MEASURED:
            y = tl.where(kept, widen(y), 0.0)
            total += fold(y, ROWS, GROUP, OUT_BLOCK)
            squares += fold(y * y, ROWS, GROUP, OUT_BLOCK)
    if MEASURED:
        column = tl.arange(0, OUT_BLOCK)
        moments_ptr += tl.program_id(0) * OUT + column
        tl.store(moments_ptr, tl.sum(tl.sum(total, axis=1), axis=0), mask=column < OUT)
        tl.store(moments_ptr + splits * members * OUT, tl.sum(tl.sum(squares, axis=1), axis=0), mask=column < OUT)


@triton.jit
def _backward_kernel(
    dy_ptr, partial_ptr, splits, images, order, moves, strides, members, rows, tiles,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, PADDING: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, IN_BLOCK: tl.constexpr,
    OUT_BLOCK: tl.constexpr, ROWS: tl.constexpr, MOVED: tl.constexpr, STACKED: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0) % members
    split = tl.program_id(0) // members
    n = tl.arange(0, GROUP * OUT_BLOCK)[None, :]
    sums = tl.zeros([IN_BLOCK, GROUP * OUT_BLOCK], tl.float32)
    for tile in tl.range(split, tiles, splits, num_stages=None if MOVED else 1):
        at, known = _locate_outputs(tile, n, member, members, rows, OUT_WIDTH, OUT, GROUP, OUT_BLOCK, ROWS, STACKED)
        dy = tl.load(dy_ptr + at, mask=known, other=0.0)
        windows = _load_windows(
            images, order, moves, strides, rows, member, tile, CHANNELS, HEIGHT, WIDTH, SIDE, PADDING, OUT_HEIGHT,
            OUT_WIDTH, GROUP, IN_BLOCK, ROWS, MOVED, dy.dtype,
        )  # fmt: skip
        sums = tl.dot(windows.trans(), dy, sums, input_precision="ieee")
    k = tl.arange(0, IN_BLOCK)[:, None]
    to = (tl.program_id(0) * IN_BLOCK + k) * (GROUP * OUT_BLOCK) + n
    used = (k <= CHANNELS * SIDE * (GROUP + SIDE - 1)) & (n % OUT_BLOCK < OUT)
    tl.store(partial_ptr + to, sums, mask=used)


@triton.jit
def _add_kernel(
    dweight_ptr, dbias_ptr, partial_ptr, splits, strides, bias_out, members, CHANNELS: tl.constexpr,
    SIDE: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, IN_BLOCK: tl.constexpr, OUT_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the programs' sums and those of a band's copies."""
    COLUMNS: tl.constexpr = GROUP + SIDE - 1
    TAPS: tl.constexpr = CHANNELS * SIDE * SIDE
    member = tl.program_id(0) % members
    element = tl.program_id(0) // members * BLOCK + tl.arange(0, BLOCK)
    tap, out = element // OUT, element % OUT
    channel, ky, kx = tap // (SIDE * SIDE), tap // SIDE % SIDE, tap % SIDE
    known = tap <= TAPS
    first = tl.where(tap < TAPS, tap // SIDE * COLUMNS + kx, CHANNELS * SIDE * COLUMNS)
    step = tl.where(tap < TAPS, 1, 0)  # the bias has one row for all columns of a group
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        base = partial_ptr + (split * members + member) * (IN_BLOCK * GROUP * OUT_BLOCK)
        for g in tl.static_range(GROUP):
            total += tl.load(
                base + (first + g * step) * (GROUP * OUT_BLOCK) + g * OUT_BLOCK + out, mask=known, other=0.0
            )
    at = (member * OUT + out) * strides[0] + channel * strides[1] + ky * strides[2] + kx * strides[3]
    tl.store(dweight_ptr + at, total.to(dweight_ptr.dtype.element_ty), mask=tap < TAPS)
    tl.store(dbias_ptr + (member * OUT + out) * bias_out, total.to(dbias_ptr.dtype.element_ty), mask=tap == TAPS)


@triton.jit
def _locate_outputs(
    tile, n, member, members, rows,
    OUT_WIDTH: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, OUT_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    STACKED: tl.constexpr,
):  # fmt: skip
    """Return where the outputs of a tile are, (ROWS, GROUP * OUT_BLOCK), and whether they are."""
    GROUPS: tl.constexpr = (OUT_WIDTH + GROUP - 1) // GROUP
    row = tile * ROWS + tl.arange(0, ROWS)[:, None]
    column = row % GROUPS * GROUP
    start, pixel = locate_member(member, members, rows // GROUPS, OUT_WIDTH, OUT, STACKED, True)
    first = start + ((row // GROUPS).to(tl.int64) * OUT_WIDTH + column) * pixel
    known = (row < rows) & (column + n // OUT_BLOCK < OUT_WIDTH) & (n % OUT_BLOCK < OUT)
    return first + (n // OUT_BLOCK * pixel + n % OUT_BLOCK), known


@triton.jit
def _load_windows(
    images, order, moves, strides, rows, member, tile,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, PADDING: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, GROUP: tl.constexpr, IN_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    MOVED: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Load the windows of a tile's groups, (ROWS, IN_BLOCK): pixels by channel, row and column, a one, then zeros."""
    GROUPS: tl.constexpr = (OUT_WIDTH + GROUP - 1) // GROUP
    COLUMNS: tl.constexpr = GROUP + SIDE - 1
    row = tile * ROWS + tl.arange(0, ROWS)[:, None]
    known = row < rows
    row = tl.where(known, row, 0)
    b = row // (OUT_HEIGHT * GROUPS)
    first = (member * strides[0]).to(tl.int64) + b * strides[1]
    if MOVED:
        image = tl.load(order + member * strides[0] + b * strides[1])
        move = moves + member * strides[2] + b * strides[3]
        flipped = tl.load(move)
        down = tl.load(move + strides[4]).to(tl.int32)
        right = tl.load(move + 2 * strides[4]).to(tl.int32)
        first = image * (CHANNELS * HEIGHT * WIDTH)
    k = tl.arange(0, IN_BLOCK)[None, :]
    y = row // GROUPS % OUT_HEIGHT + k // COLUMNS % SIDE - PADDING
    x = row % GROUPS * GROUP + k % COLUMNS - PADDING
    inside = known & (k < CHANNELS * SIDE * COLUMNS) & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    if MOVED:
        y = tl.minimum(tl.maximum(y - down, 0), HEIGHT - 1)
        x = tl.minimum(tl.maximum(x - right, 0), WIDTH - 1)
        x = tl.where(flipped == 1, WIDTH - 1 - x, x)
    at = (k // (SIDE * COLUMNS) * HEIGHT + y) * WIDTH + x
    pixel = tl.load(images + first + at, mask=inside, other=0).to(tl.float32)
    if MOVED:
        # A division takes ten times as long; after rounding to 16 bits a product is the same, for every byte.
        pixel = tl.div_rn(pixel, 255.0) if tl.float32 == TYPE else pixel * (1 / 255)
    return tl.where(k == CHANNELS * SIDE * COLUMNS, 1.0, pixel).to(TYPE)
