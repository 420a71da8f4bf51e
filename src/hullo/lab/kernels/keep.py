"""Keeping the coefficients of a population on a GPU: one kernel forward, one backward, for all members and layers.

A program takes a block of rows, each with all its bases, and keeps every row by the way of its member. Rows are written
layer by layer, so that the rows of each layer are a part of one buffer, and nothing is moved afterwards. The reference
is :data:`hullo.lab.activations.WAYS`, whose ways these are one for one. A threshold takes no sort here: with so few
bases each is compared with each. No row sees another, so that members never do, but for the gradients of tied rows,
which a kernel of its own adds up first.
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
from torch.autograd.function import once_differentiable

from hullo.kernels import words
from hullo.lab.activations import CODES

PROJECTION, SOFTMAX, RECENTRED, FREE, GIVEN, CLAMPED, SOFTPLUS = (
    tl.constexpr(CODES[name]) for name in ("projection", "softmax", "recentred", "free", "given", "clamped", "softplus")
)
EPSILON = tl.constexpr(torch.finfo(torch.float32).eps)
PAIRS = 128
"""Pairs of bases that a program compares: it is one warp, which waits for no other, and each thread takes four."""


def keep(
    raw: Tensor, unused: Tensor, codes: Tensor, order: Tensor, widths: Sequence[int], spans: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the coefficients of each layer, (K * width, N), parts of one buffer.

    Args:
        raw: raw numbers, (K, L, N).
        unused: the bases that each member does not use, (K, 1, N).
        codes: the ways in which members keep coefficients, (K, 1, 1), as in :data:`hullo.lab.activations.CODES`.
        order: which of the K * L raw rows each row of the buffer is.
        widths: how many rows of a member each layer has; they add up to L.
        spans: the first row in the buffer and the number of rows of each set of tied rows, (sets, 2); None if there
            are none. Each row of a set gets the sum of the set's gradients.
    """
    kept: tuple[Tensor, ...] = _Keep.apply(raw, unused, codes, order, widths, spans)
    return kept


