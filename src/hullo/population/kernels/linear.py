"""Linear layers of a population: products of each member's matrices, and biases.

The product adds to a result that starts as the bias: `torch.baddbmm` copies a broadcast bias slowly, and its gradient
is a slow reduction; both are kernels here. Libraries read matrices whose rows do not begin at multiples of 16 bytes, as
1250 x 500 in bfloat16, in small pieces. With few rows per member, a layer takes as long as reading its weights, and a
kernel reads as many numbers at once as the sizes allow.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806 (constants are in capitals, in Triton)
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo._compat import wanted_gradients
from hullo.population.kernels import multiply, processors
from hullo.population.kernels.layouts import block
from hullo.population.kernels.row_conv import is_tuned_for

BLOCK, LEAST_ROWS = 64, 256
"""Of a product: the rows and columns of a block of the result, and the rows of a part of the features."""
LEAST_SUMMED, PROGRAMS = 256, 16
"""Of sums over rows: the least rows that a program adds up, and the most programs for each multiprocessor."""


class Tile(NamedTuple):
    """Hold the settings of `_multiply`: a block of the result, the inner numbers per step, warps, steps in advance."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


FEW_ROWS, FEW_INNER = Tile(32, 64, 128, 4, 3), Tile(64, 128, 32, 4, 1)
"""For both passes through a layer and for the gradient of its weights, as measured on an H200."""

MOST_ROWS, LEAST_WEIGHTS = 64, 2**17
"""The most rows of a member, and the least weights, for which the kernel is used."""


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


def is_misaligned(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the kernel multiplies (members, rows, inner) by (members, inner, columns) faster than cuBLAS."""
    inner, columns = weight.shape[1:]
    misaligned = inner % 8 != 0 or columns % 8 != 0
    even = inner % 2 == columns % 2 == 0  # a pair is the least that is read in advance
    few = 16 <= x.shape[1] <= MOST_ROWS and inner * columns >= LEAST_WEIGHTS
    return misaligned and even and few and is_tuned_for(dtype, x.device)


class Product(torch.autograd.Function):
    """Multiply features, (members, rows, inputs), by the weights of each member, (members, inputs, outputs)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply_blocks(x, weight, FEW_ROWS) if is_misaligned(x, weight, x.dtype) else torch.bmm(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight = wanted_gradients(ctx, 2)
        dweight = None
        if wants_weight and is_misaligned(x, weight, x.dtype) and not torch.is_grad_enabled():
            dweight = multiply_blocks(x.mT, gradient, FEW_INNER)
        elif wants_weight:
            dweight = multiply_transposed(x, gradient)
        return Product.apply(gradient, weight.mT) if wants_x else None, dweight


def multiply_blocks(x: Tensor, y: Tensor, tile: Tile) -> Tensor:
    """Return the products of matrices, (members, rows, columns), by the kernel."""
    members, rows, inner = x.shape
    columns = y.shape[2]
    product = torch.empty(members, rows, columns, dtype=x.dtype, device=x.device)
    rows_block = min(tile.rows, block(rows))
    blocks = triton.cdiv(rows, rows_block) * triton.cdiv(columns, tile.columns)
    _multiply[(blocks, members)](
        x, y, product, ROWS=rows, INNER=inner, COLUMNS=columns, X_STRIDES=x.stride(), Y_STRIDES=y.stride(),
        ROWS_BLOCK=rows_block, INNER_BLOCK=tile.inner, COLUMNS_BLOCK=tile.columns,
        STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return product


def column_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sums over rows of (members, rows, parts, columns), as (parts, members, columns).

    Sums are taken in float32 and in a fixed order, so that every run gives the same bits: those of a few rows each, as
    many as keep the device busy, and then those of these.
    """
    members, rows, parts, columns = x.shape
    width = parts * columns
    lanes = members * triton.cdiv(width, 64)
    splits = max(1, min(rows // LEAST_SUMMED, PROGRAMS * processors(x) // lanes))
    across = 64 if splits > 1 or lanes >= 2 * processors(x) else 16
    shape = (parts, members, columns) if splits == 1 else (members, splits, parts, columns)
    sums = torch.empty(shape, dtype=dtype if splits == 1 else torch.float32, device=x.device)
    tile = min(2048 // across, triton.next_power_of_2(rows))
    _sum[(triton.cdiv(width, across), members, splits)](
        x.contiguous(), sums, rows, columns, width, ROWS=tile, COLUMNS=across
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
            dx = Product.apply(gradient, weights) if again else multiply(gradient, weights)
        if wants_weights:
            dweights = multiply_transposed(x, gradient).mT
        if wants_bias:
            dbias = gradient.sum(1) if again else column_sums(gradient.unsqueeze(2), gradient.dtype)[0]
        return dx, dweights, dbias


def _repeat(bias: Tensor, rows: int) -> Tensor:
    """Return the biases (members, columns) as (members, rows, columns), for each row again."""
    members, columns = bias.shape
    y = torch.empty(members, rows, columns, dtype=bias.dtype, device=bias.device)
    across = min(256, triton.next_power_of_2(columns))
    tile = min(4096 // across, triton.next_power_of_2(rows))
    grid = (triton.cdiv(columns, across) * triton.cdiv(rows, tile), members)
    _fill[grid](bias, y, rows, columns, ROWS=tile, COLUMNS=across)
    return y


@triton.jit
def _fill(bias_ptr, y_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    member, lanes = tl.program_id(1).to(tl.int64), tl.cdiv(columns, COLUMNS)
    row = tl.program_id(0) // lanes * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) % lanes * COLUMNS + tl.arange(0, COLUMNS)[None, :]
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


@triton.jit
def _multiply(
    x_ptr, y_ptr, product_ptr,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, X_STRIDES: tl.constexpr, Y_STRIDES: tl.constexpr,
    ROWS_BLOCK: tl.constexpr, INNER_BLOCK: tl.constexpr, COLUMNS_BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Multiply a block of rows with a block of columns; strides are constants, which show how addresses are aligned."""
    member = tl.program_id(1).to(tl.int64)
    BLOCKS: tl.constexpr = (COLUMNS + COLUMNS_BLOCK - 1) // COLUMNS_BLOCK
    row = tl.program_id(0) // BLOCKS * ROWS_BLOCK + tl.arange(0, ROWS_BLOCK)[:, None]
    column = tl.program_id(0) % BLOCKS * COLUMNS_BLOCK + tl.arange(0, COLUMNS_BLOCK)[None, :]
    x_ptr += member * X_STRIDES[0] + row * X_STRIDES[1]
    y_ptr += member * Y_STRIDES[0] + column * Y_STRIDES[2]
    product = tl.zeros([ROWS_BLOCK, COLUMNS_BLOCK], tl.float32)
    for first in tl.range(0, INNER, INNER_BLOCK, num_stages=STAGES):
        k = first + tl.arange(0, INNER_BLOCK)
        x = tl.load(x_ptr + k[None, :] * X_STRIDES[2], mask=(row < ROWS) & (k[None, :] < INNER), other=0.0)
        y = tl.load(y_ptr + k[:, None] * Y_STRIDES[1], mask=(column < COLUMNS) & (k[:, None] < INNER), other=0.0)
        product = tl.dot(x, y, product, input_precision="ieee")
    at = (member * ROWS + row) * COLUMNS + column
    tl.store(product_ptr + at, product.to(product_ptr.dtype.element_ty), mask=(row < ROWS) & (column < COLUMNS))
