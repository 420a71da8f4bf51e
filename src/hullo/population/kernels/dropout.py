"""Drop entries of any tensor in one pass, with the random bits that it shares with the other kernels.

The masks are those of :func:`hullo.population.rng.dropout_mask`, to the bit: 64-bit words are computed where they are
needed, in the backward pass again, and never stored. A member's tensor is computed as rows and columns in the order of
its mask; the members may lie before the rows, between, or beside the columns, as they do in memory.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.population.rng import _FIRST, _SECOND, _STEP, Purpose

STEP, FIRST, SECOND = (tl.constexpr(word % 2**64) for word in (_STEP, _FIRST, _SECOND))
BLOCK = 1024
NO_DROPOUT: dict[str, Any] = {"PURPOSE": 0, "LEAST": 0, "SCALE": 1.0}
"""The constants of kernels where nothing is dropped."""


class Dropout(NamedTuple):
    """Say which entries a dropout keeps: those of :func:`hullo.population.rng.dropout_mask`.

    Args:
        seeds, steps: of each member, (members,).
        number: which of the network's random operations this is, counted from 0.
        rate: the share that is dropped, or one per member, (members,); then 1 drops everything.
        first: the number of the first sample, where the batch is a part of a larger one.
    """

    seeds: Tensor
    steps: Tensor
    number: int
    rate: float | Tensor
    first: int = 0

    def constants(self) -> dict[str, Any]:
        """Return the constants of kernels; a rate per member takes the place of two of them."""
        rate = 0.0 if isinstance(self.rate, Tensor) else self.rate
        return {
            "PURPOSE": int(Purpose.DROPOUT) + self.number,
            "LEAST": round(rate * 2**16) - 2**15,
            "SCALE": 1 / (1 - rate),
        }

    def numbers(self) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Return what takes their place, (members,), if each member has a rate."""
        if not isinstance(self.rate, Tensor):
            return None, None
        least = (self.rate.double() * 2**16).round().int() - 2**15
        return least, torch.where(self.rate < 1, 1 / (1 - self.rate), 0.0).float()


def drop(
    x: Tensor, dropout: Dropout, *, dim: int = 0, order: Sequence[int] | None = None, chunk: tuple[int, int] = (0, 1)
) -> Tensor:
    """Return x, a part of its entries zero and the others scaled by 1 / (1 - rate).

    Args:
        x: a tensor of all members, which is not empty.
        dropout: which entries are kept.
        dim: which dimension of x holds the members.
        order: the other dimensions of one member's tensor in the order in which its mask is drawn, the batch first.
        chunk: which of how many chunks of a mask this is, which are beside each other in its last dimension.
    """
    others = [d for d in range(x.dim()) if d != dim]
    layout = _lay_out(x, dim, others if order is None else [others[d] for d in order], chunk)
    call = _Call(dropout.constants(), dropout.first, layout)
    dropped: Tensor = _Drop.apply(x, dropout.seeds, dropout.steps, *dropout.numbers(), call)
    return dropped


class _Layout(NamedTuple):
    """Describe how a tensor lies in memory after `permuted`: the members at `place`, in rows of so many columns, each a
    row of the mask, or of a chunk of the mask."""

    permuted: tuple[int, ...]
    place: int
    columns: int
    chunk: tuple[int, int]


def _lay_out(x: Tensor, dim: int, order: Sequence[int], chunk: tuple[int, int]) -> _Layout:
    """Return the layout of x as it is, if its dimensions lie in the order of the mask, else one to copy it to."""
    last = len(order) - 1 if chunk[1] > 1 else len(order)  # rows end where other chunks come between
    fits = (p for p in range(last + 1) if x.permute(*order[:p], dim, *order[p:]).is_contiguous())
    place = next(fits, 0)
    columns = math.prod(x.shape[d] for d in order[max(place, last if chunk[1] > 1 else 0) :])
    return _Layout((*order[:place], dim, *order[place:]), place, columns, chunk)


class _Call(NamedTuple):
    """Hold the arguments of a call that are not tensors."""

    constants: dict[str, Any]
    first: int
    layout: _Layout


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, seeds: Tensor, steps: Tensor, least: Tensor | None, scale: Tensor | None, call: _Call
    ) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(seeds, steps, least, scale)  # refused after the next step, whose masks are others
        return _launch(x, seeds, steps, least, scale, call)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # dropout is linear: its derivative is the same dropout
        return _Drop.apply(gradient, *ctx.saved_tensors, ctx.call), None, None, None, None, None


