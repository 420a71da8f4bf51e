"""The arguments of a kernel other than tensors, and helpers for memory layouts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hullo.bases import Base
from hullo.parametrizations import BuiltInParametrization


@dataclass(frozen=True)
class CombineSpec:
    """Specify a combination: all arguments of a kernel that are not tensors."""

    bases: tuple[Base, ...]
    parametrization: BuiltInParametrization
    channel_dim: int

    @property
    def spelled(self) -> tuple[str, str, int]:
        """Return the spec as strings and numbers, which a graph can hold; :func:`hullo.operators.spec` reads them."""
        return ";".join(item.name for item in self.bases), self.parametrization.name, self.channel_dim


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which values are computed and summed: float32 or float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def dense(x: Tensor) -> tuple[Tensor, list[int]]:
    """Return x without gaps in memory, and its dimensions in memory order."""
    if x.is_contiguous():
        return x, list(range(x.dim()))
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    return (x, order) if x.permute(order).is_contiguous() else dense(x.clone())


def laid_out_like(t: Tensor, x: Tensor, order: list[int]) -> Tensor:
    """Return t, copied if its memory layout is not that of x."""
    return t if t.permute(order).is_contiguous() else torch.empty_like(x, dtype=t.dtype).copy_(t)


def extents(x: Tensor, order: list[int], raw: Tensor, spec: CombineSpec) -> tuple[int, int, int]:
    """Return the sizes of x viewed as (outer, groups, inner), in memory order."""
    if raw.dim() == 1:
        return 1, 1, x.numel()
    outer = math.prod(x.shape[dim] for dim in order[: order.index(spec.channel_dim % x.dim())])
    return outer, raw.shape[0], x.numel() // max(1, outer * raw.shape[0])
