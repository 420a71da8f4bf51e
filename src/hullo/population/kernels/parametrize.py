"""The coefficients of a population on a GPU: one kernel forward, one backward, for all members and sites.

A program takes a block of rows, each with all its bases, and maps raw parameters to coefficients by the
parametrization of each row, as :mod:`hullo.parametrizations` does. Rows are written call by call, so that the rows of
each call are a slice of one buffer, and nothing is copied afterwards. A threshold needs no sort: with so few bases, all
pairs are compared. No row depends on another, so members do not either; where several rows are computed from one, their
gradients are summed.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.kernels import device_math
from hullo.population.activations import NAMES
from hullo.population.kernels.launch import once_differentiable

UNUSED, FIXED, SLOPE, REST, GIVEN, PROJECTION, SOFTMAX, RECENTRED, FREE, CLAMPED, SOFTPLUS = map(
    tl.constexpr, range(len(NAMES))
)
EPSILON = tl.constexpr(torch.finfo(torch.float32).eps)
PAIRS = 128
"""Pairs of bases that a program compares. It is one warp, so nothing is synchronized; a thread has four pairs."""


def parametrize(
    raw: Tensor, fixed: Tensor, codes: Tensor, order: Tensor, uses: Tensor, heights: Sequence[int]
) -> tuple[Tensor, ...]:
    """Return the coefficients of each call, (rows of the call, N), parts of one buffer.

    Args:
        raw: raw parameters, (K, R, N).
        fixed: those that are not learned, like `raw`, in float64.
        codes: the parametrization of each number, like `raw`, as in :data:`hullo.population.activations.CODES`.
        order: which of the K * R rows each row of the buffer is made of.
        uses: which rows of the buffer are made of each row, (K * R, most), padded with -1.
        heights: the number of rows of each call.
    """
    made: tuple[Tensor, ...] = _Parametrize.apply(raw, fixed, codes, order, uses, heights)
    return made


def restrict(raw: Tensor, gradient: Tensor, codes: Tensor) -> Tensor:
    """Restrict the gradient of raw parameters, (K, R, N), to feasible directions of coefficients."""
    restricted = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(raw):
        _launch(_restrict, (raw.contiguous(), gradient.contiguous(), restricted), codes, raw.shape[0] * raw.shape[1])
    return restricted


class _Parametrize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, *given: Any) -> tuple[Tensor, ...]:
        fixed, codes, order, uses, heights = given
        coefficients = raw.new_empty(len(order), raw.shape[2])
        _launch(_transform, (raw.contiguous(), fixed, coefficients, order), codes, len(order))
        ctx.save_for_backward(coefficients, codes, uses)
        ctx.shape, ctx.heights = raw.shape, heights
        ctx.set_materialize_grads(False)  # a call whose result is not used has no gradient
        return torch.split(coefficients, list(heights))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        coefficients, codes, uses = ctx.saved_tensors
        parts = zip(torch.split(coefficients, list(ctx.heights)), gradients, strict=True)
        gradient = torch.cat([torch.zeros_like(own) if given is None else given for own, given in parts])
        draw = coefficients.new_empty(ctx.shape)
        _launch(_transform_backward, (coefficients, gradient, draw, uses), codes, len(uses), MOST=uses.shape[1])
        return draw, None, None, None, None, None


def _launch(kernel: Any, tensors: tuple[Tensor, ...], codes: Tensor, rows: int, **constants: int) -> None:
    bases = codes.shape[-1]
    columns = triton.next_power_of_2(bases)
    block = max(1, PAIRS // columns**2)
    kernel[triton.cdiv(rows, block),](
        *tensors, codes, rows, BASES=bases, COLUMNS=columns, ROWS=block, num_warps=1, **constants
    )


@triton.jit
def _transform(
    raw_ptr, fixed_ptr, coefficients_ptr, order_ptr, codes_ptr, rows,
    BASES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    source = tl.load(order_ptr + row, mask=row < rows, other=0)
    at, inside, codes, learned = _load_codes(codes_ptr, source, row < rows, BASES, COLUMNS)
    fixed = tl.load(fixed_ptr + at, mask=inside & ~learned, other=0.0).to(tl.float32)
    raw = tl.where(learned, tl.load(raw_ptr + at, mask=inside & learned, other=0.0).to(tl.float32), fixed)
    used = codes != UNUSED
    coefficients = tl.where((codes == FIXED) | (codes == GIVEN), raw, 0.0)
    coefficients = tl.where(codes == PROJECTION, _project(raw, used), coefficients)
    coefficients = tl.where(codes == SOFTMAX, _softmax(raw, used), coefficients)
    coefficients = tl.where(codes == RECENTRED, _recentre(raw, used, 1.0), coefficients)
    free = tl.where((codes == FREE) | (codes == SLOPE), raw, 0.0)
    coefficients = tl.where(codes == REST, 1.0 - tl.sum(free, 1, keep_dims=True), coefficients + free)
    coefficients = tl.where(codes == CLAMPED, device_math.positive_part(raw), coefficients)
    coefficients = tl.where(codes == SOFTPLUS, _softplus(raw), coefficients)
    to = row * BASES + tl.arange(0, COLUMNS)[None, :]
    tl.store(coefficients_ptr + to, coefficients.to(coefficients_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _transform_backward(
    coefficients_ptr, gradient_ptr, draw_ptr, uses_ptr, codes_ptr, rows,
    BASES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    at, inside, codes, learned = _load_codes(codes_ptr, row, row < rows, BASES, COLUMNS)
    column = tl.arange(0, COLUMNS)[None, :]
    gradient = tl.zeros([ROWS, COLUMNS], tl.float32)
    coefficients = tl.zeros([ROWS, COLUMNS], tl.float32)
    for i in range(MOST):
        use = tl.load(uses_ptr + row * MOST + i, mask=row < rows, other=-1)
        there = inside & (use >= 0)
        gradient += tl.load(gradient_ptr + use * BASES + column, mask=there, other=0.0).to(tl.float32)
        coefficients = tl.where(
            there, tl.load(coefficients_ptr + use * BASES + column, mask=there, other=0.0).to(tl.float32), coefficients
        )
    used = codes != UNUSED
    centered = (codes == PROJECTION) | (codes == RECENTRED)
    draw = tl.where(centered, _recentre(gradient, used, 0.0), 0.0)
    draw = tl.where(codes == SOFTMAX, _softmax_backward(coefficients, gradient, used), draw)
    rest = tl.sum(tl.where(codes == REST, gradient, 0.0), 1, keep_dims=True)
    draw = tl.where((codes == FREE) | (codes == SLOPE), gradient - rest, draw)
    draw = tl.where((codes == GIVEN) | (codes == CLAMPED), gradient, draw)
    draw = tl.where(codes == SOFTPLUS, gradient * -device_math.expm1(-coefficients), draw)
    tl.store(draw_ptr + at, tl.where(learned, draw, 0.0).to(draw_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _restrict(
    raw_ptr, gradient_ptr, restricted_ptr, codes_ptr, rows,
    BASES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    at, inside, codes, _ = _load_codes(codes_ptr, row, row < rows, BASES, COLUMNS)
    raw = tl.load(raw_ptr + at, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
    known, used = tl.arange(0, COLUMNS)[None, :] < BASES, codes != UNUSED
    restricted = tl.where(codes == PROJECTION, _feasible(_project(raw, used), gradient, used, known), gradient)
    at_zero = (codes == CLAMPED) & ~(raw > 0)
    restricted = tl.where(at_zero, tl.minimum(gradient, 0.0, propagate_nan=tl.PropagateNan.ALL), restricted)
    tl.store(restricted_ptr + at, restricted.to(restricted_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _load_codes(codes_ptr, source, known, BASES: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the offsets of rows, which of their entries exist, and the code of each, and whether it is learned."""
    column = tl.arange(0, COLUMNS)[None, :]
    inside = known & (column < BASES)
    at = source * BASES + column
    codes = tl.load(codes_ptr + at, mask=inside, other=0).to(tl.int32)
    return at, inside, tl.abs(codes), codes > 0


