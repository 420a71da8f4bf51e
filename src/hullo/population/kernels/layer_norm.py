"""Layer norm and RMS norm of a population, with the sum before them.

    s = x + drop(y + shift),    n = weight * (s - mean) / sqrt(variance + eps) + bias

for features (members, rows, columns): each member has its own weight and bias, each row its own statistics. y is the
product of a linear layer and `shift` that layer's bias, so that a residual block ends, perhaps with a dropout, and the
next begins in one pass over memory, which may also write a copy of n for products under autocast. The backward pass
adds up the gradients of s, n and the copy in one pass, too. Column sums
for the gradients of weight, bias and shift are kept in registers and written once per program; a second kernel adds
them up in a fixed order. RMS norm subtracts no mean and has no bias. Statistics are computed in float32.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.population.kernels import processors
from hullo.population.kernels.dropout import NO_DROPOUT, Dropout, keep_tile, open_keys
from hullo.population.kernels.launch import once_differentiable
from hullo.population.kernels.linear import column_sums

FORWARD, BACKWARD, WARPS = 4096, 2048, 4
"""Number of entries that a program takes at a time, and its warps."""
PROGRAMS = 8
"""In the backward pass, for each multiprocessor."""


def layer_norm(
    x: Tensor,
    y: Tensor | None,
    shift: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    eps: float,
    rms: bool = False,
    dtype: torch.dtype,
    dropout: Dropout | None = None,
    copy: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the sum s, the normalized features n and perhaps a copy of n; s is x itself if there is no y.

    Args:
        x: features, (members, rows, columns).
        y: features like x that are added, in any dtype.
        shift: added to each row of y, (members, columns).
        weight, bias: (members, columns).
        eps: added to variances.
        rms: whether rows are divided by their root mean square alone.
        dtype: of n. The dtype of s is what PyTorch gives to x + y.
        dropout: of y + shift, if there is one; its `first` counts rows, not samples.
        copy: the dtype of the copy, if there is one.
    """
    s, n, copied = _LayerNorm.apply(x, y, shift, weight, bias, _Call(eps, rms, dtype, dropout, copy))
    return x if y is None else s, n, copied


