"""Update all parameters of a population by one launch on a GPU.

Parameters live in one buffer, the optimizer's state in one or two others, copies of lower precision in another, all by
one `Layout`. A program updates BLOCK neighboring numbers of one parameter. Gradients stay where automatic
differentiation put them: their addresses are arguments of the kernel, so a CUDA graph holds them, and nothing is
gathered first. How a number is updated is a `Rule`, whose function is compiled into the kernel.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

BLOCK, WARPS = 1024, 8
"""Four numbers per thread: 16 bytes of each buffer at once, side by side across a warp."""

_ALIGNMENT = 64  # numbers; every parameter starts at a full line of memory, in any precision


class Layout:
    """Say where each parameter lies in a flat buffer: all of it in one run, in its own order in memory.

    Args:
        parameters: tensors without gaps, each with its members in the first dimension, which is the outermost in
            memory too.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        members = len(parameters[0])
        device = parameters[0].device
        sizes = torch.tensor([parameter.numel() for parameter in parameters])
        ends = (-(-sizes // _ALIGNMENT) * _ALIGNMENT).cumsum(0)
        blocks = -(-sizes // BLOCK)
        self.shapes = [(parameter.shape, parameter.stride()) for parameter in parameters]
        self.members, self.size = members, int(ends[-1])
        self.starts = [0, *ends.tolist()[:-1]]
        self.programs = int(blocks.sum())
        first = blocks.cumsum(0) - blocks
        self.segment = torch.repeat_interleave(blocks).to(device, torch.int32)  # of each program
        self.table = torch.stack([torch.tensor(self.starts), sizes, sizes // members, first], 1).to(device)

    def buffer(self, dtype: torch.dtype) -> Tensor:
        """Return zeros for all parameters."""
        return torch.zeros(self.size, dtype=dtype, device=self.table.device)

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Return the parts of a buffer, each with its parameter's shape and order in memory."""
        places = zip(self.shapes, self.starts, strict=True)
        return [buffer.as_strided(shape, strides, start) for (shape, strides), start in places]


class Rule(NamedTuple):
    """Say how a number w is updated, with state u and v of the optimizer:

    w, u, v <- function(w, u, v, gradient, rate, decay, count, settings)

    `count` is the number of updates of w, this one included.
    """

    function: Any
    """A function of blocks of numbers, which Triton compiles."""

    settings: tuple[float, ...]


def update(
    layout: Layout,
    values: Tensor,
    state: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    *,
    rates: Tensor,
    decays: Tensor,
    counts: Tensor,
    rule: Rule,
    own: Sequence[Tensor] = (),
    factor: Tensor | None = None,
    scale: Tensor | None = None,
    copies: Tensor | None = None,
) -> None:
    """Update all parameters that have a gradient once, in place.

    Args:
        layout: where the parameters are in the buffers.
        values, state: w, and none, one or two others; buffers of float32.
        gradients: of each parameter; a parameter without one stays as it is.
        rates, decays: learning rates and weight decay of each member, (members,), float64.
        counts: the number of updates of each parameter, (parameters,), float64.
        rule: how numbers are updated.
        own: rates and decays of each parameter and member, (parameters, members), float64; NaN stands for the member's.
        factor: what rates are multiplied with, one number or (members,).
        scale: what gradients are multiplied with first, (members,).
        copies: a buffer that takes the new values in its own precision.
    """
    placed = tuple(
        values if gradient is None else _placed(gradient, *shape)
        for gradient, shape in zip(gradients, layout.shapes, strict=True)
    )
    absent = tuple(gradient is None for gradient in gradients)
    first, second = (*state, values, values)[:2]
    own_rates, own_decays = own or (rates, decays)
    factors = rates if factor is None else factor.to(torch.float64).expand(layout.members).contiguous()
    with torch.cuda.device_of(values):
        _update[(layout.programs,)](
            values, first, second, values if copies is None else copies, placed, layout.segment, layout.table,
            rates, decays, own_rates, own_decays, factors, rates if scale is None else scale, counts, layout.members,
            rule.settings, RULE=rule.function, STATES=len(state), COPY=copies is not None, OWN=bool(own),
            FACTOR=factor is not None, SCALE=scale is not None, ABSENT=absent if any(absent) else (), BLOCK=BLOCK,
            num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip


def _placed(gradient: Tensor, shape: torch.Size, strides: tuple[int, ...]) -> Tensor:
    """Return the gradient as the kernel reads it: in float32 or bfloat16, in its parameter's order in memory, at an
    address that is a multiple of 16."""
    steps = zip(shape, strides, gradient.stride(), strict=True)
    dtype = gradient.dtype if gradient.dtype == torch.bfloat16 else torch.float32
    is_in_order = all(size == 1 or wanted == given for size, wanted, given in steps)
    if is_in_order and gradient.dtype == dtype and gradient.data_ptr() % 16 == 0:
        return gradient
    return torch.empty_strided(shape, strides, dtype=dtype, device=gradient.device).copy_(gradient)


@triton.jit
def _update(
    values, firsts, seconds, copies, gradients, segments, table, rates, decays, own_rates, own_decays, factors, scales,
    counts, members, settings, RULE: tl.constexpr, STATES: tl.constexpr, COPY: tl.constexpr, OWN: tl.constexpr,
    FACTOR: tl.constexpr, SCALE: tl.constexpr, ABSENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    segment = tl.load(segments + program)
    start = tl.multiple_of(tl.load(table + 4 * segment), 64)
    size = tl.load(table + 4 * segment + 1)
    own = tl.load(table + 4 * segment + 2)
    offset = (program - tl.load(table + 4 * segment + 3)) * BLOCK
    address = gradients[0].to(tl.int64)
    half = segment < 0
    there = segment >= 0
    for begin in tl.static_range(0, len(gradients), 16):  # sixteen at a time: networks may have hundreds
        if segment // 16 == begin // 16:
            for i in tl.static_range(begin, begin + 16):
                if i < len(gradients):
                    address = tl.where(segment == i, gradients[i].to(tl.int64), address)
                    half = half | ((segment == i) & (gradients[i].dtype.element_ty == tl.bfloat16))
                    if i < len(ABSENT):
                        there = there & ((segment != i) | (not ABSENT[i]))
    count = tl.load(counts + segment, mask=there, other=1.0)
    here = offset + tl.arange(0, BLOCK)
    first = offset // own
    at = segment * members
    if offset + BLOCK <= (first + 1) * own:  # all of one member, as nearly all blocks are
        inside = tl.full([BLOCK], True, tl.int1) & there
        rate = _rate(rates + first, own_rates + at + first, factors + first, there, OWN, FACTOR)
        decay = _rate(decays + first, own_decays + at + first, factors, there, OWN, False)
        scale = tl.load(scales + first).to(tl.float32) if SCALE else 1.0
        _update_block(
            values, firsts, seconds, copies, address, half, start, here, inside, rate, decay, scale, count, settings,
            RULE, STATES, COPY, SCALE,
        )  # fmt: skip
    else:
        inside = (here < size) & there
        member = first + ((offset - first * own).to(tl.int32) + tl.arange(0, BLOCK)) // own.to(tl.int32)
        member_rates = _rate(rates + member, own_rates + at + member, factors + member, inside, OWN, FACTOR)
        member_decays = _rate(decays + member, own_decays + at + member, factors + member, inside, OWN, False)
        member_scales = tl.load(scales + member, mask=inside, other=0.0).to(tl.float32) if SCALE else member_rates
        _update_block(
            values, firsts, seconds, copies, address, half, start, here, inside, member_rates, member_decays,
            member_scales, count, settings, RULE, STATES, COPY, SCALE,
        )  # fmt: skip


@triton.jit
def _rate(numbers, own, factors, inside, OWN: tl.constexpr, FACTOR: tl.constexpr):
    """Return learning rates or weight decay: a parameter's own where they are not NaN, else the member's."""
    rate = tl.load(numbers, mask=inside, other=0.0)
    if OWN:
        special = tl.load(own, mask=inside, other=0.0)
        rate = tl.where(special == special, special, rate)
    if FACTOR:
        rate *= tl.load(factors, mask=inside, other=0.0)
    return rate.to(tl.float32)


@triton.jit
def _update_block(
    values, firsts, seconds, copies, address, half, start, here, inside, rate, decay, scale, count, settings,
    RULE: tl.constexpr, STATES: tl.constexpr, COPY: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    at = start + here
    value = tl.load(values + at, mask=inside, other=0.0, eviction_policy="evict_first")
    first, second = value, value
    if STATES > 0:
        first = tl.load(firsts + at, mask=inside, other=0.0, eviction_policy="evict_first")
    if STATES > 1:
        second = tl.load(seconds + at, mask=inside, other=0.0, eviction_policy="evict_first")
    if half:
        halves = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), 16)
        gradient = tl.load(halves + here, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    else:
        singles = tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)
        gradient = tl.load(singles + here, mask=inside, other=0.0, eviction_policy="evict_first")
    if SCALE:
        gradient *= scale
    value, first, second = RULE(value, first, second, gradient, rate, decay, count, settings)
    if STATES > 0:
        tl.store(firsts + at, first, mask=inside, eviction_policy="evict_first")
    if STATES > 1:
        tl.store(seconds + at, second, mask=inside, eviction_policy="evict_first")
    tl.store(values + at, value, mask=inside, eviction_policy="evict_first")
    if COPY:
        tl.store(copies + at, value.to(copies.dtype.element_ty), mask=inside)


# The rules, each in the order of operations of the plain form in hullo.population.optim.


@triton.jit
def sgd(value, first, second, gradient, rate, decay, count, settings):
    momentum, nesterov = settings
    gradient = tl.fma(value, decay, gradient)
    velocity = first * momentum + gradient
    gradient = tl.where(nesterov > 0, tl.fma(velocity, momentum, gradient), velocity)
    return tl.fma(-gradient, rate, value), velocity, second


@triton.jit
def rmsprop(value, first, second, gradient, rate, decay, count, settings):
    alpha, rest, eps = settings
    gradient = tl.fma(value, decay, gradient)
    square = tl.fma(rest * gradient, gradient, first * alpha)
    return tl.fma(-tl.div_rn(gradient, tl.sqrt_rn(square) + eps), rate, value), square, second


@triton.jit
def adam(value, first, second, gradient, rate, decay, count, settings):
    log_first, log_second, beta, rest, other, decoupled, eps = settings
    correction = (1.0 - tl.exp(count * log_first)).to(tl.float32)  # count is float64: small numbers keep their digits
    root = tl.sqrt(1.0 - tl.exp(count * log_second)).to(tl.float32)
    value = tl.where(decoupled > 0, value * (1.0 - rate * decay), value)
    gradient = tl.where(decoupled > 0, gradient, tl.fma(value, decay, gradient))
    mean = tl.fma(beta, gradient - first, first)
    square = tl.fma(other * gradient, gradient, second * rest)
    denominator = tl.div_rn(tl.sqrt_rn(square), root) + eps
    return tl.fma(-tl.div_rn(mean, denominator), tl.div_rn(rate, correction), value), mean, square
