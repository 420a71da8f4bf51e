"""The arguments of a kernel other than tensors, and helpers for memory layouts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hullo.bases import Base, Formula, Slope
from hullo.formulas import FUNCTIONS
from hullo.least_squares import Function
from hullo.parametrizations import BuiltInParametrization


@dataclass(frozen=True)
class CombineSpec:
    """Specify a combination: all arguments of a kernel that are not tensors.

    `order` says which derivatives of the bases are combined, instead of the bases; only the fused kernels read it.
    """

    bases: tuple[Base, ...]
    parametrization: BuiltInParametrization
    channel_dim: int
    order: int = 0

    @functools.cached_property
    def functions(self) -> tuple[tuple[Function, Slope], ...]:
        """Return the value, and the slope from x and the value, of every base, or of its derivative of that order."""
        if self.order == 0:
            return tuple((base.function, base.slope) for base in self.bases)
        texts = [base.formula or Formula("", "") for base in self.bases]  # kernels without formulas have no order
        derivatives = [Formula(text.derivative(self.order), text.derivative(self.order + 1)) for text in texts]
        return tuple((_like_x(value), slope) for value, slope in (d.functions(FUNCTIONS) for d in derivatives))

    @functools.cached_property
    def has_formulas(self) -> bool:
        """Return whether every base has a formula, which the fused kernels need."""
        return all(base.formula is not None for base in self.bases)

    @property
    def spelled(self) -> tuple[str, str, int]:
        """Return the spec as strings and numbers, which a graph can hold; :func:`hullo.operators.spec` reads them."""
        return ";".join(item.name for item in self.bases), self.parametrization.name, self.channel_dim


def _like_x(function: Callable[[Tensor], Tensor | float]) -> Function:
    """Return a function that returns a tensor also where the given one is constant and returns a number."""
    return lambda x: torch.zeros_like(x) + function(x)


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
