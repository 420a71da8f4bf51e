"""Operations on the memory of a tensor, `as_strided` and `as_strided_scatter`, for all members."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from hullo.population.trace.export import LoweringError, at_source
from hullo.population.values import Value

aten = torch.ops.aten
STRIDED = (aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default)


def is_dense(x: Tensor) -> bool:
    """Return whether the entries of a tensor fill their memory without gaps, in any order."""
    return sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) == x.numel() - 1


def call_strided(members: int, node: fx.Node, x: Value, *args: Any) -> Value:
    """Compute an operation on memory: each member's input gets the order in memory that it has in the trace."""
    *source, size, stride, offset = args if isinstance(args[-1], int) else (*args, None)
    is_shared = all(value.dim is None for value in (x, *source))
    members = 1 if is_shared else members
    traced = node.args[0].meta["val"]  # type: ignore[union-attr]
    start = 0 if offset is None else offset - traced.storage_offset()
    end = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not is_dense(traced) or not 0 <= start <= end < traced.numel():
        raise LoweringError(f"{node.target} uses memory outside of its input{at_source(node)}; use indices instead")
    order = sorted(range(traced.dim()), key=lambda d: -traced.stride(d))
    ordered = x.at(0, members).permute(0, *(1 + d for d in order))
    memory = ordered.clone(memory_format=torch.contiguous_format) if source else ordered.contiguous()
    y = memory.as_strided((members, *size), (traced.numel(), *stride), memory.storage_offset() + start)
    if source:
        y.copy_(source[0].at(0, members))
        y = memory.permute(0, *(1 + order.index(d) for d in range(traced.dim())))
    return Value(y[0]) if is_shared else Value(y, 0)
