"""Group norm, residual and activation of a population, fused.

    y = combine(scale * xhat + shift + residual, rows, bases),    xhat = (x + bias - mean) / sqrt(variance + eps)

for images with channels last; the mean and the variance are those of a group of channels of one sample. Each sample is
a matrix for the kernels of :mod:`hullo.population.kernels.bn_act` and :mod:`hullo.population.kernels.channel_stats`;
the two kernels here make the numbers of groups from the sums of columns. No member depends on another, and there are
no atomic additions.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806 (constants are in capitals, in Triton)
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.bases import Base
from hullo.population.kernels.bn_act import Operands
from hullo.population.kernels.channel_stats import TILES, Tiling, count_rows, partial_statistics
from hullo.population.kernels.kinds import Kinds
from hullo.population.kernels.launch import launch, once_differentiable, wait_for_previous
from hullo.population.kernels.layouts import all_channels, by_sample, channels_last, is_stacked


def group_norm_combine(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    rows: Tensor,
    bases: Iterable[Base],
    *,
    width: int,
    eps: float,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
    kinds: Kinds | None = None,
) -> tuple[Tensor, Tensor]:
    """Return images after group norm, the sum with a residual and the activation, as two tensors.

    Both share their memory. A value with two users gets a gradient from each, and this function adds them up.

    Args:
        x, rows, bases, residual, kinds: as :func:`hullo.population.kernels.bn_act.normalize_combine` takes them.
        scale, shift: of each channel; one and zero by default.
        width: number of channels of a group.
        eps: added to variances.
        bias: of each channel, where the convolution left it out.
        dtype: of the result, by default that of x.
    """
    channels = all_channels(x)
    call = _Call(tuple(bases), width, eps, x.dtype if dtype is None else dtype, kinds)
    scale = torch.ones(channels, device=x.device) if scale is None else scale
    shift = torch.zeros(channels, device=x.device) if shift is None else shift
    both: tuple[Tensor, Tensor] = _GroupNormCombine.apply(x, scale, shift, rows, bias, residual, call)
    return both


class _Call(NamedTuple):
    """Hold the arguments of a call that are not tensors."""

    bases: tuple[Base, ...]
    width: int
    eps: float
    dtype: torch.dtype
    kinds: Kinds | None

    def constants(self, x: Tensor, bias: Tensor | None, splits: int) -> dict[str, int]:
        """Return the constants of the kernels that merge sums of columns, those of so many programs."""
        block = triton.next_power_of_2(self.width)
        return {
            "STACK": x.shape[-4] * (len(x) if is_stacked(x) else 1),
            "CHANNELS": x.shape[-3],
            "REPEAT": x.shape[-4],
            "WIDTH": self.width,
            "BLOCK": block,
            "PARTS": min(triton.next_power_of_2(splits), max(1, 2048 // block)),
            "BIAS": bias is not None,
        }


class _GroupNormCombine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        scale, shift, rows, bias, residual, call = given
        ctx.set_materialize_grads(False)
        ctx.call = call
        x, rows, residual = channels_last(x), rows.contiguous(), None if residual is None else channels_last(residual)
        mean, variance, offsets = _compute_statistics(x, bias, call)
        operands = Operands(mean, variance, scale, shift, rows, bias, residual)
        ctx.save_for_backward(x, *operands, offsets)
        y, tiling = torch.empty_like(x, dtype=call.dtype), Tiling.of(by_sample(x), TILES["apply"])
        constants = operands.constants(x, repeat=x.shape[-4], width=call.width)
        operands.launch("apply", call, tiling, [x], [y], follows=True, **constants)
        return y, y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *saved, offsets = ctx.saved_tensors
        call, (_, _, _, learned, *_) = ctx.call, ctx.needs_input_grad
        given = [channels_last(gradient) for gradient in gradients if gradient is not None]
        if not given:
            return (None,) * len(ctx.needs_input_grad)
        operands = Operands(*saved)
        mean, variance, scale, shift, rows, bias, residual = operands
        ds, partial, tiling, constants = operands.backward_sums(call, x, given, learned, width=call.width)
        samples, channels = x.shape[-4], len(scale)
        sums = torch.empty(2, len(mean), dtype=torch.float32, device=x.device)
        dbias = torch.empty(0 if bias is None else samples, channels, dtype=torch.float32, device=x.device)
        launch(
            _merge_sums, len(mean), partial.data, scale, variance, offsets, sums, dbias, call.eps, *tiling.sizes,
            follows=True, **call.constants(x, bias, tiling.splits),
        )  # fmt: skip
        tiling, dx = Tiling.of(by_sample(x), TILES["backward_input"]), torch.empty_like(x)
        operands.launch(
            "backward_input", call, tiling, [ds, x], [sums, dx], follows=True, **constants, TRAINING=True, GROUPED=True
        )
        drows = torch.empty_like(rows) if learned else None
        dshift, dscale = partial.add_up(drows)
        return (
            dx,
            dscale.to(scale.dtype),
            dshift.to(shift.dtype),
            drows,
            None if bias is None else dbias.sum(0).to(bias.dtype),
            None if residual is None else ds,
            None,
        )


def _compute_statistics(x: Tensor, bias: Tensor | None, call: _Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean and the variance of x + bias for each sample and group, and of each channel its mean less that of
    its group where there is a bias."""
    each, samples, channels = by_sample(x), x.shape[-4], all_channels(x)
    tiling = Tiling.of(each, TILES["partial_statistics"])
    partial = torch.empty(3, tiling.splits, samples * channels, dtype=torch.float32, device=x.device)
    launch(partial_statistics, tiling.programs, x, partial, *tiling.sizes, follows=False, **tiling.constants)
    mean, variance = torch.empty(2, samples * channels // call.width, dtype=torch.float32, device=x.device)
    offsets = torch.empty(0 if bias is None else samples, channels, dtype=torch.float32, device=x.device)
    launch(
        _merge_statistics, len(mean), partial, bias, mean, variance, offsets, *tiling.sizes,
        follows=True, ROWS=tiling.constants["ROWS"], **call.constants(x, bias, tiling.splits),
    )  # fmt: skip
    return mean, variance, offsets


@triton.jit
def _merge_statistics(
    partial_ptr, bias_ptr, mean_ptr, variance_ptr, offsets_ptr, pixels, tiles, splits, STACK: tl.constexpr,
    CHANNELS: tl.constexpr, REPEAT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr, BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Merge the statistics of the columns of a group in float64, where the squares of float32 numbers are exact."""
    wait_for_previous(EARLY)
    ALL: tl.constexpr = STACK // REPEAT * CHANNELS
    group, sample = tl.program_id(0) % (ALL // WIDTH), tl.program_id(0) // (ALL // WIDTH)
    column = tl.arange(0, BLOCK)[None, :]
    known = column < WIDTH
    channel = group * WIDTH + column
    owner = group * WIDTH // CHANNELS
    partial_ptr += (owner * (REPEAT - 1) + sample) * CHANNELS  # of the owner's images, the sample
    sums = tl.zeros([PARTS, BLOCK], tl.float64)
    squares = tl.zeros([PARTS, BLOCK], tl.float64)
    for part in range(0, splits, PARTS):
        split = part + tl.arange(0, PARTS)[:, None]
        at, inside = partial_ptr + split * (STACK * CHANNELS) + channel, (split < splits) & known
        size = splits * (STACK * CHANNELS)
        mean = tl.load(at, mask=inside, other=0.0).to(tl.float64)
        mean += tl.load(at + size, mask=inside, other=0.0)
        around = tl.load(at + 2 * size, mask=inside, other=0.0)
        total = mean * count_rows(split, pixels, tiles, splits, ROWS)
        sums += total
        squares += around + total * mean
    levels = tl.sum(sums, axis=0)[None, :] / pixels
    around = tl.sum(squares, axis=0)[None, :] / pixels - levels * levels
    if BIAS:
        levels += tl.load(bias_ptr + channel, mask=known, other=0.0).to(tl.float32)
    mean = tl.sum(levels, axis=1)[:, None] / WIDTH
    levels = tl.where(known, levels - mean, 0.0)
    variance = tl.sum(around + levels * levels, axis=1)[:, None] / WIDTH
    variance = tl.maximum(variance, 0.0, propagate_nan=tl.PropagateNan.ALL)
    to = tl.program_id(0) + tl.zeros([1, 1], tl.int32)
    tl.store(mean_ptr + to, mean.to(tl.float32))
    tl.store(variance_ptr + to, variance.to(tl.float32))
    if BIAS:
        tl.store(offsets_ptr + sample * ALL + channel, levels.to(tl.float32), mask=known)


@triton.jit
def _merge_sums(
    partial_ptr, scale_ptr, variance_ptr, offsets_ptr, sums_ptr, dbias_ptr, eps, pixels, tiles, splits,
    STACK: tl.constexpr, CHANNELS: tl.constexpr, REPEAT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr, BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute the means over a group of scale * ds and of scale * ds * xhat; and of each channel the sum of dx."""
    wait_for_previous(EARLY)
    ALL: tl.constexpr = STACK // REPEAT * CHANNELS
    group, sample = tl.program_id(0) % (ALL // WIDTH), tl.program_id(0) // (ALL // WIDTH)
    column = tl.arange(0, BLOCK)[None, :]
    known = column < WIDTH
    channel = group * WIDTH + column
    first = tl.zeros([PARTS, BLOCK], tl.float64)
    second = tl.zeros([PARTS, BLOCK], tl.float64)
    for part in range(0, splits, PARTS):
        split = part + tl.arange(0, PARTS)[:, None]
        at, inside = partial_ptr + (split * REPEAT + sample) * ALL + channel, (split < splits) & known
        first += tl.load(at, mask=inside, other=0.0)
        second += tl.load(at + splits * (STACK * CHANNELS), mask=inside, other=0.0)
    scale = tl.load(scale_ptr + channel, mask=known, other=0.0).to(tl.float32)
    of_shift = scale * tl.sum(first, axis=0)[None, :].to(tl.float32)
    of_slope = scale * tl.sum(second, axis=0)[None, :].to(tl.float32)
    level = tl.sum(of_shift, axis=1)[:, None] / pixels / WIDTH
    tilt = tl.sum(of_slope, axis=1)[:, None] / pixels / WIDTH
    to = tl.program_id(0) + tl.zeros([1, 1], tl.int32)
    tl.store(sums_ptr + to, level)
    tl.store(sums_ptr + tl.num_programs(0) + to, tilt)
    if BIAS:
        inverse = tl.rsqrt(tl.load(variance_ptr + to) + eps)
        offset = tl.load(offsets_ptr + sample * ALL + channel, mask=known, other=0.0)
        dbias = inverse * (of_shift - pixels * (level + offset * inverse * tilt))
        tl.store(dbias_ptr + sample * ALL + channel, dbias, mask=known)