def restrict(raw: Tensor, gradient: Tensor, unused: Tensor, codes: Tensor, order: Tensor) -> Tensor:
    """Restrict the gradient of raw numbers, (K, L, N), to directions in which convex coefficients can move."""
    restricted = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    _launch(_restrict, (raw.contiguous(), gradient.contiguous(), restricted), unused, codes, order)
    return restricted


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        raw: Tensor,
        unused: Tensor,
        codes: Tensor,
        order: Tensor,
        widths: Sequence[int],
        spans: Tensor | None,
    ) -> tuple[Tensor, ...]:
        kept = raw.new_empty(len(order), raw.shape[2])
        _launch(_keep, (raw.contiguous(), kept), unused, codes, order)
        ctx.save_for_backward(kept, spans, unused, codes, order)
        ctx.widest = max(widths)
        ctx.shape, ctx.heights = raw.shape, [len(raw) * width for width in widths]
        ctx.set_materialize_grads(False)  # a layer that nobody asks about has none
        return torch.split(kept, ctx.heights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        kept, spans, *others = ctx.saved_tensors
        parts = zip(torch.split(kept, ctx.heights), gradients, strict=True)
        gradient = torch.cat([torch.zeros_like(own) if given is None else given for own, given in parts])
        if spans is not None:
            bases = kept.shape[1]
            with torch.cuda.device_of(kept):
                _tie[len(spans),](
                    gradient, spans, BASES=bases,
                    COLUMNS=triton.next_power_of_2(bases), ROWS=triton.next_power_of_2(ctx.widest),
                )  # fmt: skip
        pulled = kept.new_empty(ctx.shape)
        _launch(_pull, (kept, gradient, pulled), *others)
        return pulled, None, None, None, None, None


def _launch(kernel: Any, tensors: tuple[Tensor, ...], unused: Tensor, codes: Tensor, order: Tensor) -> None:
    rows, bases = len(order), unused.shape[-1]
    columns = triton.next_power_of_2(bases)
    block = max(1, PAIRS // columns**2)
    with torch.cuda.device_of(order):
        kernel[triton.cdiv(rows, block),](
            *tensors, unused, codes, order, rows, rows // len(codes),
            BASES=bases, COLUMNS=columns, ROWS=block, num_warps=1,
        )  # fmt: skip


@triton.jit
def _keep(
    raw_ptr, kept_ptr, unused_ptr, codes_ptr, order_ptr, rows, layers,
    BASES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    at, source, inside, codes, used = _read(unused_ptr, codes_ptr, order_ptr, rows, layers, BASES, COLUMNS, ROWS)
    raw = tl.load(raw_ptr + source, mask=inside, other=0.0).to(tl.float32)
    kept = tl.where(codes == PROJECTION, _project(raw, used), raw)
    kept = tl.where(codes == SOFTMAX, _soften(raw, used), kept)
    kept = tl.where(codes == RECENTRED, _recentre(raw, used, 1.0), kept)
    kept = tl.where(codes == FREE, _complete(raw, used), kept)
    kept = tl.where((codes == GIVEN) & ~used, 0.0, kept)
    kept = tl.where(codes == CLAMPED, tl.where(used, _positive_part(raw), 0.0), kept)
    kept = tl.where(codes == SOFTPLUS, tl.where(used, _soft_positive_part(raw), 0.0), kept)
    tl.store(kept_ptr + at, kept.to(kept_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _pull(
    kept_ptr, gradient_ptr, pulled_ptr, unused_ptr, codes_ptr, order_ptr, rows, layers,
    BASES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    at, source, inside, codes, used = _read(unused_ptr, codes_ptr, order_ptr, rows, layers, BASES, COLUMNS, ROWS)
    kept = tl.load(kept_ptr + at, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
    centred = (codes == PROJECTION) | (codes == RECENTRED)
    pulled = tl.where(centred, _recentre(gradient, used, 0.0), 0.0)
    pulled = tl.where(codes == SOFTMAX, _soften_back(kept, gradient, used), pulled)
    pulled = tl.where(codes == FREE, _complete_back(gradient, used), pulled)
    pulled = tl.where(((codes == GIVEN) | (codes == CLAMPED)) & used, gradient, pulled)
    pulled = tl.where((codes == SOFTPLUS) & used, gradient * -words.expm1(-kept), pulled)
    tl.store(pulled_ptr + source, pulled.to(pulled_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _restrict(
    raw_ptr, gradient_ptr, restricted_ptr, unused_ptr, codes_ptr, order_ptr, rows, layers,
    BASES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    _, at, inside, codes, used = _read(unused_ptr, codes_ptr, order_ptr, rows, layers, BASES, COLUMNS, ROWS)
    raw = tl.load(raw_ptr + at, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
    known = tl.arange(0, COLUMNS)[None, :] < BASES
    feasible = _feasible(_project(raw, used), gradient, used, known)
    restricted = tl.where(codes == PROJECTION, feasible, gradient)
    at_zero = (codes == CLAMPED) & ~(raw > 0)
    restricted = tl.where(at_zero, tl.minimum(gradient, 0.0, propagate_nan=tl.PropagateNan.ALL), restricted)
    tl.store(restricted_ptr + at, restricted.to(restricted_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _tie(gradient_ptr, spans_ptr, BASES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Give every row of a set of tied rows the sum of their gradients."""
    first = tl.load(spans_ptr + 2 * tl.program_id(0))
    width = tl.load(spans_ptr + 2 * tl.program_id(0) + 1)
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = (row < width) & (column < BASES)
    at = (first + row) * BASES + column
    gradient = tl.load(gradient_ptr + at, mask=inside, other=0.0)
    total = tl.sum(gradient, 0, keep_dims=True)
    tl.store(gradient_ptr + at, tl.broadcast_to(total, gradient.shape), mask=inside)


@triton.jit
def _read(
    unused_ptr, codes_ptr, order_ptr, rows, layers, BASES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Where a block's numbers lie, kept and raw, and which of them there are; the codes of rows, the bases they use."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < BASES)
    source = tl.load(order_ptr + row, mask=row < rows, other=0)
    member = source // layers
    codes = tl.load(codes_ptr + member)
    used = tl.load(unused_ptr + member * BASES + column, mask=column < BASES, other=1) == 0
    return row * BASES + column, source * BASES + column, inside, codes, used


# The ways. A maximum or a minimum passes over what is not a number; a sum does not, and says whether there is any.


@triton.jit
def _project(raw, used):
    """max(r - t, 0) with t = max over i of (sum of the r that reach r_i - 1) / (how many do)."""
    raw = tl.where(used, raw, float("-inf"))
    raw -= tl.floor(tl.max(raw, 1, keep_dims=True))  # as in the plain form, so that large numbers keep the 1
    reaches = raw[:, None, :] >= raw[:, :, None]
    thresholds = tl.div_rn(_add(raw, reaches) - 1.0, tl.sum(reaches.to(tl.float32), 2))
    threshold = _unless_lost(tl.max(thresholds, 1, keep_dims=True), raw)
    return tl.maximum(raw - threshold, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _feasible(kept, gradient, used, known):
    """g - t, clamped to at most 0 where c = 0, with t = min over i of the mean of those inside and those up to g_i.

    That is the mean of those inside alone too, where it is the least: none at zero is then below the least inside.
    Against a gradient of inf no coefficient can move.
    """
    gradient = tl.where(used, gradient, float("inf"))
    inside = kept > 8 * EPSILON
    counted = inside[:, None, :] | (gradient[:, None, :] <= gradient[:, :, None])
    means = tl.div_rn(_add(gradient, counted), tl.sum(counted.to(tl.float32), 2))
    threshold = _unless_lost(tl.min(means, 1, keep_dims=True), tl.where(known, gradient, 0.0))
    moved = gradient - threshold
    return tl.where(inside, moved, tl.minimum(moved, 0.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _add(numbers, counted):
    """For each base the sum of the numbers that are counted with it."""
    return tl.sum(tl.where(counted, numbers[:, None, :], 0.0), 2)


@triton.jit
def _unless_lost(threshold, numbers):
    """A row's threshold, not a number where the sum of its numbers is none."""
    total = tl.sum(numbers, 1, keep_dims=True)
    return tl.where(total == total, threshold, total)


@triton.jit
def _soften(raw, used):
    raw = tl.where(used, raw, float("-inf"))
    powers = tl.exp(raw - tl.max(raw, 1, keep_dims=True))
    return tl.div_rn(powers, tl.broadcast_to(tl.sum(powers, 1, keep_dims=True), powers.shape))


@triton.jit
def _soften_back(kept, gradient, used):
    gradient = tl.where(used, gradient, 0.0)
    return kept * (gradient - tl.sum(kept * gradient, 1, keep_dims=True))


@triton.jit
def _recentre(numbers, used, TOTAL: tl.constexpr):
    """Numbers, used ones shifted alike so that they sum to TOTAL."""
    missing = TOTAL - tl.sum(tl.where(used, numbers, 0.0), 1, keep_dims=True)
    return tl.where(used, numbers + tl.div_rn(missing, tl.sum(used.to(tl.float32), 1, keep_dims=True)), 0.0)


@triton.jit
def _positive_part(raw):
    return tl.maximum(raw, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _soft_positive_part(raw):
    return _positive_part(raw) + words.log1p(tl.exp(-tl.abs(raw)))


@triton.jit
def _complete(raw, used):
    last = _last(used)
    others = tl.where(used & ~last, raw, 0.0)
    return tl.where(last, 1.0 - tl.sum(others, 1, keep_dims=True), others)


@triton.jit
def _complete_back(gradient, used):
    last = _last(used)
    own = tl.sum(tl.where(last, gradient, 0.0), 1, keep_dims=True)
    return tl.where(used & ~last, gradient - own, 0.0)


@triton.jit
def _last(used):
    """Which base is the last one that a row uses."""
    position = tl.arange(0, used.shape[1])[None, :]
    return position == tl.max(tl.where(used, position, -1), 1, keep_dims=True)
