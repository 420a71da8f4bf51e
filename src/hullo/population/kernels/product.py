"""Compute products of a population's matrices whose rows do not begin at multiples of 16 bytes.

With few rows per member, a linear layer takes as long as reading its weights. Libraries read weights of such sizes, as
1250 x 500 in bfloat16, in small pieces; the kernel here reads as many numbers at once as the sizes allow.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806 (constants are in capitals, in Triton)
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.population.kernels.layouts import block
from hullo.population.kernels.row_conv import is_tuned_for


class Tile(NamedTuple):
    """Hold the settings of the kernel: a block of the result, the inner numbers per step, warps, steps in advance."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


FEW_ROWS, FEW_INNER = Tile(32, 64, 128, 4, 3), Tile(64, 128, 32, 4, 1)
"""For both passes through a layer and for the gradient of its weights, as measured on an H200."""

MOST_ROWS, LEAST_WEIGHTS = 64, 2**17
"""The most rows of a member, and the least weights, for which the kernel is used."""


def is_faster(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the kernel multiplies (members, rows, inner) by (members, inner, columns) faster than cuBLAS."""
    inner, columns = weight.shape[1:]
    misaligned = inner % 8 != 0 or columns % 8 != 0
    even = inner % 2 == columns % 2 == 0  # a pair is the least that is read in advance
    few = 16 <= x.shape[1] <= MOST_ROWS and inner * columns >= LEAST_WEIGHTS
    return misaligned and even and few and is_tuned_for(dtype, x.device)


class Product(torch.autograd.Function):
    """Multiply the features and the weights of each member."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, FEW_ROWS)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradients are differentiated, too
            return torch.bmm(gradient, weight.mT), torch.bmm(x.mT, gradient)
        dweight = multiply(x.mT, gradient, FEW_INNER)
        return multiply(gradient, weight.mT, FEW_ROWS) if ctx.needs_input_grad[0] else None, dweight


def multiply(x: Tensor, y: Tensor, tile: Tile) -> Tensor:
    """Return the products of matrices, (members, rows, columns)."""
    members, rows, inner = x.shape
    columns = y.shape[2]
    product = torch.empty(members, rows, columns, dtype=x.dtype, device=x.device)
    rows_block = min(tile.rows, block(rows))
    blocks = triton.cdiv(rows, rows_block) * triton.cdiv(columns, tile.columns)
    with torch.cuda.device_of(x):
        _multiply_kernel[(blocks, members)](
            x, y, product, ROWS=rows, INNER=inner, COLUMNS=columns, X_STRIDES=x.stride(), Y_STRIDES=y.stride(),
            ROWS_BLOCK=rows_block, INNER_BLOCK=tile.inner, COLUMNS_BLOCK=tile.columns,
            STAGES=tile.stages, num_warps=tile.warps,
        )  # fmt: skip
    return product


@triton.jit
def _multiply_kernel(
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
