"""Attention of a population with dropout, whose weights are never written.

    y = drop(softmax(scale * q @ k.mT + mask)) @ v

A program takes ROWS queries of a head, COLUMNS keys at a time, with the maximum and the sum of their weights as it
goes. The backward pass computes the weights and the mask of dropout again: once for the gradient of the queries, once
for those of keys and values. The masks are those of :func:`hullo.population.rng.dropout_mask`, to the bit.

Tensors are read and written where they are, by their strides. y and the gradients lie in memory as linear layers take
them: the gradients of queries, keys and values that are parts of one tensor are the same parts of another.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, N806 (constants are in capitals, in Triton)
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.population.kernels.dropout import STEP, Dropout, draw, is_kept, mix, open_keys
from hullo.population.kernels.launch import once_differentiable
from hullo.population.kernels.layouts import block

MOST_FEATURES = 128
"""The most features of a head."""


class Tile(NamedTuple):
    """Hold the settings of a kernel: queries and keys at a time, warps, tiles that are read in advance."""

    rows: int
    columns: int
    warps: int
    stages: int


TILES = {"forward": Tile(64, 32, 4, 3), "queries": Tile(64, 32, 4, 3), "keys": Tile(32, 64, 4, 2)}
"""For heads of 64 features in 16 bits, by what a kernel computes, as measured on an H200."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: Dropout,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return attention as (members, batch, heads, queries, features of v).

    Args:
        q: queries, (members, batch, heads, queries, features).
        k, v: keys and values, (members, batch, heads, keys, features), of the dtype of q.
        mask: which keys a query sees, or what is added to their scores; expands to
            (members, batch, heads, queries, keys).
        dropout: which weights are kept.
        is_causal: whether a query sees only the keys up to its own position.
        scale: of the scores, 1 / sqrt(features) by default.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if mask is not None:
        mask = mask.expand(*q.shape[:-1], k.shape[-2])
    call = _Call(dropout.constants(), is_causal, scale, dropout.first)
    y: Tensor = _Attend.apply(q, k, v, mask, dropout.seeds, dropout.steps, *dropout.numbers(), call)
    return y


class _Call(NamedTuple):
    """Hold the arguments of a call that are not tensors."""

    constants: dict[str, Any]
    is_causal: bool
    scale: float
    first: int


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, seeds: Tensor, steps: Tensor,
        least: Tensor | None, kept_scale: Tensor | None, call: _Call,
    ) -> Tensor:  # fmt: skip
        q, k, v = (_with_rows(item) for item in (q, k, v))
        members, batch, heads, rows, _ = q.shape
        y = q.new_empty(members, batch, rows, heads, v.shape[-1]).transpose(2, 3)
        most, total = torch.empty(2, *q.shape[:-1], dtype=torch.float32, device=q.device)
        draws = (mask, seeds, steps, least, kept_scale)
        _launch("forward", (q, k, v, y), (most, total), draws, call)
        ctx.save_for_backward(q, k, v, y, most, total, *draws)
        ctx.call = call
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, y, most, total, *draws = ctx.saved_tensors
        dy = _with_rows(dy)
        dq, dk, dv = _empty_like_parts(q, k, v)
        statistics = (most, total, torch.empty_like(most))
        _launch("queries", (q, k, v, y, dy, dq), statistics, draws, ctx.call)
        _launch("keys", (q, k, v, dy, dk, dv), statistics, draws, ctx.call)
        return dq, dk, dv, *[None] * 6


