"""Local response normalization on a GPU: one kernel forward, one backward, for images with channels last.

    y_c = x_c s_c^-0.75,    s_c = 1 + alpha / size * (sum of x^2 over the `size` channels around c)

    dx_c = dy_c s_c^-0.75 - 1.5 alpha / size * x_c * (sum of dy y / s over the `size` channels around c)

A thread holds a run of neighboring channels of one pixel and what the windows at its ends reach into, so a window is a
sum of registers. The backward pass computes s again: it reads x and dy and writes dx, nothing more moves. The reference
is PyTorch's own function, which :mod:`hullo.population.rules.norms` calls elsewhere.
"""

# mypy: disable-error-code="assignment,no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803, RUF005 (constants are in capitals, and tuples grow by addition alone, in Triton)
from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.population.kernels.launch import once_differentiable

RUNS = 128
"""Runs per program of four warps, one per thread."""


class LocalResponseNorm(torch.autograd.Function):
    """Normalize images (B, members * channels, H, W) of float32, bfloat16 or float16 within each member.

    `LocalResponseNorm.apply(x, channels, size, alpha)`, where `channels` are those of one member.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *options: Any) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x)
        ctx.options, y = options, torch.empty_like(x)
        _launch(_forward, (x, y), *options)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        _launch(_backward, (x, gradient.contiguous(memory_format=torch.channels_last), dx), *ctx.options)
        return dx, None, None, None


def _launch(kernel: Any, tensors: tuple[Tensor, ...], channels: int, size: int, alpha: float) -> None:
    x = tensors[0]
    run = max(16 // x.element_size(), triton.next_power_of_2(size - 1))
    runs = x.numel() // channels * triton.cdiv(channels, run)
    if runs:
        kernel[triton.cdiv(runs, RUNS),](
            *tensors, runs, alpha / size,
            CHANNELS=channels, HALF=size // 2, RUN=run, RUNS=RUNS, BIG=x.numel() >= 2**31, num_warps=RUNS // 32,
        )  # fmt: skip


@triton.jit
def _forward(
    x_at, y_at, runs, scale,
    CHANNELS: tl.constexpr, HALF: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr, BIG: tl.constexpr,
):  # fmt: skip
    at, channel, inside = _places(runs, CHANNELS, RUN, RUNS, BIG)
    x = _read(x_at, at, channel, inside, CHANNELS, RUN)
    sums = _windows(_squares(x), HALF)
    y = ()
    for j in tl.static_range(RUN, 2 * RUN):
        power, _ = _powers(1 + scale * sums[j - HALF])
        y = y + (x[j] * power,)
    tl.store(y_at + at, _tile(y).to(y_at.dtype.element_ty), mask=inside & (channel < CHANNELS))


@triton.jit
def _backward(
    x_at, dy_at, dx_at, runs, scale,
    CHANNELS: tl.constexpr, HALF: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr, BIG: tl.constexpr,
):  # fmt: skip
    at, channel, inside = _places(runs, CHANNELS, RUN, RUNS, BIG)
    x = _read(x_at, at, channel, inside, CHANNELS, RUN)
    dy = _read(dy_at, at, channel, inside, CHANNELS, RUN)
    sums = _windows(_squares(x), HALF)
    direct = ()  # dy s^-beta
    shares = ()  # dy y / s
    for j in tl.static_range(RUN - HALF, 2 * RUN + HALF):
        power, inverse = _powers(1 + scale * sums[j - HALF])
        direct = direct + (dy[j] * power,)
        shares = shares + (dy[j] * power * inverse * x[j],)
    others = _windows(shares, HALF)
    dx = ()
    for j in tl.static_range(RUN):
        dx = dx + (direct[j + HALF] - 1.5 * scale * x[j + RUN] * others[j],)
    tl.store(dx_at + at, _tile(dx).to(dx_at.dtype.element_ty), mask=inside & (channel < CHANNELS))


@triton.jit
def _places(runs, CHANNELS: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr, BIG: tl.constexpr):
    """Return the places of each run's channels, their indices in the member, and whether there is such a run."""
    program = tl.program_id(0)
    if BIG:
        program = program.to(tl.int64)
    run = program * RUNS + tl.arange(0, RUNS)[:, None]
    across: tl.constexpr = (CHANNELS + RUN - 1) // RUN
    row = run // across
    channel = run % across * RUN + tl.arange(0, RUN)[None, :]
    return row * CHANNELS + channel, channel, run < runs


@triton.jit
def _read(t_at, at, channel, inside, CHANNELS: tl.constexpr, RUN: tl.constexpr):
    """Read the channels of the run before, the run itself and the run after, one by one; beyond the member, zeros."""
    channels = ()
    for side in tl.static_range(-1, 2):
        there = channel + side * RUN
        mask = inside & (there >= 0) & (there < CHANNELS)
        channels = channels + _columns(tl.load(t_at + at + side * RUN, mask=mask, other=0.0).to(tl.float32))
    return channels


@triton.jit
def _columns(tile):
    """Return the columns of a tile from left to right; no data moves where each thread holds a row."""
    columns = (tile,)
    if tile.shape[1] > 1:
        halves = tl.permute(tl.reshape(tile, (tile.shape[0], 2, tile.shape[1] // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        columns = _columns(left) + _columns(right)
    return columns


@triton.jit
def _tile(columns):
    """Invert `_columns`."""
    tile = columns[0]
    if len(columns) > 1:
        left, right = _tile(columns[: len(columns) // 2]), _tile(columns[len(columns) // 2 :])
        halves = tl.permute(tl.join(left, right), (0, 2, 1))
        tile = tl.reshape(halves, (left.shape[0], 2 * left.shape[1]))
    return tile


@triton.jit
def _squares(terms):
    squares = ()
    for j in tl.static_range(len(terms)):
        squares = squares + (terms[j] * terms[j],)
    return squares


@triton.jit
def _windows(terms, HALF: tl.constexpr):
    """Return the sum of every 2 HALF + 1 neighbors; the first is around terms[HALF]."""
    sums = ()
    for j in tl.static_range(len(terms) - 2 * HALF):
        total = terms[j]
        for d in tl.static_range(1, 2 * HALF + 1):
            total += terms[j + d]
        sums = sums + (total,)
    return sums


@triton.jit
def _powers(s):
    """Return s^-0.75 and 1 / s, from one inverse root."""
    root = tl.rsqrt(s)
    return root * tl.sqrt(root), root * root
