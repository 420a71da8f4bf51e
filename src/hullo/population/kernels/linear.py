"""Linear layers of a population with their biases: the product adds to a result that starts as the bias.

`torch.baddbmm` copies a broadcast bias slowly, and its gradient is a slow reduction; both are kernels here.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo._compat import wanted_gradients
from hullo.population.kernels import multiply, processors

BLOCK, LEAST_ROWS = 64, 256
"""Of a product: the rows and columns of a block of the result, and the rows of a part of the features."""
LEAST_SUMMED, PROGRAMS = 256, 16
"""Of sums over rows: the least rows that a program adds up, and the most programs for each multiprocessor."""


def linear(x: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """Return x @ weights.mT + bias.

    Args:
        x: features of each member, (members, rows, inputs).
        weights: (members, outputs, inputs).
        bias: (members, outputs). All three have one dtype.
    """
    y: Tensor = _Linear.apply(x, weights, bias)
    return y


def multiply_transposed(x: Tensor, y: Tensor) -> Tensor:
    """Return x.mT @ y, as the gradients of weights are, for (members, rows, columns) each.

    The product for each member is one block for a few columns, and libraries give a block to one multiprocessor: where
    that leaves most of them idle, rows are multiplied in parts, whose products are added up.
    """
    members, rows, columns = x.shape
    blocks, parts = members * triton.cdiv(columns, BLOCK) * triton.cdiv(y.shape[2], BLOCK), 1
    while x.dtype == torch.float32 and rows % (2 * parts) == 0 and rows >= 2 * parts * LEAST_ROWS:
        if blocks * parts >= 2 * processors(x):
            break
        parts *= 2
    if parts == 1:
        return multiply(x.mT, y)
    one, other = (item.reshape(members * parts, rows // parts, item.shape[2]) for item in (x, y))
    return torch.bmm(one.mT, other).view(members, parts, columns, y.shape[2]).sum(1)


class LongProduct(torch.autograd.Function):
    """Multiply features of many rows, (members, rows, inputs), by the weights of each member."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight = wanted_gradients(ctx, 2)
        dx = LongProduct.apply(gradient, weight.mT) if wants_x else None
        return dx, multiply_transposed(x, gradient) if wants_weight else None


def column_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sums over rows of (members, rows, parts, columns), as (parts, members, columns).

    Sums are taken in float32 and in a fixed order, so that every run gives the same bits: those of a few rows each, as
    many as keep the device busy, and then those of these.
    """
    members, rows, parts, columns = x.shape
    width = parts * columns
    lanes = members * triton.cdiv(width, 64)
    splits = max(1, min(rows // LEAST_SUMMED, PROGRAMS * processors(x) // lanes))
    block = 64 if splits > 1 or lanes >= 2 * processors(x) else 16
    shape = (parts, members, columns) if splits == 1 else (members, splits, parts, columns)
    sums = torch.empty(shape, dtype=dtype if splits == 1 else torch.float32, device=x.device)
    tile = min(2048 // block, triton.next_power_of_2(rows))
    with torch.cuda.device_of(x):
        _sum[(triton.cdiv(width, block), members, splits)](
            x.contiguous(), sums, rows, columns, width, ROWS=tile, COLUMNS=block
        )
    return sums if splits == 1 else column_sums(sums, dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weights)
        if len(x) == 1:  # the library's kernels for one product add a bias themselves
            return F.linear(x[0], weights[0], bias[0]).unsqueeze(0)
        return _repeat(bias.contiguous(), x.shape[1]).baddbmm_(x, weights.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weights = ctx.saved_tensors
        wants_x, wants_weights, wants_bias = wanted_gradients(ctx, 3)
        dx, dweights, dbias = None, None, None
        again = torch.is_grad_enabled()  # the gradients are differentiated, too
        if wants_x:
            dx = LongProduct.apply(gradient, weights) if again else multiply(gradient, weights)
        if wants_weights:
            dweights = multiply_transposed(x, gradient).mT
        if wants_bias:
            dbias = gradient.sum(1) if again else column_sums(gradient.unsqueeze(2), gradient.dtype)[0]
        return dx, dweights, dbias


def _repeat(bias: Tensor, rows: int) -> Tensor:
    """Return the biases (members, columns) as (members, rows, columns), for each row again."""
    members, columns = bias.shape
    y = torch.empty(members, rows, columns, dtype=bias.dtype, device=bias.device)
    block = min(256, triton.next_power_of_2(columns))
    tile = min(4096 // block, triton.next_power_of_2(rows))
    grid = (triton.cdiv(columns, block), triton.cdiv(rows, tile), members)
    with torch.cuda.device_of(y):
        _fill[grid](bias, y, rows, columns, ROWS=tile, COLUMNS=block)
    return y


@triton.jit
def _fill(bias_ptr, y_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    member = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    bias = tl.load(bias_ptr + member * columns + column, mask=column < columns, other=0.0)
    at = (member * rows + row) * columns + column
    tl.store(y_ptr + at, tl.broadcast_to(bias, [ROWS, COLUMNS]), mask=(row < rows) & (column < columns))


@triton.jit
def _sum(x_ptr, sums_ptr, rows, columns, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    member = tl.program_id(1).to(tl.int64)
    split, splits = tl.program_id(2), tl.num_programs(2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(split * ROWS, rows, splits * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        at = (member * rows + row) * width + column
        sums += tl.load(x_ptr + at, mask=(row < rows) & (column < width), other=0.0).to(tl.float32)
    total = tl.sum(sums, axis=0)[None, :]
    if splits == 1:
        to = (column // columns * tl.num_programs(1) + member) * columns + column % columns
    else:
        to = (member * splits + split) * width + column
    tl.store(sums_ptr + to, total.to(sums_ptr.dtype.element_ty), mask=column < width)
