"""Compute the convolutions of a population: many small ones side by side.

Libraries are made for one wide convolution; K narrow ones they copy in and out group by group, or run one after the
other. Here a program multiplies the windows of one member's images with its weights. Images are in one of the layouts
of :mod:`hullo.population.kernels.layouts`.

Those below take any stride: a window is a row of the matrix product, tap by tap and all channels of each tap. The
gradient for the input is the same product of windows of the output's gradient; that for the weights takes the input's
windows once more. Other ways are cuDNN and, for some layers, kernels of their own: those of stride one in
:mod:`hullo.population.kernels.row_conv`, the input's gradient for stride two in
:mod:`hullo.population.kernels.square_gradient`. Each pass takes the fastest by :mod:`hullo.population.kernels.choice`.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806 (constants are in capitals, in Triton)
from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.population.kernels import choice, processors, row_conv, square_gradient
from hullo.population.kernels.launch import launch, once_differentiable, wait_for_previous
from hullo.population.kernels.layouts import (
    Shape,
    all_channels,
    block,
    channels_last,
    empty_images,
    is_stacked,
    locate_member,
)
from hullo.population.kernels.side_stream import Deferred
from hullo.population.kernels.square_gradient import load_pixels


class Tile(NamedTuple):
    """Hold the settings of a kernel."""

    rows: int  # windows of a program of `_convolve_kernel`; numbers of a window in `_weight_gradient_kernel`
    outputs: int  # the most output channels of a program
    inner: int  # numbers of a window per step; windows per step
    warps: int
    stages: int


WINDOWS, WIDE_WINDOWS = Tile(256, 64, 32, 4, 3), Tile(128, 128, 64, 8, 3)
"""For up to 64 outputs, and for more; measured on an H200, as are those of the gradients of weights."""

WEIGHTS = Tile(128, 128, 64, 4, 3)

LEAST, NARROW = 16, 64
"""For more channels than the first and at most the second, these kernels were always faster than cuDNN on an H200."""

PROGRAMS = 4
"""Programs of `_weight_gradient_kernel` per multiprocessor."""


def is_for_cudnn(inputs: int, outputs: int) -> bool:
    """Return whether cuDNN is the default: for few channels, and for many, as many inputs as outputs."""
    return inputs == outputs if max(inputs, outputs) > NARROW else max(inputs, outputs) <= LEAST


def _prefers_cudnn(shape: Shape) -> bool:
    return is_for_cudnn(shape.in_channels, shape.out_channels)


def _suits_cudnn(shape: Shape, x: Tensor) -> bool:
    """Return whether cuDNN takes images in this layout, and padding that is the same on both sides."""
    before, behind = shape.padding
    return before == behind and not is_stacked(x)


def _moves(shape: Shape) -> tuple[list[int], list[int]]:
    """Return strides and padding of rows and columns, where that before and behind the images is the same."""
    stride, padding = shape.stride, shape.padding[0]
    return [1 if shape.line else stride, stride], [0 if shape.line else padding, padding]


def is_served(
    weight_shape: torch.Size, dtype: torch.dtype, device: torch.device, *, stride: int, biased: bool, stacked: bool
) -> bool:
    """Return whether a layer is computed here; a member's weights are (outputs, inputs, side or 1, side).

    What cuDNN computes by default is, where kernels are chosen by measurement. Stacked images are copied for cuDNN.
    """
    outputs, inputs, height, side = weight_shape
    by_rows = stride == 1 and not biased and (side, inputs, outputs) in row_conv.TILES and height == side
    if by_rows and row_conv.is_tuned_for(dtype, device):
        return True
    return not is_for_cudnn(inputs, outputs) or (choice.is_tuning() and not stacked)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    members: int,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    measured: bool = False,
    deferred: Deferred | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Convolve the images of K members; return images in the same layout, and moments.

    Args:
        x: images (B, K * inputs, H, W) or (K, B, inputs, H, W).
        weight: (K * outputs, inputs, side, side), or (K * outputs, inputs, 1, side) for sequences, which are images of
            one row; multiplied in x's dtype, sums are float32.
        bias: (K * outputs), or None.
        members, stride: K, and the stride of rows and columns.
        padding: rows and columns of zeros before and behind the images.
        measured: whether to return sums and sums of squares of each output channel, (2, parts, K * outputs); only of 16
            bits, whose squares float32 holds.
        deferred: what `side_stream.flatten` returned with `weight`.
    """
    shape = Shape.of(members, weight, (x.shape[-2], x.shape[-1]), stride, padding)
    convolved: tuple[Tensor, Tensor | None] = _Convolve.apply(
        x, weight, bias, shape, measured and x.itemsize == 2, deferred
    )
    return convolved


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *given: Any) -> tuple[Tensor, Tensor | None]:
        bias, shape, measured, deferred = given
        x, weight = channels_last(x), channels_last(weight.to(x.dtype))
        ctx.save_for_backward(x, weight)
        ctx.shape, ctx.deferred = shape, deferred
        ctx.set_materialize_grads(False)
        y, moments = _forward(x, weight, bias, shape, measured)
        if moments is not None:
            ctx.mark_non_differentiable(moments)
        return y, moments

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = channels_last(gradient)
        shape, (for_x, for_weight, for_bias, *_) = ctx.shape, ctx.needs_input_grad
        dx = dweight = dbias = None
        if ctx.deferred is not None:
            ctx.deferred.put(lambda: _weight_gradient(gradient, x, weight, shape, biased=False)[0])
        elif for_weight or for_bias:
            dweight, dbias = _weight_gradient(gradient, x, weight, shape, biased=for_bias)
        if for_x:  # last, so that it is in the cache when the layer below reads it
            dx = _input_gradient(gradient, weight, shape)
        return dx, dweight, dbias, None, None, None


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape, measured: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return outputs and moments."""
    ways: dict[str, choice.Way] = {"windows": lambda: _convolve_windows(x, weight, bias, shape, measured=measured)}
    if _suits_cudnn(shape, x) and (not measured or _prefers_cudnn(shape)):
        ways["cudnn"] = lambda: (F.conv2d(x, weight, bias, *_moves(shape), 1, shape.members), None)
    for with_moments in [True, False] if measured else [False]:
        tile = row_conv.choose_tile(shape, x, measured=with_moments) if bias is None else None
        if tile is not None:
            ways["rows"] = partial(row_conv.convolve_rows, x, weight, shape, tile, measured=with_moments)
            break
    return _compute("forward", ways, x, shape, bias is not None, measured, prefers_cudnn=_prefers_cudnn(shape))


def _compute(
    kind: str, ways: Mapping[str, choice.Way], x: Tensor, shape: Shape, *more: bool, prefers_cudnn: bool
) -> tuple[Tensor, Tensor | None]:
    """Return what the fastest way computes; where nothing was measured, kernels of stride one or two come first."""
    default = "cudnn" if prefers_cudnn and "cudnn" in ways else "windows"
    if row_conv.is_tuned_for(x.dtype, x.device):
        default = next((name for name in ("rows", "squares") if name in ways), default)
    first, second = choice.compute((kind, shape, x.shape[-4], x.dtype, is_stacked(x), *more), ways, default)
    return cast(Tensor, first), second


def convolve_transposed(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, members: int, stride: int, padding: int, size: tuple[int, int]
) -> Tensor:
    """Return images of a size whose convolution would have the shape of x: the gradient of such a convolution.

    The weights are (members * inputs, outputs, side or 1, side), as in a convolution from outputs to inputs.
    """
    shape = Shape.of(members, weight, size, stride, (padding, padding))._replace(out_size=(x.shape[-2], x.shape[-1]))
    y: Tensor = _ConvolveTransposed.apply(x, weight, bias, shape)
    return y


class _ConvolveTransposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
        x, weight = channels_last(x), channels_last(weight.to(x.dtype))
        ctx.save_for_backward(x, weight)
        ctx.shape = shape
        return _convolve_windows(x, weight, bias, shape, transposed=True)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (for_x, for_weight, for_bias, _) = ctx.saved_tensors, ctx.needs_input_grad
        gradient = channels_last(gradient)
        dx = _forward(gradient, weight, None, ctx.shape)[0] if for_x else None
        dweight = _weight_gradient(x, gradient, weight, ctx.shape, biased=False)[0] if for_weight else None
        dbias = gradient.sum((1, 3, 4) if is_stacked(gradient) else (0, 2, 3)).flatten() if for_bias else None
        return dx, dweight, dbias, None


def _input_gradient(dy: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """Return the gradient of images."""
    ways: dict[str, choice.Way] = {"windows": lambda: _convolve_windows(dy, weight, None, shape, transposed=True)}
    if _suits_cudnn(shape, dy):
        ways["cudnn"] = lambda: (_cudnn_backward(dy, None, weight, shape, (True, False, False))[0], None)
    mirrored = shape.transposed()
    tile = row_conv.choose_tile(mirrored, dy)
    if tile is not None:
        ways["rows"] = partial(row_conv.convolve_rows, dy, weight, mirrored, tile, transposed=True)
    square_tile = square_gradient.choose_tile(shape, dy)
    if square_tile is not None:
        ways["squares"] = lambda: (square_gradient.input_gradient(dy, weight, shape, square_tile), None)
    return _compute("input gradient", ways, dy, shape, prefers_cudnn=_prefers_cudnn(shape))[0]


def _cudnn_backward(
    dy: Tensor, x: Tensor | None, weight: Tensor, shape: Shape, needed: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients that are needed, of images, weights and bias; images may be None where they are not read."""
    if x is None:
        x = empty_images(dy, shape.members, shape.in_channels, shape.in_size)
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        dy, x, weight, [len(weight)] if needed[2] else None, *_moves(shape), [1, 1],
        False, [0, 0], shape.members, list(needed),
    )  # fmt: skip
    return gradients


