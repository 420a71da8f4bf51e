"""The arguments of a kernel other than tensors, and helpers for memory layouts."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hullo.bases import Base, Formula, Slope, get_base
from hullo.bases.formulas import FUNCTIONS
from hullo.bases.least_squares import Function
from hullo.parametrizations import BuiltInParametrization, get_parametrization


@dataclass(frozen=True)
class CombineSpec:
    """Specify a combination: all arguments of a kernel that are not tensors.

    `order` says which derivatives of the bases are combined, instead of the bases; only the fused kernels read it.
    """

    bases: tuple[Base, ...]
    parametrization: BuiltInParametrization
    channel_dim: int
    order: int = 0

    has_formulas: bool = field(init=False, compare=False)  # whether all bases have one, which the fused kernels need

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_formulas", all(base.formula is not None for base in self.bases))

    @property
    def functions(self) -> list[tuple[Function, Slope]]:
        """Return the value, and the slope from x and the value, of every base, or of its derivative of that order."""
        if self.order == 0:
            return [(base.function, base.slope) for base in self.bases]
        return [_derivative(base, self.order) for base in self.bases]

    @property
    def encoded(self) -> str:
        """Return the spec as a string, which a graph can hold: ``recentred 1 identity;relu;tanh``."""
        return f"{self.parametrization.name} {self.channel_dim} {';'.join(item.name for item in self.bases)}"

    @classmethod
    def decode(cls, encoded: str) -> CombineSpec:
        """Return the spec of a string."""
        parametrization, channel_dim, names = encoded.split(" ")
        return cls(tuple(map(get_base, names.split(";"))), get_parametrization(parametrization), int(channel_dim))


@functools.cache
def _derivative(base: Base, order: int) -> tuple[Function, Slope]:
    """Return a derivative of a base, as a function and its slope."""
    text = base.formula or Formula("", "")  # bases without formulas have no fused kernels, which alone ask for this
    value, slope = Formula(text.derivative(order), text.derivative(order + 1)).functions(FUNCTIONS)
    return lambda x: torch.zeros_like(x) + value(x), slope  # a tensor also where the value is a number


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
    if x.is_contiguous() and t.is_contiguous():  # in less time than the general case
        return t
    return t if t.permute(order).is_contiguous() else torch.empty_like(x, dtype=t.dtype).copy_(t)


def extents(x: Tensor, order: list[int], raw: Tensor, spec: CombineSpec) -> tuple[int, int, int]:
    """Return the sizes of x viewed as (outer, groups, inner), in memory order."""
    if raw.dim() == 1:
        return 1, 1, x.numel()
    outer = math.prod(x.shape[dim] for dim in order[: order.index(spec.channel_dim % x.dim())])
    return outer, raw.shape[0], x.numel() // max(1, outer * raw.shape[0])