def _launch(x: Tensor, seeds: Tensor, steps: Tensor, least: Tensor | None, scale: Tensor | None, call: _Call) -> Tensor:
    permuted, place, columns, (index, chunks) = call.layout
    members = len(seeds)
    x = x.permute(permuted).contiguous()
    y = torch.empty_like(x)
    rows = x.numel() // (members * columns)
    inside = math.prod(x.shape[place + 1 :])  # entries of a member that lie together
    per_sample = x.numel() // (members * x.shape[1 if place == 0 else 0])
    start = call.first * per_sample * chunks + index * columns
    width = min(BLOCK, triton.next_power_of_2(columns))
    height = min(BLOCK // width, triton.next_power_of_2(rows))
    together = start % 4 == 0 and width >= 4 and (columns * chunks % 4 == 0 or rows == 1)
    row_stride = columns if place == 0 else members * inside
    _drop[(triton.cdiv(columns, width) * triton.cdiv(rows, height), members)](
        x, seeds, steps, x if least is None else least, x if scale is None else scale, y,
        rows, columns, columns * chunks, inside, row_stride, start,
        **call.constants, EACH=least is not None, TOGETHER=together, ROWS=height, COLUMNS=width,
    )  # fmt: skip
    return y.permute(sorted(range(x.dim()), key=permuted.__getitem__))


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
def is_kept(words, place, LEAST):
    """Return whether the entry is kept that owns the 16 bits at a place, from 0 to 3, of a word."""
    return (words >> (16 * place).to(tl.uint64)).to(tl.int16).to(tl.int32) >= LEAST


@triton.jit
def open_columns(
    seeds, steps, column, PURPOSE: tl.constexpr, CHANNELS: tl.constexpr, OWN: tl.constexpr, COLUMNS: tl.constexpr
):
    """Return streams for COLUMNS of CHANNELS, from `column` on, of which each member has OWN; one for four columns."""
    columns = column + 4 * tl.arange(0, COLUMNS // 4)[None, :]
    return open_keys(seeds, steps, tl.where(columns < CHANNELS, columns, 0) // OWN, PURPOSE)


@triton.jit
def keep_columns(
    keys, start, column, LEAST: tl.constexpr, OWN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Return which entries of (ROWS, COLUMNS) are kept, where `start` says how many a member has before each row.

    Four channels are a word of the stream: members have multiples of that.
    """
    position = start + (column + 4 * tl.arange(0, COLUMNS // 4)[None, :]) % OWN
    words = draw(keys, position // 4)[:, :, None]
    return tl.reshape(is_kept(words, tl.arange(0, 4)[None, None, :], LEAST), [ROWS, COLUMNS]).to(tl.float32)


@triton.jit
def keep_tile(key, position, LEAST, TOGETHER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return which entries of (ROWS, COLUMNS) a member keeps, where `position` has the first of each row, (ROWS, 1).

    TOGETHER: each four columns are one word of the stream.
    """
    if TOGETHER:
        words = draw(key, position // 4 + tl.arange(0, COLUMNS // 4)[None, :])
        kept = tl.reshape(is_kept(words[:, :, None], tl.arange(0, 4)[None, None, :], LEAST), [ROWS, COLUMNS])
    else:
        own = position + tl.arange(0, COLUMNS)[None, :]
        kept = is_kept(draw(key, own // 4), own % 4, LEAST)
    return kept


@triton.jit
def _drop(
    x_ptr, seeds, steps, least_ptr, scale_ptr, y_ptr, rows, columns, mask_stride, member_stride, row_stride,
    start, PURPOSE: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, EACH: tl.constexpr,
    TOGETHER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    least, scale = LEAST, SCALE
    if EACH:
        least = tl.load(least_ptr + member)
        scale = tl.load(scale_ptr + member)
    tiles = tl.cdiv(columns, COLUMNS)
    row = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)[:, None]
    first = tl.program_id(0) % tiles * COLUMNS
    column = first + tl.arange(0, COLUMNS)[None, :]
    position = row.to(tl.int64) * mask_stride + (start + first)
    kept = keep_tile(open_keys(seeds, steps, member, PURPOSE), position, least, TOGETHER, ROWS, COLUMNS)
    inside = (row < rows) & (column < columns)
    at = member * member_stride + row.to(tl.int64) * row_stride + column
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    y = x * kept.to(tl.float32) * scale  # a product, not a choice: NaN stays NaN, as in the plain form
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)