def _convolve_windows(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape, *, transposed: bool = False, measured: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return outputs from images or, where `transposed`, gradients of images from those of outputs; and moments."""
    channels, outputs = shape.in_channels, shape.out_channels
    in_size, out_size = shape.in_size, shape.out_size
    if transposed:
        channels, outputs, in_size, out_size = outputs, channels, out_size, in_size
    y, images = empty_images(x, shape.members, outputs, out_size), x.shape[-4]
    step = shape.stride if transposed else 1
    row_step = 1 if shape.line else step
    positions = images * triton.cdiv(out_size[0], row_step) * triton.cdiv(out_size[1], step)
    padded = triton.next_power_of_2(channels) if channels % 4 else channels
    if padded > channels:  # so that several channels are read at a time
        each = x.movedim(-3, -1)
        x = F.pad(each if is_stacked(x) else each.unflatten(3, (shape.members, channels)), (0, padded - channels))
    tile = WIDE_WINDOWS if outputs > WINDOWS.outputs else WINDOWS
    rows = tile.rows if padded % 8 == 0 else tile.rows // 2  # more addresses leave fewer registers
    step_size = tile.inner if padded % tile.inner == 0 else WINDOWS.inner
    taps = shape.kernel if shape.line else shape.kernel**2
    wide, inner = min(tile.outputs, block(outputs)), min(step_size, block(padded * taps))
    blocks, across = triton.cdiv(positions, rows) * row_step * step, triton.cdiv(outputs, wide)
    moments = torch.empty(2, blocks if measured else 0, all_channels(y), device=x.device)
    launch(
        _convolve_kernel, blocks * across * shape.members,
        y, x, weight, bias, moments, shape.members, images, moments.shape[1],
        follows=True, STACKED=is_stacked(y), PADDED=padded, CHANNELS=channels, HEIGHT=in_size[0], WIDTH=in_size[1],
        OUT=outputs, OUT_HEIGHT=out_size[0], OUT_WIDTH=out_size[1],
        LINE=shape.line, KERNEL=shape.kernel, STRIDE=shape.stride, PADDING=shape.padding[0], TRANSPOSED=transposed,
        BIASED=bias is not None, MEASURED=measured, OUT_BLOCK=wide, ACROSS=across, ROWS=rows, INNER=inner,
        BIG=max(x.numel(), y.numel()) >= 2**31, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return y, moments if measured else None


def _weight_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, shape: Shape, *, biased: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of weights and bias."""
    ways: dict[str, choice.Way] = {"windows": lambda: _weight_gradient_by_windows(dy, x, weight, shape, biased=biased)}
    if _suits_cudnn(shape, x):
        ways["cudnn"] = lambda: _cudnn_backward(dy, x, weight, shape, (False, True, biased))[1:]
    tile = None if biased else row_conv.choose_weight_tile(shape, x)
    if tile is not None:
        ways["rows"] = lambda: (row_conv.weight_gradient(dy, x, shape, tile), None)
    prefers_cudnn = shape.in_channels == shape.out_channels or _prefers_cudnn(shape)
    dweight, dbias = _compute("weight gradient", ways, x, shape, biased, prefers_cudnn=prefers_cudnn)
    return dweight, dbias if biased else None


def _weight_gradient_by_windows(
    dy: Tensor, x: Tensor, weight: Tensor, shape: Shape, *, biased: bool
) -> tuple[Tensor, Tensor | None]:
    tile, height = WEIGHTS, 1 if shape.line else shape.kernel
    inner, positions = shape.in_channels * height * shape.kernel, dy.numel() // all_channels(dy)
    rows, wide = min(tile.rows, block(inner + biased)), min(tile.outputs, block(shape.out_channels))
    blocks, across = triton.cdiv(inner + biased, rows), triton.cdiv(shape.out_channels, wide)
    tiles = triton.cdiv(positions, tile.inner)
    splits = min(tiles, max(1, PROGRAMS * processors(x) // (shape.members * blocks * across)))
    partial = torch.empty(splits, len(weight), inner + biased, dtype=torch.float32, device=x.device)
    launch(
        _weight_gradient_kernel, splits * blocks * across * shape.members,
        dy, x, partial, shape.members, x.shape[-4], positions, tiles, splits, follows=True,
        STACKED=is_stacked(x), CHANNELS=shape.in_channels, HEIGHT=shape.in_size[0], WIDTH=shape.in_size[1],
        OUT=shape.out_channels, OUT_HEIGHT=shape.out_size[0], OUT_WIDTH=shape.out_size[1],
        LINE=shape.line, KERNEL=shape.kernel, STRIDE=shape.stride, PADDING=shape.padding[0], BLOCKS=blocks,
        BIASED=biased, OUT_BLOCK=wide, ACROSS=across, POSITIONS=tile.inner, ROWS=rows,
        BIG=max(x.numel(), dy.numel(), partial.numel()) >= 2**31, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    sums = row_conv.add_parts(partial, weight.dtype)
    taps = sums[:, :inner].unflatten(1, (height, shape.kernel, shape.in_channels)).permute(0, 3, 1, 2)
    return taps, sums[:, inner] if biased else None


@triton.jit
def _convolve_kernel(
    y_ptr, x_ptr, weight_ptr, bias_ptr, moments_ptr, members, images, parts,
    PADDED: tl.constexpr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, TRANSPOSED: tl.constexpr, BIASED: tl.constexpr, MEASURED: tl.constexpr,
    OUT_BLOCK: tl.constexpr, ACROSS: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, LINE: tl.constexpr,
    STACKED: tl.constexpr, BIG: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_previous(EARLY)
    ONE_TAP: tl.constexpr = PADDED % INNER == 0  # the numbers of a step belong to one pixel of the windows
    STEP: tl.constexpr = STRIDE if TRANSPOSED else 1  # a row of the images has the taps of every STEP-th kernel row
    TAPS: tl.constexpr = (KERNEL + STEP - 1) // STEP
    ROW_STEP: tl.constexpr = 1 if LINE else STEP
    ROW_STRIDE: tl.constexpr = 1 if LINE else STRIDE
    ROW_PADDING: tl.constexpr = 0 if LINE else PADDING
    ROW_KERNEL: tl.constexpr = 1 if LINE else KERNEL
    ROW_TAPS: tl.constexpr = 1 if LINE else TAPS
    H: tl.constexpr = (OUT_HEIGHT + ROW_STEP - 1) // ROW_STEP
    W: tl.constexpr = (OUT_WIDTH + STEP - 1) // STEP
    member = tl.program_id(0) % members  # programs that run at the same time read neighboring addresses
    block = tl.program_id(0) // members // ACROSS
    first_ky, first_kx = block % ROW_STEP, block // ROW_STEP % STEP
    position = block // (ROW_STEP * STEP) * ROWS + tl.arange(0, ROWS)[:, None]
    image = position // (H * W)
    row = position // W % H * ROW_STEP + (first_ky + ROW_PADDING * (ROW_STEP - 1)) % ROW_STEP
    column = position % W * STEP + (first_kx + PADDING * (STEP - 1)) % STEP
    known = (image < images) & (row < OUT_HEIGHT) & (column < OUT_WIDTH)
    out = tl.program_id(0) // members % ACROSS * OUT_BLOCK + tl.arange(0, OUT_BLOCK)[None, :]
    y = tl.zeros([ROWS, OUT_BLOCK], tl.float32)
    if BIASED:
        y += tl.load(bias_ptr + member * OUT + out, mask=out < OUT, other=0.0).to(tl.float32)
    for first in tl.range(0, ROW_TAPS * TAPS * PADDED, INNER, num_stages=STAGES):
        k = first if ONE_TAP else first + tl.arange(0, INNER)[None, :]
        channel = tl.multiple_of(first % PADDED, INNER) + tl.arange(0, INNER)[None, :] if ONE_TAP else k % PADDED
        ky, kx = first_ky + k // (PADDED * TAPS) * ROW_STEP, first_kx + k // PADDED % TAPS * STEP
        if TRANSPOSED:
            x_row, x_column = (row + ROW_PADDING - ky) // ROW_STEP, (column + PADDING - kx) // STEP
        else:
            x_row, x_column = row * ROW_STRIDE - ROW_PADDING + ky, column * STRIDE - PADDING + kx
        windows = load_pixels(
            x_ptr, image, x_row, x_column, channel, known & (ky < ROW_KERNEL) & (kx < KERNEL), member, members,
            images, PADDED, HEIGHT, WIDTH, STACKED, BIG,
        )  # fmt: skip
        k = first if ONE_TAP else first + tl.arange(0, INNER)[:, None]
        channel = tl.multiple_of(first % PADDED, INNER) + tl.arange(0, INNER)[:, None] if ONE_TAP else k % PADDED
        ky, kx = first_ky + k // (PADDED * TAPS) * ROW_STEP, first_kx + k // PADDED % TAPS * STEP
        if TRANSPOSED:
            at = ((member * CHANNELS + channel) * (ROW_KERNEL * KERNEL) + ky * KERNEL + kx) * OUT + out
        else:
            at = ((member * OUT + out) * (ROW_KERNEL * KERNEL) + ky * KERNEL + kx) * CHANNELS + channel
        used = (ky < ROW_KERNEL) & (kx < KERNEL) & (channel < CHANNELS) & (out < OUT)
        y = tl.dot(windows, tl.load(weight_ptr + at, mask=used, other=0.0), y, input_precision="ieee")
    if BIG:
        image = image.to(tl.int64)
    start, pixel = locate_member(member, members, images, OUT_HEIGHT * OUT_WIDTH, OUT, STACKED, BIG)
    to = start + ((image * OUT_HEIGHT + row) * OUT_WIDTH + column) * pixel + out
    y = y.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + to, y, mask=known & (out < OUT))
    if MEASURED:
        y = tl.where(known, y.to(tl.float32), 0.0)
        to = moments_ptr + (block * members + member) * OUT + out
        tl.store(to, tl.sum(y, axis=0)[None, :], mask=out < OUT)
        tl.store(to + parts * members * OUT, tl.sum(y * y, axis=0)[None, :], mask=out < OUT)


@triton.jit
def _weight_gradient_kernel(
    dy_ptr, x_ptr, partial_ptr, members, images, positions, tiles, splits,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCKS: tl.constexpr,
    BIASED: tl.constexpr, OUT_BLOCK: tl.constexpr, ACROSS: tl.constexpr, POSITIONS: tl.constexpr, ROWS: tl.constexpr,
    LINE: tl.constexpr, STACKED: tl.constexpr, BIG: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_previous(EARLY)
    ROW_STRIDE: tl.constexpr = 1 if LINE else STRIDE
    ROW_PADDING: tl.constexpr = 0 if LINE else PADDING
    ROW_KERNEL: tl.constexpr = 1 if LINE else KERNEL
    member = tl.program_id(0) % members
    first = tl.program_id(0) // members % BLOCKS * ROWS
    split = tl.program_id(0) // members // BLOCKS // ACROSS
    out = tl.program_id(0) // members // BLOCKS % ACROSS * OUT_BLOCK + tl.arange(0, OUT_BLOCK)[None, :]
    k = first + tl.arange(0, ROWS)[None, :]
    tap = first if CHANNELS % ROWS == 0 else k  # in the first case a program has one pixel of the windows
    ky, kx = tap // (CHANNELS * KERNEL), tap // CHANNELS % KERNEL
    sums = tl.zeros([ROWS, OUT_BLOCK], tl.float32)
    for tile in tl.range(split, tiles, splits, num_stages=STAGES):
        position = tile * POSITIONS + tl.arange(0, POSITIONS)[:, None]
        x_row = position // OUT_WIDTH % OUT_HEIGHT * ROW_STRIDE - ROW_PADDING + ky
        x_column = position % OUT_WIDTH * STRIDE - PADDING + kx
        windows = load_pixels(
            x_ptr, position // (OUT_HEIGHT * OUT_WIDTH), x_row, x_column, k % CHANNELS,
            (position < positions) & (ky < ROW_KERNEL), member, members, images, CHANNELS, HEIGHT, WIDTH, STACKED, BIG,
        )  # fmt: skip
        if BIASED:  # a one behind the last tap of each window
            windows = tl.where(k == ROW_KERNEL * KERNEL * CHANNELS, 1.0, windows).to(windows.dtype)
        row = position.to(tl.int64) if BIG else position
        start, pixel = locate_member(member, members, images, OUT_HEIGHT * OUT_WIDTH, OUT, STACKED, BIG)
        at = start + row * pixel + out
        dy = tl.load(dy_ptr + at, mask=(position < positions) & (out < OUT), other=0.0)
        sums = tl.dot(windows.trans(), dy, sums, input_precision="ieee")
    width = ROW_KERNEL * KERNEL * CHANNELS + BIASED
    if BIG:
        split = split.to(tl.int64)
    k = first + tl.arange(0, ROWS)[:, None]
    to = ((split * members + member) * OUT + out) * width + k
    tl.store(partial_ptr + to, sums, mask=(k < width) & (out < OUT))
