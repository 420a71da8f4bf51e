"""Drop features in one pass, with the random bits that it shares with the other kernels.

The masks are those of :func:`hullo.population.rng.dropout_mask`, to the bit: 64-bit words are computed where they are
needed, in the backward pass again, and never stored.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

import math
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.population.rng import _FIRST, _SECOND, _STEP, Purpose

STEP, FIRST, SECOND = (tl.constexpr(word % 2**64) for word in (_STEP, _FIRST, _SECOND))
BLOCK = 1024


def drop(x: Tensor, seeds: Tensor, steps: Tensor, number: int, rate: float, first: int = 0) -> Tensor:
    """Return features (members, B, F), a part of them zero and the others scaled by 1 / (1 - rate).

    Args:
        x: the features.
        seeds, steps: of each member, (members,).
        number: which of the network's dropouts this is, counted from 0.
        rate: the share that is dropped.
        first: the number of the first of the B rows, where they are a part of a larger batch.
    """
    dropped: Tensor = _Drop.apply(x, seeds, steps, draws(number, rate), first)
    return dropped


def draws(number: int, rate: float) -> dict[str, Any]:
    """Return the constants of a dropout for kernels."""
    if not 0 <= rate < 1:
        raise ValueError(f"rate={rate!r}: give a share from 0 to below 1")
    return {
        "PURPOSE": int(Purpose.DROPOUT) + number,
        "LEAST": round(rate * 2**16) - 2**15,
        "SCALE": 1 / (1 - rate),
    }


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seeds: Tensor, steps: Tensor, constants: dict[str, Any], first: int) -> Tensor:
        ctx.constants, ctx.first = constants, first
        # Steps go on before the next batch: the backward pass of this one is over by then.
        ctx.save_for_backward(seeds, steps)
        return _launch(x, seeds, steps, constants, first)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        seeds, steps = ctx.saved_tensors
        return _launch(gradient, seeds, steps, ctx.constants, ctx.first), None, None, None, None


def _launch(x: Tensor, seeds: Tensor, steps: Tensor, constants: dict[str, Any], first: int) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    size, start = math.prod(x.shape[1:]), first * math.prod(x.shape[2:])
    with torch.cuda.device_of(x):
        _drop[(triton.cdiv(size, BLOCK), len(x))](
            x, seeds, steps, y, size, start, **constants, TOGETHER=start % 4 == 0, BLOCK=BLOCK
        )
    return y


@triton.jit
def mix(word):
    """Apply the finalizer of SplitMix64."""
    word = (word ^ (word >> 30)) * FIRST
    word = (word ^ (word >> 27)) * SECOND
    return word ^ (word >> 31)


@triton.jit
def open_keys(seeds, steps, member, PURPOSE: tl.constexpr):
    """Return the members' streams for a purpose at their present steps."""
    seed = tl.load(seeds + member).to(tl.uint64, bitcast=True)
    step = tl.load(steps + member).to(tl.uint64, bitcast=True)
    return mix(mix(mix(seed) + PURPOSE) + step)


@triton.jit
def draw(keys, word):
    """Return the 64 bits at a place of each stream."""
    return mix(keys + (word + 1).to(tl.uint64) * STEP)


@triton.jit
def is_kept(words, place, LEAST: tl.constexpr):
    """Return whether the entry is kept that owns the 16 bits at a place, from 0 to 3, of a word."""
    return (words >> (16 * place).to(tl.uint64)).to(tl.int16).to(tl.int32) >= LEAST


@triton.jit
def open_columns(
    seeds, steps, column, PURPOSE: tl.constexpr, CHANNELS: tl.constexpr, OWN: tl.constexpr, COLUMNS: tl.constexpr,
    EACH: tl.constexpr,
):  # fmt: skip
    """Return streams for COLUMNS of CHANNELS, from `column` on, of which each member has OWN; one per EACH of them."""
    columns = column + EACH * tl.arange(0, COLUMNS // EACH)[None, :]
    return open_keys(seeds, steps, tl.where(columns < CHANNELS, columns, 0) // OWN, PURPOSE)


@triton.jit
def keep_columns(
    keys, start, column, LEAST: tl.constexpr, OWN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EACH: tl.constexpr,
):  # fmt: skip
    """Return which entries of (ROWS, COLUMNS) are kept, where `start` says how many a member has before each row.

    EACH is 4, a whole word, where a member's channels and its entries before are multiples of that, else 1.
    """
    position = start + (column + EACH * tl.arange(0, COLUMNS // EACH)[None, :]) % OWN
    words = draw(keys, position // 4)
    if EACH == 4:
        kept = tl.reshape(is_kept(words[:, :, None], tl.arange(0, 4)[None, None, :], LEAST), [ROWS, COLUMNS])
    else:
        kept = is_kept(words, position % 4, LEAST)
    return kept.to(tl.float32)


@triton.jit
def _drop(
    x_ptr, seeds, steps, y_ptr, size, start, PURPOSE: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr,
    TOGETHER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    begin = tl.program_id(0) * BLOCK
    here = begin + tl.arange(0, BLOCK)
    key = open_keys(seeds, steps, member, PURPOSE)
    if TOGETHER:
        words = draw(key, (start + begin) // 4 + tl.arange(0, BLOCK // 4))
        kept = tl.reshape(is_kept(words[:, None], tl.arange(0, 4)[None, :], LEAST), [BLOCK])
    else:
        kept = is_kept(draw(key, (start + here) // 4), (start + here) % 4, LEAST)
    inside = here < size
    x = tl.load(x_ptr + member * size + here, mask=inside, other=0.0).to(tl.float32)
    y = x * kept.to(tl.float32) * SCALE  # a product, not a choice: NaN stays NaN, as in the plain form
    tl.store(y_ptr + member * size + here, y.to(y_ptr.dtype.element_ty), mask=inside)
