"""Compute a population's convolutions: many small ones side by side.

Libraries are made for one wide convolution; K narrow ones they cut out, convolve one after the other and put together
again. Here a program takes POSITIONS windows of one member's images, all lie with channels last, and multiplies them
with its weights: what a window shows is a row of NUMBERS, tap by tap, and all channels in each tap. The gradient for
images is the same sum over windows of the results' gradient; that for weights takes the windows once more.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor
from torch.autograd.function import once_differentiable

from hullo.kernels.triton import INTERPRETED
from hullo.population.kernels import channels_last


class Tile(NamedTuple):
    """Hold the settings of a kernel: positions and numbers per step of a program, warps, and loads in flight."""

    positions: int
    numbers: int
    warps: int
    stages: int


WIDEST = 64
"""Channels of a member, each way: the most that a program multiplies at a time."""

SLIDE, WEIGH = Tile(256, 32, 4, 3), Tile(64, 128, 4, 3)
"""As measured on an H200 for the layers of LeNet-5, KerasNet and ResNet-56, of which none does much better with another
tile."""

PROGRAMS = 4
"""For the gradient of weights, for each multiprocessor."""


class Shape(NamedTuple):
    """Hold the sizes of a convolution: members, channels, windows, and the sides of images and results."""

    members: int
    inputs: int
    outputs: int
    side: int
    stride: int
    padding: tuple[int, int]
    sides: tuple[int, int]
    results: tuple[int, int]


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, members: int, stride: int = 1, padding: tuple[int, int] = (0, 0)
) -> Tensor:
    """Convolve images (B, K * inputs, H, W) of K members and return (B, K * outputs, H', W'), channels last.

    Args:
        x: the images.
        weight: (K * outputs, inputs, side, side), multiplied in x's type; sums are float32.
        bias: (K * outputs), or None.
        members: K.
        stride: from window to window.
        padding: zeros before the first and behind the last line and column.
    """
    if x.shape[1] != members * weight.shape[1] or len(weight) % members or weight.shape[2] != weight.shape[3]:
        raise ValueError(
            f"images are (B, {members} * inputs, H, W) and weights ({members} * outputs, inputs, side, side); got "
            f"{tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if max(weight.shape[1], len(weight) // members) > WIDEST:
        raise ValueError(f"weights of shape {tuple(weight.shape)} for {members} members: at most {WIDEST} channels fit")
    side, sides = weight.shape[2], (x.shape[2], x.shape[3])
    height, width = ((size + sum(padding) - side) // stride + 1 for size in sides)
    shape = Shape(members, weight.shape[1], len(weight) // members, side, stride, padding, sides, (height, width))
    convolved: Tensor = _Convolve.apply(x, weight, bias, shape)
    return convolved


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
        x, weight = channels_last(x), channels_last(weight.to(x.dtype))
        ctx.save_for_backward(x, weight)
        ctx.shape = shape
        return _slide_over(x, weight, bias, shape, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = channels_last(gradient)
        shape, (for_x, for_weight, for_bias, _) = ctx.shape, ctx.needs_input_grad
        dx = _slide_over(gradient, weight, None, shape, back=True) if for_x else None
        dweight = dbias = None
        if for_weight or for_bias:
            dweight, dbias = _weigh_up(gradient, x, weight, shape, biased=for_bias)
        return dx, dweight, dbias, None


def _slide_over(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape, *, back: bool) -> Tensor:
    """Return results from images or, with `back`, gradients of images from those of results."""
    channels, outputs = (shape.outputs, shape.inputs) if back else (shape.inputs, shape.outputs)
    sides, results = (shape.results, shape.sides) if back else (shape.sides, shape.results)
    y = torch.empty(len(x), *results, shape.members * outputs, dtype=x.dtype, device=x.device)
    positions = len(x) * results[0] * results[1]
    wide = triton.next_power_of_2(channels) if channels % 4 else channels
    if wide > channels:  # so that several channels are read at a time
        x = F.pad(x.permute(0, 2, 3, 1).unflatten(3, (shape.members, channels)), (0, wide - channels))
    some = SLIDE.positions if wide % 8 == 0 else SLIDE.positions // 2  # more addresses leave fewer registers
    with torch.cuda.device_of(x):
        _slide[(triton.cdiv(positions, some) * shape.members,)](
            y, x, weight, weight if bias is None else bias, shape.members, positions,
            WIDE=wide, CHANNELS=channels, HEIGHT=sides[0], WIDTH=sides[1],
            OUTPUTS=outputs, LINES=results[0], ACROSS=results[1],
            SIDE=shape.side, STRIDE=shape.stride, PAD=shape.padding[0], BACK=back, BIASED=bias is not None,
            FILTERS=_fit(WIDEST, outputs), POSITIONS=some, NUMBERS=_fit(SLIDE.numbers, wide * shape.side**2),
            BIG=max(x.numel(), y.numel()) >= 2**31, STAGES=SLIDE.stages, num_warps=SLIDE.warps,
        )  # fmt: skip
    return y.permute(0, 3, 1, 2)


def _weigh_up(dy: Tensor, x: Tensor, weight: Tensor, shape: Shape, biased: bool) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of weights and bias."""
    before, behind = shape.padding
    if shape.inputs == shape.outputs and before == behind:  # here cuDNN is faster
        _, dweight, dbias = torch.ops.aten.convolution_backward(
            dy, x, weight, [len(weight)] if biased else None, [shape.stride] * 2, [before] * 2, [1, 1],
            False, [0, 0], shape.members, [False, True, biased],
        )  # fmt: skip
        return dweight, dbias
    width, positions = shape.inputs * shape.side**2, dy.numel() // dy.shape[1]
    numbers = _fit(WEIGH.numbers, width + biased)
    blocks, tiles = triton.cdiv(width + biased, numbers), triton.cdiv(positions, WEIGH.positions)
    processors = 4 if INTERPRETED else torch.cuda.get_device_properties(x.device).multi_processor_count
    splits = min(tiles, max(1, PROGRAMS * processors // (shape.members * blocks)))
    partial = torch.empty(splits, len(weight), width + biased, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _weigh[(splits * blocks * shape.members,)](
            dy, x, partial, shape.members, positions, tiles, splits,
            CHANNELS=shape.inputs, HEIGHT=shape.sides[0], WIDTH=shape.sides[1],
            OUTPUTS=shape.outputs, LINES=shape.results[0], ACROSS=shape.results[1],
            SIDE=shape.side, STRIDE=shape.stride, PAD=shape.padding[0], BLOCKS=blocks, BIASED=biased,
            FILTERS=_fit(WIDEST, shape.outputs), POSITIONS=WEIGH.positions, NUMBERS=numbers,
            BIG=max(x.numel(), dy.numel()) >= 2**31, STAGES=WEIGH.stages, num_warps=WEIGH.warps,
        )  # fmt: skip
    sums = partial.sum(0)
    taps = sums[:, :width].unflatten(1, (shape.side, shape.side, shape.inputs)).permute(0, 3, 1, 2)
    return taps.to(weight.dtype), sums[:, width].to(weight.dtype) if biased else None


def _fit(most: int, width: int) -> int:
    """Return a power of two of at least a width, at most `most`; a product takes at least 16."""
    return min(most, max(16, int(triton.next_power_of_2(width))))


@triton.jit
def _slide(
    y_ptr, x_ptr, weight_ptr, bias_ptr, members, positions,
    WIDE: tl.constexpr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr,
    LINES: tl.constexpr, ACROSS: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BACK: tl.constexpr, BIASED: tl.constexpr, FILTERS: tl.constexpr, POSITIONS: tl.constexpr, NUMBERS: tl.constexpr,
    BIG: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0) % members  # neighbours in memory are read at the same time
    position = tl.program_id(0) // members * POSITIONS + tl.arange(0, POSITIONS)[:, None]
    output = tl.arange(0, FILTERS)[None, :]
    y = tl.zeros([POSITIONS, FILTERS], tl.float32)
    if BIASED:
        y += tl.load(bias_ptr + member * OUTPUTS + output, mask=output < OUTPUTS, other=0.0).to(tl.float32)
    for first in tl.range(0, SIDE * SIDE * WIDE, NUMBERS, num_stages=STAGES):
        seen = _see(
            x_ptr, position, first + tl.arange(0, NUMBERS)[None, :], member, members, positions,
            WIDE, HEIGHT, WIDTH, LINES, ACROSS, SIDE, STRIDE, PAD, BACK, BIG,
        )  # fmt: skip
        number = first + tl.arange(0, NUMBERS)[:, None]
        tap, channel = number // WIDE, number % WIDE
        if BACK:
            at = ((member * CHANNELS + channel) * (SIDE * SIDE) + tap) * OUTPUTS + output
        else:
            at = ((member * OUTPUTS + output) * (SIDE * SIDE) + tap) * CHANNELS + channel
        known = (tap < SIDE * SIDE) & (channel < CHANNELS) & (output < OUTPUTS)
        filters = tl.load(weight_ptr + at, mask=known, other=0.0)
        y = tl.dot(seen, filters, y, input_precision="ieee")
    if BIG:
        position = position.to(tl.int64)
    to = (position * members + member) * OUTPUTS + output
    tl.store(y_ptr + to, y.to(y_ptr.dtype.element_ty), mask=(position < positions) & (output < OUTPUTS))


@triton.jit
def _weigh(
    dy_ptr, x_ptr, partial_ptr, members, positions, tiles, splits,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, LINES: tl.constexpr,
    ACROSS: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, FILTERS: tl.constexpr,
    POSITIONS: tl.constexpr, NUMBERS: tl.constexpr, BLOCKS: tl.constexpr, BIASED: tl.constexpr, BIG: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0) % members
    number = tl.program_id(0) // members % BLOCKS * NUMBERS + tl.arange(0, NUMBERS)[None, :]
    split = tl.program_id(0) // members // BLOCKS
    output = tl.arange(0, FILTERS)[None, :]
    sums = tl.zeros([NUMBERS, FILTERS], tl.float32)
    for tile in tl.range(split, tiles, splits, num_stages=STAGES):
        position = tile * POSITIONS + tl.arange(0, POSITIONS)[:, None]
        seen = _see(
            x_ptr, position, number, member, members, positions,
            CHANNELS, HEIGHT, WIDTH, LINES, ACROSS, SIDE, STRIDE, PAD, False, BIG,
        )  # fmt: skip
        if BIASED:  # behind all taps windows show a one
            seen = tl.where(number == SIDE * SIDE * CHANNELS, 1.0, seen).to(seen.dtype)
        row = position.to(tl.int64) if BIG else position
        at = (row * members + member) * OUTPUTS + output
        dy = tl.load(dy_ptr + at, mask=(position < positions) & (output < OUTPUTS), other=0.0)
        sums = tl.dot(seen.trans(), dy, sums, input_precision="ieee")
    width = SIDE * SIDE * CHANNELS + BIASED
    number = tl.program_id(0) // members % BLOCKS * NUMBERS + tl.arange(0, NUMBERS)[:, None]
    to = ((split * members + member) * OUTPUTS + output) * width + number
    tl.store(partial_ptr + to, sums, mask=(number < width) & (output < OUTPUTS))


@triton.jit
def _see(
    x_ptr, position, number, member, members, positions,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, LINES: tl.constexpr, ACROSS: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BACK: tl.constexpr, BIG: tl.constexpr,
):  # fmt: skip
    """Read the windows at some positions (P, 1) at some numbers (1, N); zero beyond images and numbers.

    A window `BACK` shows, at each tap, the one result that this position had a part in by that tap.
    """
    tap = number // CHANNELS
    line, column = position // ACROSS % LINES, position % ACROSS
    inside = (position < positions) & (tap < SIDE * SIDE)
    if BACK:
        line, column = line + PAD - tap // SIDE, column + PAD - tap % SIDE
        if STRIDE > 1:
            inside &= (line % STRIDE == 0) & (column % STRIDE == 0)
            line, column = line // STRIDE, column // STRIDE
    else:
        line, column = line * STRIDE - PAD + tap // SIDE, column * STRIDE - PAD + tap % SIDE
    inside &= (line >= 0) & (line < HEIGHT) & (column >= 0) & (column < WIDTH)
    pixel = (position // (LINES * ACROSS) * HEIGHT + line) * WIDTH + column
    if BIG:
        pixel = pixel.to(tl.int64)
    return tl.load(x_ptr + (pixel * members + member) * CHANNELS + number % CHANNELS, mask=inside, other=0.0)