class _Call(NamedTuple):
    """Hold the arguments of a call that need no gradient."""

    eps: float
    rms: bool
    dtype: torch.dtype
    dropout: Dropout | None
    copy: torch.dtype | None


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None, *given: Any) -> tuple[Tensor | None, ...]:
        *parameters, call = given
        shift, weight, bias = (None if item is None else item.contiguous() for item in parameters)
        x, y = x.contiguous(), None if y is None else y.contiguous()
        members, rows, columns = x.shape
        s = x if y is None else torch.empty_like(x, dtype=torch.promote_types(x.dtype, y.dtype))
        n = torch.empty_like(x, dtype=call.dtype)
        copy = None if call.copy is None else torch.empty_like(x, dtype=call.copy)
        statistics = torch.empty(2, members, rows, dtype=torch.float32, device=x.device)
        size = FORWARD if call.dropout is None else FORWARD // 2  # a mask takes registers
        constants = _constants(columns, size, rows, call, weight)
        seeds, steps, *_, first = call.dropout or (None, None, 0)
        grid = (triton.cdiv(rows, constants["ROWS"]), members)
        _forward[grid](
            x, y, shift, weight, bias, s, n, copy, statistics, seeds, steps, first, rows, call.eps,
            COPY=copy is not None, ADD=y is not None, SHIFT=shift is not None, BIAS=bias is not None, **constants,
        )  # fmt: skip
        ctx.save_for_backward(s, statistics, weight, seeds, steps)
        ctx.call, ctx.dtypes = call, [None if item is None else item.dtype for item in (x, y, shift, weight, bias)]
        ctx.set_materialize_grads(False)
        return None if y is None else s, n, copy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        s, statistics, weight, seeds, steps = ctx.saved_tensors
        members, rows, columns = s.shape
        ds, dn, dcopy = (None if item is None else item.contiguous() for item in gradients)
        if dn is None:  # the kernel reads at least one gradient of the norm
            dn, dcopy = torch.zeros_like(s) if dcopy is None else dcopy, None
        x_dtype, y_dtype, shift, scale, bias = ctx.dtypes
        constants = _constants(columns, BACKWARD, rows, ctx.call, weight)
        first = 0 if ctx.call.dropout is None else ctx.call.dropout.first
        tiles = triton.cdiv(rows, constants["ROWS"])
        splits = triton.cdiv(tiles, triton.cdiv(tiles, max(1, PROGRAMS * processors(s) // members)))
        parts = 3 if shift is not None else 2
        dx = torch.empty_like(s, dtype=x_dtype)
        is_one = y_dtype in (None, x_dtype) and ctx.call.dropout is None
        dy = dx if is_one else torch.empty_like(s, dtype=y_dtype)
        partial = torch.empty(members, splits, parts, columns, dtype=torch.float32, device=s.device)
        _backward[(splits, members)](
            dn, dcopy, ds, s, statistics, weight, dx, dy, partial, seeds, steps, first, rows, tiles,
            COPY=dcopy is not None, GIVEN=ds is not None, TWO=dy is not dx, PARTS=parts, **constants,
        )  # fmt: skip
        sums = column_sums(partial, torch.float32)
        dshift = None if shift is None else sums[2].to(shift)
        dweight, dbias = (None if kind is None else sums[i].to(kind) for i, kind in enumerate((scale, bias)))
        return dx, None if y_dtype is None else dy, dshift, dweight, dbias, None


def _constants(columns: int, size: int, rows: int, call: _Call, weight: Tensor | None) -> dict[str, Any]:
    width = triton.next_power_of_2(columns)
    return (NO_DROPOUT if call.dropout is None else call.dropout.constants()) | {
        "DROP": call.dropout is not None,
        "WIDTH": columns,
        "ROWS": max(1, min(size // width, triton.next_power_of_2(rows))),
        "COLUMNS": width,
        "RMS": call.rms,
        "WEIGHT": weight is not None,
        "num_warps": WARPS * max(1, width // size),
    }


@triton.jit
def _factors(
    seeds, steps, member, row, PURPOSE: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return what a dropout multiplies rows of a member with: zero, or the scale of what is kept."""
    key = open_keys(seeds, steps, member, PURPOSE)
    kept = keep_tile(key, row.to(tl.int64) * WIDTH, LEAST, WIDTH % 4 == 0, ROWS, COLUMNS)
    return tl.where(kept, SCALE, 0.0)


@triton.jit
def _forward(
    x_ptr, y_ptr, shift_ptr, weight_ptr, bias_ptr, s_ptr, n_ptr, copy_ptr, statistics_ptr, seeds, steps, first, rows,
    eps, PURPOSE: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, DROP: tl.constexpr, COPY: tl.constexpr,
    ADD: tl.constexpr, SHIFT: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, RMS: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    known = column < WIDTH
    inside = (row < rows) & known
    at = (member * rows + row) * WIDTH + column
    own = member * WIDTH + column
    s = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if SHIFT:
            y += tl.load(shift_ptr + own, mask=known, other=0.0).to(tl.float32)
        if DROP:
            y *= _factors(seeds, steps, member, first + row, PURPOSE, LEAST, SCALE, WIDTH, ROWS, COLUMNS)
        s += y
        rounded = s.to(s_ptr.dtype.element_ty)
        tl.store(s_ptr + at, rounded, mask=inside)
        s = tl.where(inside, rounded.to(tl.float32), 0.0)
    mean = tl.zeros([ROWS, 1], tl.float32)
    if not RMS:
        mean += tl.sum(s, axis=1)[:, None] / WIDTH
    centered = tl.where(known, s - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centered * centered, axis=1)[:, None] / WIDTH + eps)
    n = centered * inverse
    if WEIGHT:
        n *= tl.load(weight_ptr + own, mask=known, other=0.0).to(tl.float32)
    if BIAS:
        n += tl.load(bias_ptr + own, mask=known, other=0.0).to(tl.float32)
    tl.store(n_ptr + at, n.to(n_ptr.dtype.element_ty), mask=inside)
    if COPY:
        tl.store(copy_ptr + at, n.to(copy_ptr.dtype.element_ty), mask=inside)
    to = statistics_ptr + member * rows + row
    tl.store(to, mean, mask=row < rows)
    tl.store(to + tl.num_programs(1).to(tl.int64) * rows, inverse, mask=row < rows)


@triton.jit
def _backward(
    dn_ptr, dcopy_ptr, ds_ptr, s_ptr, statistics_ptr, weight_ptr, dx_ptr, dy_ptr, partial_ptr, seeds, steps, first,
    rows, tiles, PURPOSE: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, DROP: tl.constexpr,
    COPY: tl.constexpr, GIVEN: tl.constexpr, TWO: tl.constexpr, PARTS: tl.constexpr, WEIGHT: tl.constexpr,
    RMS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    split, splits = tl.program_id(0), tl.num_programs(0)
    member = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, COLUMNS)[None, :]
    known = column < WIDTH
    dweight = tl.zeros([ROWS, COLUMNS], tl.float32)
    dbias = tl.zeros([ROWS, COLUMNS], tl.float32)
    dshift = tl.zeros([ROWS, COLUMNS], tl.float32)
    if WEIGHT:
        weight = tl.load(weight_ptr + member * WIDTH + column, mask=known, other=0.0).to(tl.float32)
    for tile in range(split, tiles, splits):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & known
        at = (member * rows + row) * WIDTH + column
        each = tile * ROWS + tl.arange(0, ROWS)
        there = statistics_ptr + member * rows + each
        mean = tl.load(there, mask=each < rows, other=0.0)[:, None]
        inverse = tl.load(there + tl.num_programs(1).to(tl.int64) * rows, mask=each < rows, other=0.0)[:, None]
        s = tl.load(s_ptr + at, mask=inside, other=0.0).to(tl.float32)
        dn = tl.load(dn_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if COPY:
            dn += tl.load(dcopy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        xhat = tl.where(inside, (s - mean) * inverse, 0.0)
        dweight += dn * xhat
        dbias += dn
        if WEIGHT:
            dn *= weight
        dx = dn - xhat * (tl.sum(dn * xhat, axis=1)[:, None] / WIDTH)
        if not RMS:
            dx -= tl.sum(dn, axis=1)[:, None] / WIDTH
        dx *= inverse
        if GIVEN:
            dx += tl.load(ds_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if DROP:
            dx *= _factors(seeds, steps, member, first + row, PURPOSE, LEAST, SCALE, WIDTH, ROWS, COLUMNS)
        if PARTS == 3:
            dshift += tl.where(inside, dx, 0.0)
        if TWO:
            tl.store(dy_ptr + at, dx.to(dy_ptr.dtype.element_ty), mask=inside)
    to = partial_ptr + (member * splits + split) * PARTS * WIDTH + column
    tl.store(to, tl.sum(dweight, axis=0)[None, :], mask=known)
    tl.store(to + WIDTH, tl.sum(dbias, axis=0)[None, :], mask=known)
    if PARTS == 3:
        tl.store(to + 2 * WIDTH, tl.sum(dshift, axis=0)[None, :], mask=known)
