"""Compute a population's first convolution from the bytes of the data set.

Each member sees its own images, each flipped and shifted in its own way (see :mod:`hullo.lab.data.augment`, whose
`move` and `scale` are the plain form). With one or three channels to each member, a first convolution moves far more
memory than it computes. So here moved and scaled images are never written: a program looks at POSITIONS windows of
one member's images and multiplies them with its weights; in the backward pass it looks again. There is no gradient
for bytes, so the results move once there, and their gradients once back.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor
from torch.autograd.function import once_differentiable

from hullo.kernels.triton import INTERPRETED

POSITIONS, WARPS = 128, 4
PROGRAMS = 8
"""In the backward pass, for each multiprocessor."""


def convolve(
    images: Tensor,
    order: Tensor,
    moves: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    same: bool,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Convolve chosen images, moved and scaled, with stride one: (B, members * outputs, H, W), channels last.

    Args:
        images: bytes of shape (count, channels, height, width).
        order: the index of each image of each member, (members, B).
        moves: how it is moved, as `draw_moves` says: (members, B, 3).
        weight: (members * outputs, channels, side, side), of any strides.
        bias: (members * outputs).
        same: whether zeros around the images keep their size.
        dtype: the type of the result, in which images and weights are multiplied too; sums are float32.
    """
    members, side = order.shape[0], weight.shape[-1]
    if images.dtype != torch.uint8 or not images.is_contiguous() or moves.shape != (*order.shape, 3):
        raise ValueError(
            f"images are contiguous bytes and moves of shape {(*order.shape, 3)}; got {images.dtype} of strides "
            f"{images.stride()} and moves of shape {tuple(moves.shape)}"
        )
    fits = side <= min(images.shape[2:]) and not (same and side % 2 == 0)
    if len(weight) % members or weight.shape[1:] != (images.shape[1], side, side) or not fits:
        raise ValueError(
            f"weights are (members * outputs, {images.shape[1]}, side, side) for {members} members, the side at most "
            f"{min(images.shape[2:])} and odd where same=True; got {tuple(weight.shape)} and same={same}"
        )
    call = _Call(images, order, moves, side // 2 if same else 0, dtype)
    convolved: Tensor = _Convolve.apply(weight, bias, call)
    return convolved


class _Call(NamedTuple):
    """Hold the arguments of a call that have no gradient."""

    images: Tensor
    order: Tensor
    moves: Tensor
    pad: int
    dtype: torch.dtype

    def arguments(self, weight: Tensor) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of both kernels and the constants that they are compiled for."""
        members, batch = self.order.shape
        _, channels, height, width = self.images.shape
        side, outputs = weight.shape[-1], len(weight) // members
        lines, across = height + 2 * self.pad - side + 1, width + 2 * self.pad - side + 1
        varying = [self.images, self.order, self.moves, *self.order.stride(), *self.moves.stride(), members]
        return [*varying, batch * lines * across], {
            "CHANNELS": channels,
            "HEIGHT": height,
            "WIDTH": width,
            "SIDE": side,
            "PAD": self.pad,
            "LINES": lines,
            "ACROSS": across,
            "OUTPUTS": outputs,
            "NUMBERS": max(16, triton.next_power_of_2(channels * side**2 + 1)),
            "FILTERS": max(16, triton.next_power_of_2(outputs)),
            "POSITIONS": POSITIONS,
            "num_warps": WARPS,
        }


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, call: _Call) -> Tensor:
        ctx.save_for_backward(weight, bias)
        ctx.call = call
        varying, constants = call.arguments(weight)
        shape = call.order.shape[1], constants["LINES"], constants["ACROSS"], len(weight)
        y = torch.empty(shape, dtype=call.dtype, device=weight.device)
        programs = triton.cdiv(varying[-1], POSITIONS) * len(call.order)
        with torch.cuda.device_of(weight):
            _forward[(programs,)](y, weight, bias.contiguous(), *weight.stride(), *varying, **constants)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias = ctx.saved_tensors
        varying, constants = ctx.call.arguments(weight)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        members, tiles = len(ctx.call.order), triton.cdiv(varying[-1], POSITIONS)
        processors = 4 if INTERPRETED else torch.cuda.get_device_properties(weight.device).multi_processor_count
        splits = min(tiles, max(1, PROGRAMS * processors // members))
        shape = splits, members, constants["NUMBERS"], constants["FILTERS"]
        partial = torch.empty(shape, dtype=torch.float32, device=weight.device)
        with torch.cuda.device_of(weight):
            _backward[(splits * members,)](gradient, partial, tiles, splits, *varying, **constants)
        sums = partial.sum(0)[..., : constants["OUTPUTS"]].transpose(1, 2)  # (members, outputs, numbers)
        numbers = weight[0].numel()
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        dweight.unflatten(0, (members, -1)).copy_(sums[..., :numbers].unflatten(2, weight.shape[1:]))
        dbias.view(members, -1).copy_(sums[..., numbers])
        return dweight, dbias, None


@triton.jit
def _forward(
    y_ptr, weight, bias, weight_output, weight_channel, weight_line, weight_column,
    images, order, moves, order_member, order_b, moves_member, moves_b, moves_entry, members, positions,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, PAD: tl.constexpr,
    LINES: tl.constexpr, ACROSS: tl.constexpr, OUTPUTS: tl.constexpr, NUMBERS: tl.constexpr, FILTERS: tl.constexpr,
    POSITIONS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0) % members  # neighbours in memory are made at the same time
    tile = tl.program_id(0) // members
    number = tl.arange(0, NUMBERS)[:, None]
    output = tl.arange(0, FILTERS)[None, :]
    at = weight + (member * OUTPUTS + output) * weight_output + (number // (SIDE * SIDE)) * weight_channel
    at += (number % (SIDE * SIDE) // SIDE) * weight_line + (number % SIDE) * weight_column
    filters = tl.load(at, mask=(output < OUTPUTS) & (number < CHANNELS * SIDE * SIDE), other=0.0)
    shift = tl.load(bias + member * OUTPUTS + output, mask=output < OUTPUTS, other=0.0)
    filters = tl.where(number == CHANNELS * SIDE * SIDE, shift.to(filters.dtype), filters)  # there windows show a one
    seen = _see(
        images, order, moves, order_member, order_b, moves_member, moves_b, moves_entry, positions, member, tile,
        CHANNELS, HEIGHT, WIDTH, SIDE, PAD, LINES, ACROSS, NUMBERS, POSITIONS, y_ptr.dtype.element_ty,
    )  # fmt: skip
    y = tl.dot(seen, filters.to(seen.dtype), input_precision="ieee")
    position = tile * POSITIONS + tl.arange(0, POSITIONS)[:, None]
    to = (position.to(tl.int64) * members + member) * OUTPUTS + output
    tl.store(y_ptr + to, y.to(seen.dtype), mask=(position < positions) & (output < OUTPUTS))


@triton.jit
def _backward(
    dy_ptr, partial_ptr, tiles, splits,
    images, order, moves, order_member, order_b, moves_member, moves_b, moves_entry, members, positions,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, PAD: tl.constexpr,
    LINES: tl.constexpr, ACROSS: tl.constexpr, OUTPUTS: tl.constexpr, NUMBERS: tl.constexpr, FILTERS: tl.constexpr,
    POSITIONS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0) % members
    split = tl.program_id(0) // members
    output = tl.arange(0, FILTERS)[None, :]
    sums = tl.zeros([NUMBERS, FILTERS], tl.float32)
    for tile in range(split, tiles, splits):
        position = tile * POSITIONS + tl.arange(0, POSITIONS)[:, None]
        at = (position.to(tl.int64) * members + member) * OUTPUTS + output
        dy = tl.load(dy_ptr + at, mask=(position < positions) & (output < OUTPUTS), other=0.0)
        seen = _see(
            images, order, moves, order_member, order_b, moves_member, moves_b, moves_entry, positions, member, tile,
            CHANNELS, HEIGHT, WIDTH, SIDE, PAD, LINES, ACROSS, NUMBERS, POSITIONS, dy.dtype,
        )  # fmt: skip
        sums = tl.dot(seen.trans(), dy, sums, input_precision="ieee")
    to = (tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)[:, None]) * FILTERS + output
    tl.store(partial_ptr + to, sums)


@triton.jit
def _see(
    images, order, moves, order_member, order_b, moves_member, moves_b, moves_entry, positions, member, tile,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, PAD: tl.constexpr,
    LINES: tl.constexpr, ACROSS: tl.constexpr, NUMBERS: tl.constexpr, POSITIONS: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    """Read a member's windows at the positions of a tile, (POSITIONS, NUMBERS).

    The numbers are the pixels of a window, channel by channel and line by line, then a one, then zeros.
    """
    position = tile * POSITIONS + tl.arange(0, POSITIONS)[:, None]
    known = position < positions
    position = tl.where(known, position, 0)
    b = position // (LINES * ACROSS)
    image = tl.load(order + member * order_member + b * order_b)
    move = moves + member * moves_member + b * moves_b
    flipped = tl.load(move)
    down = tl.load(move + moves_entry).to(tl.int32)
    right = tl.load(move + 2 * moves_entry).to(tl.int32)
    number = tl.arange(0, NUMBERS)[None, :]
    y = position // ACROSS % LINES + number % (SIDE * SIDE) // SIDE - PAD
    x = position % ACROSS + number % SIDE - PAD
    seen = known & (number < CHANNELS * SIDE * SIDE) & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    y = tl.minimum(tl.maximum(y - down, 0), HEIGHT - 1)
    x = tl.minimum(tl.maximum(x - right, 0), WIDTH - 1)
    x = tl.where(flipped == 1, WIDTH - 1 - x, x)
    at = ((image * CHANNELS + number // (SIDE * SIDE)) * HEIGHT + y) * WIDTH + x
    pixel = tl.load(images + at, mask=seen, other=0).to(tl.float32)
    # A division takes ten times as long; after rounding to 16 bits a product is the same, for every byte.
    pixel = tl.div_rn(pixel, 255.0) if tl.float32 == TYPE else pixel * (1 / 255)
    return tl.where(number == CHANNELS * SIDE * SIDE, 1.0, pixel).to(TYPE)