def _with_rows(x: Tensor) -> Tensor:
    """Return a tensor whose rows are each in one piece, as those of linear layers are."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty_like_parts(*parts: Tensor) -> tuple[Tensor, ...]:
    """Return new tensors like the given ones: all parts of one tensor, if these are all parts of one."""
    one, offsets = parts[0], [part.storage_offset() for part in parts]
    alike = all(
        part.shape == one.shape
        and part.stride() == one.stride()
        and part.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
        for part in parts
    )
    spread = 1 + sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
    size = len(parts) * one.numel()
    if not alike or len(set(offsets)) < len(parts) or max(offsets) - min(offsets) + spread != size:
        return tuple(torch.empty_like(part) for part in parts)
    whole = one.new_empty(size)
    return tuple(whole.as_strided(one.shape, one.stride(), offset - min(offsets)) for offset in offsets)


def _launch(
    kind: str,
    tensors: tuple[Tensor, ...],
    statistics: tuple[Tensor, ...],
    draws: Sequence[Tensor | None],
    call: _Call,
) -> None:
    """Launch one of the kernels: `forward`, or that for the gradients of the queries, or of the keys and values."""
    q, k, v = tensors[:3]
    mask, *_, kept_scale = draws
    members, batch, heads, rows, features = q.shape
    columns = k.shape[-2]
    tile = TILES[kind]
    if q.dtype == torch.float32:  # twice the memory, and products without tensor cores
        tile = Tile(32, 32, 4, 1)
    elif max(features, v.shape[-1]) > 64:
        tile = tile._replace(stages=2)
    tile = tile._replace(rows=min(tile.rows, block(rows)), columns=min(tile.columns, block(columns)))
    tiles = triton.cdiv(columns, tile.columns) if kind == "keys" else triton.cdiv(rows, tile.rows)
    _KERNELS[kind][(tiles * members * batch * heads,)](
        *tensors, *statistics, *(q if item is None else item for item in draws),
        *(item.stride() for item in tensors), (0,) * 5 if mask is None else mask.stride(),
        tiles, batch, heads, rows, columns, call.first * heads * rows, call.scale, **call.constants,
        EACH=kept_scale is not None, TOGETHER=columns % 4 == 0, CAUSAL=call.is_causal,
        MASK="none" if mask is None else "hide" if mask.dtype == torch.bool else "add",
        EVEN=columns % tile.columns == 0, FEATURES=features, VALUES=v.shape[-1],
        WIDTH=block(features), WIDE=block(v.shape[-1]),
        ROWS=tile.rows, COLUMNS=tile.columns, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip


@triton.jit
def _find_head(programs, batch, heads):
    """Return which tile a program computes, and the member, the sample and the head, as 64-bit numbers."""
    tile = tl.program_id(0) % programs
    head = (tl.program_id(0) // programs).to(tl.int64)
    return tile, head // heads // batch, head // heads % batch, head % heads


@triton.jit
def _at(pointer, strides, member, sample, head):
    return pointer + member * strides[0] + sample * strides[1] + head * strides[2]


@triton.jit
def _load(pointer, stride, row, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Load rows of so many features, and zeros beyond them."""
    feature = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows)[:, None] & (feature < WIDTH)
    return tl.load(pointer + row[:, None] * stride + feature, mask=inside, other=0.0)


