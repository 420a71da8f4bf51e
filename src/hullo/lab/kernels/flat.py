"""Parameters of a population one after the other, moved by one launch on a GPU.

Parameters live in one buffer, what an optimiser remembers of each number in another, copies of lower precision in a
third, all by one `Layout`. A program moves BLOCK neighbouring numbers of one parameter. Gradients stay where automatic
differentiation put them: their addresses are arguments of the kernel, so a CUDA graph holds them, and nothing is
gathered first. How a number moves is a `Rule`, whose function is compiled into the kernel.
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
"""Four numbers a thread: 16 bytes of each buffer at once, side by side across a warp."""

_ALIGNMENT = 64  # numbers; every parameter starts at a full line of memory, in any precision


class Layout:
    """Where each parameter lies in a flat buffer: all of it in one run, in its own order in memory.

    Args:
        parameters: tensors without gaps, each with its members in the first dimension, which is the outermost in
            memory too.
        members: how many of them there are.

    Example:
        >>> import torch
        >>> from hullo.lab.kernels.flat import Layout
        >>> parameters = [torch.ones(4, 3, 2, 2), torch.zeros(2, 1, 10)]
        >>> layout = Layout(parameters, members=2)
        >>> values = layout.buffer(torch.float32)
        >>> [tuple(view.shape) for view in layout.views(values)]
        [(4, 3, 2, 2), (2, 1, 10)]
    """

    def __init__(self, parameters: Sequence[Tensor], members: int) -> None:
        for number, parameter in enumerate(parameters):
            own = parameter.unflatten(0, (members, -1))[0]  # refuses what members cannot share equally
            spread = 1 + sum((size - 1) * stride for size, stride in zip(own.shape, own.stride(), strict=True))
            if not parameter.numel() or spread * members != parameter.numel():
                raise ValueError(
                    f"parameter {number} of shape {tuple(parameter.shape)} and strides {parameter.stride()}: "
                    f"each of {members} members needs one run of memory; call .contiguous() on it first"
                )
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
        """Zeros for all parameters."""
        return torch.zeros(self.size, dtype=dtype, device=self.table.device)

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The parts of a buffer, each with its parameter's shape and order in memory."""
        places = zip(self.shapes, self.starts, strict=True)
        return [buffer.as_strided(shape, strides, start) for (shape, strides), start in places]


class Rule(NamedTuple):
    """How a number w of parameter i moves, with v remembered: w, v <- function(w, v, gradient, rate, i, settings)."""

    function: Any
    """Of blocks of numbers; Triton compiles it."""

    settings: tuple[Tensor | float, ...]


def move(
    layout: Layout,
    values: Tensor,
    memory: Tensor,
    gradients: Sequence[Tensor],
    *,
    rates: Tensor,
    scales: Tensor,
    rule: Rule,
    copies: Tensor | None = None,
) -> None:
    """One update of all parameters, in place: for every number w of a parameter i of a member k

        w, v <- rule.function(w, v, g, scales[i, k] * rates[k], i, rule.settings)

    Args:
        layout: where the parameters are in the buffers.
        values: w, a buffer of float32.
        memory: v, a buffer of float32.
        gradients: g of each parameter, in float32 or bfloat16.
        rates: learning rates, (members,).
        scales: what each parameter's rate is multiplied with, (parameters, members).
        rule: how numbers move.
        copies: a buffer that takes up the new values in its own precision.
    """
    if len(gradients) != len(layout.shapes):
        raise ValueError(f"{len(layout.shapes)} parameters need as many gradients, got {len(gradients)}")
    placed = tuple(_placed(gradient, *shape) for gradient, shape in zip(gradients, layout.shapes, strict=True))
    with torch.cuda.device_of(values):
        _move[(layout.programs,)](
            values, memory, values if copies is None else copies, placed, layout.segment, layout.table,
            rates, scales, layout.members, rule.settings,
            RULE=rule.function, COPY=copies is not None, BLOCK=BLOCK, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip


def _placed(gradient: Tensor, shape: torch.Size, strides: tuple[int, ...]) -> Tensor:
    """The gradient in its parameter's order in memory, at an address that is a multiple of 16."""
    if gradient.shape != shape or gradient.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"a gradient for a parameter of shape {tuple(shape)} is float32 or bfloat16 of that shape, "
            f"got {gradient.dtype} of shape {tuple(gradient.shape)}"
        )
    steps = zip(shape, strides, gradient.stride(), strict=True)
    if gradient.data_ptr() % 16 == 0 and all(size == 1 or wanted == given for size, wanted, given in steps):
        return gradient
    return torch.empty_strided(shape, strides, dtype=gradient.dtype, device=gradient.device).copy_(gradient)


@triton.jit
def _move(
    values, memory, copies, gradients, segments, table, rates, scales, members, settings,
    RULE: tl.constexpr, COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    segment = tl.load(segments + program)
    start = tl.multiple_of(tl.load(table + 4 * segment), 64)
    size = tl.load(table + 4 * segment + 1)
    own = tl.load(table + 4 * segment + 2)
    offset = (program - tl.load(table + 4 * segment + 3)) * BLOCK
    address = gradients[0].to(tl.int64)
    half = segment < 0
    for begin in tl.static_range(0, len(gradients), 16):  # sixteen at a time: networks may have hundreds
        if segment // 16 == begin // 16:
            for i in tl.static_range(begin, begin + 16):
                if i < len(gradients):
                    address = tl.where(segment == i, gradients[i].to(tl.int64), address)
                    half = half | ((segment == i) & (gradients[i].dtype.element_ty == tl.bfloat16))
    here = offset + tl.arange(0, BLOCK)
    first = offset // own
    if offset + BLOCK <= (first + 1) * own:  # all of one member, as nearly all blocks are
        inside = tl.full([BLOCK], True, tl.int1)
        rate = tl.load(rates + first) * tl.load(scales + segment * members + first)
        _move_block(values, memory, copies, address, half, start, here, inside, rate, segment, settings, RULE, COPY)
    else:
        inside = here < size
        member = here // own
        own_rates = tl.load(rates + member, mask=inside, other=0.0)
        own_rates *= tl.load(scales + segment * members + member, mask=inside, other=0.0)
        _move_block(
            values, memory, copies, address, half, start, here, inside, own_rates, segment, settings, RULE, COPY
        )


@triton.jit
def _move_block(
    values, memory, copies, address, half, start, here, inside, rate, segment, settings,
    RULE: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    at = start + here
    remembered = tl.load(memory + at, mask=inside, other=0.0, eviction_policy="evict_first")
    value = tl.load(values + at, mask=inside, other=0.0, eviction_policy="evict_first")
    if half:
        halves = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), 16)
        gradient = tl.load(halves + here, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    else:
        singles = tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)
        gradient = tl.load(singles + here, mask=inside, other=0.0, eviction_policy="evict_first")
    value, remembered = RULE(value, remembered, gradient, rate, segment, settings)
    tl.store(memory + at, remembered, mask=inside, eviction_policy="evict_first")
    tl.store(values + at, value, mask=inside, eviction_policy="evict_first")
    if COPY:
        tl.store(copies + at, value.to(copies.dtype.element_ty), mask=inside)