# The parametrizations. A maximum or minimum ignores NaN; a sum does not, and shows whether there is any.


@triton.jit
def _project(raw, used):
    """Return max(r - t, 0) with t = max over i of (sum of the r that reach r_i - 1) / (how many do)."""
    raw = tl.where(used, raw, float("-inf"))
    raw -= tl.floor(tl.max(raw, 1, keep_dims=True))  # as in the plain form, so that large numbers keep the 1
    reaches = raw[:, None, :] >= raw[:, :, None]
    thresholds = tl.div_rn(_sum_counted(raw, reaches) - 1.0, tl.sum(reaches.to(tl.float32), 2))
    threshold = _propagate_nan(tl.max(thresholds, 1, keep_dims=True), raw)
    return tl.maximum(raw - threshold, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _feasible(coefficients, gradient, used, known):
    """Return g - t, clamped to at most 0 where c = 0, where t is the least mean of the g inside and those up to a g_i.

    This includes the mean of the g inside alone: if that is the least, no g at zero is below the least g inside.
    With a gradient of inf no coefficient can change.
    """
    gradient = tl.where(used, gradient, float("inf"))
    inside = coefficients > 8 * EPSILON
    counted = inside[:, None, :] | (gradient[:, None, :] <= gradient[:, :, None])
    means = tl.div_rn(_sum_counted(gradient, counted), tl.sum(counted.to(tl.float32), 2))
    threshold = _propagate_nan(tl.min(means, 1, keep_dims=True), tl.where(known, gradient, 0.0))
    shifted = gradient - threshold
    return tl.where(inside, shifted, tl.minimum(shifted, 0.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _sum_counted(numbers, counted):
    """Return for each base the sum of the numbers that are counted with it."""
    return tl.sum(tl.where(counted, numbers[:, None, :], 0.0), 2)


@triton.jit
def _propagate_nan(threshold, numbers):
    """Return a row's threshold, NaN where the sum of its numbers is NaN."""
    total = tl.sum(numbers, 1, keep_dims=True)
    return tl.where(total == total, threshold, total)


@triton.jit
def _softmax(raw, used):
    raw = tl.where(used, raw, float("-inf"))
    powers = tl.exp(raw - tl.max(raw, 1, keep_dims=True))
    return tl.div_rn(powers, tl.broadcast_to(tl.sum(powers, 1, keep_dims=True), powers.shape))


@triton.jit
def _softmax_backward(coefficients, gradient, used):
    gradient = tl.where(used, gradient, 0.0)
    return coefficients * (gradient - tl.sum(coefficients * gradient, 1, keep_dims=True))


@triton.jit
def _recentre(numbers, used, TOTAL: tl.constexpr):
    """Shift the used numbers alike so that they sum to TOTAL."""
    missing = TOTAL - tl.sum(tl.where(used, numbers, 0.0), 1, keep_dims=True)
    return tl.where(used, numbers + tl.div_rn(missing, tl.sum(used.to(tl.float32), 1, keep_dims=True)), 0.0)


@triton.jit
def _softplus(raw):
    return device_math.positive_part(raw) + device_math.log1p(tl.exp(-tl.abs(raw)))
