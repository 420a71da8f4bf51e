"""Bias and activation after the products of a population's linear layers, in one pass forward and one backward.

    y = combine(x + bias, rows, bases)

for features (members, rows, columns), each member with its own bias and coefficients. Only x is kept. A program takes
COLUMNS of a member, ROWS of its rows at a time, and keeps the sums for the gradients in registers;
:func:`hullo.population.kernels.linear.column_sums` adds up those of several programs in a fixed order.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import functools
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from hullo.bases import Base
from hullo.functional import backward
from hullo.kernels import CombineSpec
from hullo.kernels.codegen import fill, formulas
from hullo.kernels.triton import build
from hullo.parametrizations import get_parametrization
from hullo.population.kernels import processors
from hullo.population.kernels.linear import column_sums

SIZE, LEAST_TILES, PROGRAMS = 2048, 4, 32
"""Entries of a tile; in the backward pass, the tiles of a program and the programs for each multiprocessor."""


def combine_biased(x: Tensor, bias: Tensor | None, rows: Tensor, bases: tuple[Base, ...]) -> Tensor:
    """Return the activation of x + bias.

    Args:
        x: features, (members, rows, columns).
        bias: (members, columns); None adds nothing.
        rows: coefficients, N for all members or a row of N for each.
        bases: the N base functions; each has a formula.
    """
    if x.dim() != 3 or rows.shape not in ((len(bases),), (len(x), len(bases))):
        raise ValueError(
            f"features of shape {tuple(x.shape)} and coefficients of shape {tuple(rows.shape)}; give "
            f"(members, rows, columns) and ({len(bases)},) or (members, {len(bases)})"
        )
    y: Tensor = _CombineBiased.apply(x, bias, rows, bases)
    return y


class _CombineBiased(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, rows: Tensor, bases: tuple[Base, ...]) -> Tensor:
        x, rows, bias = x.contiguous(), rows.contiguous(), None if bias is None else bias.contiguous()
        ctx.save_for_backward(x, bias, rows)
        ctx.bases = bases
        y = torch.empty_like(x)
        constants = _constants(x, bias, rows)
        grid = (triton.cdiv(x.shape[2], constants["COLUMNS"]), triton.cdiv(x.shape[1], constants["ROWS"]), len(x))
        with torch.cuda.device_of(x):
            _kernels(bases, x.dtype)["forward"][grid](
                x, x if bias is None else bias, rows, y, x.shape[1], x.shape[2], **constants
            )
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, bias, rows = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradients are differentiated, too, by kernels of their own
            spec = CombineSpec(ctx.bases, get_parametrization("given"), channel_dim=0)
            dx, of_rows = backward(gradient, x if bias is None else x + bias.unsqueeze(1), rows, spec, "triton")
            return dx, None if bias is None else dx.sum(1), of_rows if ctx.needs_input_grad[2] else None, None
        members, height, columns = x.shape
        constants = _constants(x, bias, rows)
        tiles, lanes = triton.cdiv(height, constants["ROWS"]), triton.cdiv(columns, constants["COLUMNS"])
        splits = max(1, min(tiles // LEAST_TILES, PROGRAMS * processors(x) // (lanes * members)))
        learned = ctx.needs_input_grad[2]
        parts = 1 + learned * len(ctx.bases)
        last = splits == parts == 1  # what is written are the sums themselves
        dtype = bias.dtype if last and bias is not None else torch.float32
        dx = torch.empty_like(x)
        partial = torch.empty(members, splits, parts, columns, dtype=dtype, device=x.device)
        with torch.cuda.device_of(x):
            _kernels(ctx.bases, x.dtype)["backward"][(lanes, splits, members)](
                gradient.contiguous(), x, x if bias is None else bias, rows, dx, partial, height, columns, tiles,
                PARTS=parts, **constants,
            )  # fmt: skip
        if bias is None and not learned:
            return dx, None, None, None
        sums = partial.view(parts, members, columns) if last else column_sums(partial, torch.float32)
        drows = sums[1:].sum(2).mT if learned else None
        if drows is not None and rows.dim() == 1:
            drows = drows.sum(0)
        return dx, None if bias is None else sums[0].to(bias.dtype), drows, None


def _constants(x: Tensor, bias: Tensor | None, rows: Tensor) -> dict[str, Any]:
    columns = min(128, triton.next_power_of_2(x.shape[2]))
    return {
        "EACH": rows.dim() == 2,
        "BIAS": bias is not None,
        "ROWS": min(SIZE // columns, triton.next_power_of_2(x.shape[1])),
        "COLUMNS": columns,
        "num_warps": 4,
    }


@functools.cache
def _kernels(bases: tuple[Base, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Return the kernels `forward` and `backward` of a set of bases."""
    numbers = range(len(bases))
    values, slopes = formulas(bases)
    store = "tl.store(to + {0} * columns, tl.sum({1}, axis=0)[None, :].to(partial_ptr.dtype.element_ty), mask=known)"
    parts = {
        "COLUMNS": _COLUMNS.strip().splitlines()
        + [f"c{i} = tl.load(rows_ptr + own * {len(bases)} + {i}).to(tl.float32)" for i in numbers],
        "TILE": _TILE.strip().splitlines(),
        "VALUES": values,
        "VALUE": [f"y = {' + '.join(f'c{i} * y{i}' for i in numbers)}"],
        "SLOPES": slopes,
        "SLOPE": [f"dx = dy * ({' + '.join(f'c{i} * s{i}' for i in numbers)})"],
        "ZERO": [f"sum{i} = tl.zeros([ROWS, COLUMNS], tl.float32)" for i in numbers],
        "ADD": [f"sum{i} += dy * y{i}" for i in numbers],
        "STORE_BIAS": [store.format(0, "total")],
        "STORE": [store.format(i + 1, f"sum{i}") for i in numbers],
    }
    label = f"biased({','.join(base.name for base in bases)}) on {dtype}"
    return build(fill(_TEMPLATE, parts), label, dtype)


_TEMPLATE = """
@triton.jit
def forward(
    x_ptr, bias_ptr, rows_ptr, y_ptr, height, columns,
    EACH: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    $COLUMNS
    tile = tl.program_id(1)
    $TILE
    $VALUES
    $VALUE
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward(
    dy_ptr, x_ptr, bias_ptr, rows_ptr, dx_ptr, partial_ptr, height, columns, tiles,
    PARTS: tl.constexpr, EACH: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    $COLUMNS
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    $ZERO
    split, splits = tl.program_id(1), tl.num_programs(1)
    for tile in range(split, tiles, splits):
        $TILE
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        $VALUES
        $SLOPES
        $SLOPE
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        total += tl.where(inside, dx, 0.0)
        if PARTS > 1:
            $ADD
    to = partial_ptr + (member * splits + split) * PARTS * columns + column
    $STORE_BIAS
    if PARTS > 1:
        $STORE
"""

# Done once per program: its columns and their numbers.
_COLUMNS = """
member = tl.program_id(2).to(tl.int64)
own = member if EACH else 0
column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
known = column < columns
if BIAS:
    bias = tl.load(bias_ptr + member * columns + column, mask=known, other=0.0).to(tl.float32)
"""

# Done for each tile.
_TILE = """
row = tile * ROWS + tl.arange(0, ROWS)[:, None]
inside = known & (row < height)
at = (member * height + row) * columns + column
x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
if BIAS:
    x += bias
"""