@triton.jit
def _store(pointer, stride, row, rows, x, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    feature = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows)[:, None] & (feature < WIDTH)
    tl.store(pointer + row[:, None] * stride + feature, x.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _in_words(COLUMNS: tl.constexpr):
    """Return an order of keys in which the threads of a product have whole words of random bits.

    Of 16 neighboring columns, a thread has two beside each other, and two more eight further: here, four keys.
    """
    column = tl.arange(0, COLUMNS)  # by bits: from quotients and remainders, Triton concludes that all are even
    return (column & -16) | ((column & 6) << 1) | ((column & 8) >> 2) | (column & 1)


@triton.jit
def _keep(
    stream, above, row, columns, start, LEAST, TOGETHER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Return which weights (ROWS, COLUMNS) are kept, from key `start` on in the order of `_in_words`.

    The head has so many rows of the member's `above` its own. TOGETHER: each row begins with a whole word.
    """
    if TOGETHER:
        each = (columns // 4).to(tl.uint64) * STEP
        begin = (stream + above.to(tl.uint64) * each + row.to(tl.uint64) * each)[:, None]
        word = (start // 4 + 1 + tl.arange(0, COLUMNS // 4)).to(tl.uint64)[None, :]
        words = tl.reshape(mix(begin + word * STEP), [ROWS, COLUMNS // 16, 1, 4, 1])
        pair = tl.arange(0, 2)
        place = 2 * pair[None, None, :, None, None] + pair[None, None, None, None, :]
        kept = tl.reshape(is_kept(words, place, LEAST), [ROWS, COLUMNS])
    else:
        own = (above + row)[:, None] * columns + (start + _in_words(COLUMNS))[None, :]
        kept = is_kept(draw(stream, own // 4), own % 4, LEAST)
    return kept


@triton.jit
def _score(
    product, scale, row, column, columns, mask_ptr, mask_strides, rows, MASK: tl.constexpr, CAUSAL: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Return scores in units of log(2), -inf where a key is hidden."""
    LOG2E: tl.constexpr = 1.4426950408889634
    score = product * (scale * LOG2E)
    if MASK != "none":
        at = mask_ptr + row.to(tl.int64) * mask_strides[3] + column * mask_strides[4]
        mask = tl.load(at, mask=(row < rows) & (column < columns), other=0.0)
        if MASK == "add":  # numbers such as the least one stay finite
            added = tl.maximum(mask.to(tl.float32) * LOG2E, -3e38)
            score += tl.where(mask == float("-inf"), float("-inf"), added)
        else:
            score = tl.where(mask != 0, score, float("-inf"))
    if CAUSAL:
        score = tl.where(row >= column, score, float("-inf"))
    if not EVEN:
        score = tl.where(column < columns, score, float("-inf"))
    return score


@triton.jit
def _weigh(score, most, total, MASK: tl.constexpr):
    """Return weights from scores, their maximum and the logarithm of the sum of their powers."""
    # where the least number was added to all scores, the sum of both would lose the latter
    return tl.exp2(score - most - total) if MASK == "add" else tl.exp2(score - (most + total))


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, y_ptr, most_ptr, total_ptr, mask_ptr, seeds, steps, least_ptr, scale_ptr,
    q_strides, k_strides, v_strides, y_strides, mask_strides,
    tiles, batch, heads, rows, columns, first, scale,
    PURPOSE: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, EACH: tl.constexpr, TOGETHER: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, EVEN: tl.constexpr, FEATURES: tl.constexpr, VALUES: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile, member, sample, head = _find_head(tiles, batch, heads)
    least, kept_scale = _read_rate(least_ptr, scale_ptr, member, LEAST, SCALE, EACH)
    stream = open_keys(seeds, steps, member, PURPOSE)
    row = tile * ROWS + tl.arange(0, ROWS)
    above = (sample * heads + head) * rows  # of the member's rows
    q = _load(_at(q_ptr, q_strides, member, sample, head), q_strides[3], row, rows, FEATURES, WIDTH)
    k_ptr = _at(k_ptr, k_strides, member, sample, head)
    v_ptr = _at(v_ptr, v_strides, member, sample, head)
    mask_ptr = _at(mask_ptr, mask_strides, member, sample, head)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    y = tl.zeros([ROWS, WIDE], tl.float32)
    stop = tl.minimum(columns, (tile + 1) * ROWS) if CAUSAL else columns
    for start in tl.range(0, stop, COLUMNS, num_stages=STAGES):
        column = start + _in_words(COLUMNS)
        k = _load(k_ptr, k_strides[3], column, columns, FEATURES, WIDTH)
        v = _load(v_ptr, v_strides[3], column, columns, VALUES, WIDE)
        product = tl.dot(q, tl.trans(k), input_precision="ieee")
        score = _score(
            product, scale, row[:, None], column[None, :], columns, mask_ptr, mask_strides, rows, MASK, CAUSAL, EVEN
        )  # fmt: skip
        higher = tl.maximum(most, tl.max(score, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # where all keys so far are hidden
        weight = tl.exp2(score - base[:, None])
        factor = tl.exp2(most - base)
        total = total * factor + tl.sum(weight, axis=1)
        kept = _keep(stream, first + above, row, columns, start, least, TOGETHER, ROWS, COLUMNS)
        weight *= tl.where(kept, kept_scale, 0.0)
        y = tl.dot(weight.to(v.dtype), v, y * factor[:, None], input_precision="ieee")
        most = higher
    y *= tl.where(total == 0, 0.0, 1 / total)[:, None]
    _store(_at(y_ptr, y_strides, member, sample, head), y_strides[3], row, rows, y, VALUES, WIDE)
    at = member * batch * heads * rows + above + row
    tl.store(most_ptr + at, tl.where(total == 0, float("inf"), most), mask=row < rows)
    tl.store(total_ptr + at, tl.where(total == 0, 0.0, tl.log2(total)), mask=row < rows)


@triton.jit
def _backward_queries(
    q_ptr, k_ptr, v_ptr, y_ptr, dy_ptr, dq_ptr, most_ptr, total_ptr, delta_ptr, mask_ptr, seeds, steps,
    least_ptr, scale_ptr,
    q_strides, k_strides, v_strides, y_strides, dy_strides, dq_strides, mask_strides,
    tiles, batch, heads, rows, columns, first, scale,
    PURPOSE: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, EACH: tl.constexpr, TOGETHER: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, EVEN: tl.constexpr, FEATURES: tl.constexpr, VALUES: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of queries, and the products of each query's y and its gradient for the other kernel."""
    tile, member, sample, head = _find_head(tiles, batch, heads)
    least, kept_scale = _read_rate(least_ptr, scale_ptr, member, LEAST, SCALE, EACH)
    stream = open_keys(seeds, steps, member, PURPOSE)
    row = tile * ROWS + tl.arange(0, ROWS)
    above = (sample * heads + head) * rows
    at = member * batch * heads * rows + above + row
    q = _load(_at(q_ptr, q_strides, member, sample, head), q_strides[3], row, rows, FEATURES, WIDTH)
    y = _load(_at(y_ptr, y_strides, member, sample, head), y_strides[3], row, rows, VALUES, WIDE)
    dy = _load(_at(dy_ptr, dy_strides, member, sample, head), dy_strides[3], row, rows, VALUES, WIDE)
    delta = tl.sum(y.to(tl.float32) * dy.to(tl.float32), axis=1)
    tl.store(delta_ptr + at, delta, mask=row < rows)
    most = tl.load(most_ptr + at, mask=row < rows, other=float("inf"))
    total = tl.load(total_ptr + at, mask=row < rows, other=0.0)
    k_ptr = _at(k_ptr, k_strides, member, sample, head)
    v_ptr = _at(v_ptr, v_strides, member, sample, head)
    mask_ptr = _at(mask_ptr, mask_strides, member, sample, head)
    dq = tl.zeros([ROWS, WIDTH], tl.float32)
    stop = tl.minimum(columns, (tile + 1) * ROWS) if CAUSAL else columns
    for start in tl.range(0, stop, COLUMNS, num_stages=STAGES):
        column = start + _in_words(COLUMNS)
        k = _load(k_ptr, k_strides[3], column, columns, FEATURES, WIDTH)
        v = _load(v_ptr, v_strides[3], column, columns, VALUES, WIDE)
        product = tl.dot(q, tl.trans(k), input_precision="ieee")
        score = _score(
            product, scale, row[:, None], column[None, :], columns, mask_ptr, mask_strides, rows, MASK, CAUSAL, EVEN
        )  # fmt: skip
        weight = _weigh(score, most[:, None], total[:, None], MASK)
        slope = tl.dot(dy, tl.trans(v), input_precision="ieee")
        kept = _keep(stream, first + above, row, columns, start, least, TOGETHER, ROWS, COLUMNS)
        dscore = weight * (slope * tl.where(kept, kept_scale, 0.0) - delta[:, None])
        dq = tl.dot(dscore.to(k.dtype), k, dq, input_precision="ieee")
    _store(_at(dq_ptr, dq_strides, member, sample, head), dq_strides[3], row, rows, dq * scale, FEATURES, WIDTH)


@triton.jit
def _backward_keys(
    q_ptr, k_ptr, v_ptr, dy_ptr, dk_ptr, dv_ptr, most_ptr, total_ptr, delta_ptr, mask_ptr, seeds, steps,
    least_ptr, scale_ptr,
    q_strides, k_strides, v_strides, dy_strides, dk_strides, dv_strides, mask_strides,
    tiles, batch, heads, rows, columns, first, scale,
    PURPOSE: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, EACH: tl.constexpr, TOGETHER: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, EVEN: tl.constexpr, FEATURES: tl.constexpr, VALUES: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of keys and values; scores are transposed, (COLUMNS, ROWS)."""
    tile, member, sample, head = _find_head(tiles, batch, heads)
    least, kept_scale = _read_rate(least_ptr, scale_ptr, member, LEAST, SCALE, EACH)
    stream = open_keys(seeds, steps, member, PURPOSE)
    column = tile * COLUMNS + _in_words(COLUMNS)
    k = _load(_at(k_ptr, k_strides, member, sample, head), k_strides[3], column, columns, FEATURES, WIDTH)
    v = _load(_at(v_ptr, v_strides, member, sample, head), v_strides[3], column, columns, VALUES, WIDE)
    q_ptr = _at(q_ptr, q_strides, member, sample, head)
    dy_ptr = _at(dy_ptr, dy_strides, member, sample, head)
    mask_ptr = _at(mask_ptr, mask_strides, member, sample, head)
    above = (sample * heads + head) * rows
    at = member * batch * heads * rows + above
    dk = tl.zeros([COLUMNS, WIDTH], tl.float32)
    dv = tl.zeros([COLUMNS, WIDE], tl.float32)
    begin = tile * COLUMNS // ROWS * ROWS if CAUSAL else 0
    for start in tl.range(begin, rows, ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)
        q = _load(q_ptr, q_strides[3], row, rows, FEATURES, WIDTH)
        dy = _load(dy_ptr, dy_strides[3], row, rows, VALUES, WIDE)
        most = tl.load(most_ptr + at + row, mask=row < rows, other=float("inf"))
        total = tl.load(total_ptr + at + row, mask=row < rows, other=0.0)
        delta = tl.load(delta_ptr + at + row, mask=row < rows, other=0.0)
        product = tl.dot(k, tl.trans(q), input_precision="ieee")
        score = _score(
            product, scale, row[None, :], column[:, None], columns, mask_ptr, mask_strides, rows, MASK, CAUSAL, EVEN
        )  # fmt: skip
        weight = _weigh(score, most[None, :], total[None, :], MASK)
        kept = _keep(stream, first + above, row, columns, tile * COLUMNS, least, TOGETHER, ROWS, COLUMNS)
        factor = tl.where(tl.trans(kept), kept_scale, 0.0)
        dv = tl.dot((weight * factor).to(dy.dtype), dy, dv, input_precision="ieee")
        slope = tl.dot(v, tl.trans(dy), input_precision="ieee")
        dscore = weight * (slope * factor - delta[None, :])
        dk = tl.dot(dscore.to(q.dtype), q, dk, input_precision="ieee")
    _store(_at(dk_ptr, dk_strides, member, sample, head), dk_strides[3], column, columns, dk * scale, FEATURES, WIDTH)
    _store(_at(dv_ptr, dv_strides, member, sample, head), dv_strides[3], column, columns, dv, VALUES, WIDE)


@triton.jit
def _read_rate(least_ptr, scale_ptr, member, LEAST: tl.constexpr, SCALE: tl.constexpr, EACH: tl.constexpr):
    least, scale = LEAST, SCALE
    if EACH:
        least = tl.load(least_ptr + member)
        scale = tl.load(scale_ptr + member)
    return least, scale


_KERNELS = {"forward": _forward, "queries": _backward_queries, "keys": _backward_keys}
