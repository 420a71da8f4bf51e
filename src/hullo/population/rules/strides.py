"""Operations on the memory of a tensor, `as_strided` and `as_strided_scatter`, for all members."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from hullo.population.trace.export import LoweringError, at_source
from hullo.population.values import Value


def memory_of(node: fx.Node) -> int | None:
    """Return the id of the memory of a node's value in the trace."""
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


def is_dense(x: Tensor) -> bool:
    """Return whether the entries of a tensor fill their memory without gaps, in any order."""
    return sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) == x.numel() - 1


def write_strided(
    members: int, node: fx.Node, x: Value, source: Value, size: Any, stride: Any, storage_offset: int | None = None
) -> Value:
    """Compute `as_strided_scatter`, for members whose memory begins with x."""
    traced = node.args[0].meta["val"]  # type: ignore[union-attr]
    start = 0 if storage_offset is None else storage_offset - traced.storage_offset()
    if not traced.is_contiguous() or start < 0:
        raise LoweringError(f"{node.target} writes memory outside of its input{at_source(node)}; use indices instead")
    index = torch.arange(traced.numel(), device=x.device).as_strided(size, stride, start).flatten()
    written = x.at(0, members).reshape(members, -1).index_copy(1, index, source.at(0, members).reshape(members, -1))
    return Value(written.view(members, *traced.shape), 0)


def read_strided(
    members: int, node: fx.Node, x: Value, size: Any, stride: Any, storage_offset: int | None = None
) -> Value:
    """Compute `as_strided`: each member's input gets the order in memory that it has in the trace."""
    traced = node.args[0].meta["val"]  # type: ignore[union-attr]
    start = 0 if storage_offset is None else storage_offset - traced.storage_offset()
    end = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not is_dense(traced) or not 0 <= start <= end < traced.numel():
        raise LoweringError(f"{node.target} reads memory outside of its input{at_source(node)}; use indices instead")
    order = sorted(range(traced.dim()), key=lambda d: -traced.stride(d))
    memory = x.at(0, members).permute(0, *(1 + d for d in order)).reshape(members, -1).contiguous()
    return Value(memory.as_strided((members, *size), (traced.numel(), *stride), start), 0)
