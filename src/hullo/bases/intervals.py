"""Interval arithmetic over formulas: bounds that hold for every x of an interval.

With the functions of :data:`FUNCTIONS` in the place of those of :mod:`hullo.bases.formulas`, the formula of a slope
computes bounds of the slope. Bounds are rounded outwards: each operation widens its result by more than the rounding
errors of float64 arithmetic and of PyTorch's functions.

Intervals are open: a jump at an endpoint, as at a kink, does not affect the bounds inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ARITHMETIC = 2.0**-52  # relative error of one operation, twice over
_FUNCTION = 2.0**-48  # relative error of PyTorch's functions, many times over
_TINY = 2.0**-1070  # of numbers too small for a relative error


@dataclass(frozen=True, eq=False)
class Interval:
    """Hold lower and upper bounds, one pair for each of many intervals.

    Two complements keep bounds tight where a function saturates: of 1 - f, as for a sigmoid, and of 1 - f^2, as for a
    tanh.
    """

    low: Tensor
    high: Tensor
    complement: Interval | None = None
    square_complement: Interval | None = None

    def widened(self, error: float, tiny: float = 0.0) -> Interval:
        return Interval(self.low - (self.low.abs() * error + tiny), self.high + (self.high.abs() * error + tiny))

    def constant(self, number: float) -> Interval:
        """Return the same number for every interval."""
        return Interval(torch.full_like(self.low, number), torch.full_like(self.low, number))

    def _interval(self, other: Interval | float) -> Interval:
        return other if isinstance(other, Interval) else self.constant(other)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __add__(self, other: Interval | float) -> Interval:
        other = self._interval(other)
        return Interval(self.low + other.low, self.high + other.high).widened(_ARITHMETIC)  # a sum of 0 is exact

    __radd__ = __add__

    def __sub__(self, other: Interval | float) -> Interval:
        return self + -self._interval(other)

    def __rsub__(self, other: float) -> Interval:
        return self.complement if other == 1 and self.complement is not None else self.constant(other) - self

    def __mul__(self, other: Interval | float) -> Interval:
        if other is self:
            return square(self)
        other = self._interval(other)
        products = torch.stack([a * b for a in (self.low, self.high) for b in (other.low, other.high)])
        products = products.nan_to_num(0.0, math.inf, -math.inf)  # zero times infinity, a bound that is not reached
        return Interval(products.amin(0), products.amax(0)).widened(_ARITHMETIC, _TINY)

    __rmul__ = __mul__

    def __truediv__(self, other: Interval | float) -> Interval:
        other = self._interval(other)
        has_zero = (other.low <= 0) & (other.high >= 0)
        low, high = (1 / other.high).where(~has_zero, -math.inf), (1 / other.low).where(~has_zero, math.inf)
        return self * Interval(low, high).widened(_ARITHMETIC, _TINY)

    def __rtruediv__(self, other: float) -> Interval:
        return self.constant(other) / self

    def __lt__(self, other: float) -> Condition:
        return Condition(self.high <= other, self.low >= other)

    def __gt__(self, other: float) -> Condition:
        return Condition(self.low >= other, self.high <= other)

    def rising(self, function: Callable[[Tensor], Tensor], low: float = -math.inf, high: float = math.inf) -> Interval:
        """Return the interval of a non-decreasing function, whose values lie between two numbers."""
        found = Interval(function(self.low), function(self.high)).widened(_FUNCTION, _TINY)
        return Interval(found.low.clamp(low, high), found.high.clamp(low, high))

    def falling(self, function: Callable[[Tensor], Tensor]) -> Interval:
        """Return the interval of a positive, non-increasing function."""
        return (-self).rising(lambda x: function(-x), 0.0)


@dataclass(frozen=True)
class Condition:
    """Hold where a comparison is true on the whole interval, and where it is false on all of it."""

    always: Tensor
    never: Tensor


def _where(condition: Condition, yes: Interval | float, no: Interval | float) -> Interval:
    """Return one of two bounds, or their union where the comparison holds on a part of the interval."""
    first = yes if isinstance(yes, Interval) else no
    assert isinstance(first, Interval)  # noqa: S101  (a formula with two numbers here would be constant)
    yes, no = first._interval(yes), first._interval(no)
    both = ~(condition.always | condition.never)
    low = torch.where(condition.always, yes.low, no.low).where(~both, torch.minimum(yes.low, no.low))
    high = torch.where(condition.always, yes.high, no.high).where(~both, torch.maximum(yes.high, no.high))
    return Interval(low, high)


def _abs(x: Interval) -> Interval:
    ends = torch.stack([x.low.abs(), x.high.abs()])
    crosses = (x.low < 0) & (x.high > 0)
    return Interval(ends.amin(0).where(~crosses, 0.0), ends.amax(0))


def square(x: Interval) -> Interval:
    ends = _abs(x)
    found = Interval(ends.low * ends.low, ends.high * ends.high).widened(_ARITHMETIC, _TINY)
    return Interval(found.low, found.high, complement=x.square_complement)


def _sigmoid(x: Interval) -> Interval:
    found = x.rising(torch.sigmoid, 0, 1)
    return Interval(found.low, found.high, complement=(-x).rising(torch.sigmoid, 0, 1))


def _tanh(x: Interval) -> Interval:
    found = x.rising(torch.tanh, -1, 1)
    slopes = _abs(x).falling(lambda m: 4 * torch.sigmoid(2 * m) * torch.sigmoid(-2 * m))  # 1 - tanh(x)^2
    return Interval(found.low, found.high, square_complement=slopes)


def _normal_pdf(x: Interval) -> Interval:
    return (0.5 * square(x)).falling(lambda q: torch.exp(-q) / math.sqrt(2 * math.pi))


def _normal_tail(x: Interval) -> Interval:
    return (math.sqrt(0.5) * _abs(x)).falling(lambda z: 0.5 * torch.erfc(z))


def _contains(x: Interval, offset: float) -> Tensor:
    """Return whether an interval may contain offset + 2 pi n for an integer n."""
    turns = Interval((x.low - offset) / (2 * math.pi), (x.high - offset) / (2 * math.pi)).widened(2.0**-50, 2.0**-50)
    return turns.high.floor() >= turns.low.ceil()


def _wave(x: Interval, function: Callable[[Tensor], Tensor], top: float) -> Interval:
    """Return the interval of sin or cos; `top` is where it is 1."""
    ends = torch.stack([function(x.low), function(x.high)])
    found = Interval(ends.amin(0), ends.amax(0)).widened(_FUNCTION, 2.0**-48)
    low, high = found.low.clamp_min(-1.0), found.high.clamp_max(1.0)
    return Interval(low.where(~_contains(x, top + math.pi), -1.0), high.where(~_contains(x, top), 1.0))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": _abs,
    "asinh": lambda x: x.rising(torch.asinh),
    "atan": lambda x: x.rising(torch.atan),
    "clamp": lambda x, low, high: Interval(x.low.clamp(low, high), x.high.clamp(low, high)),
    "cos": lambda x: _wave(x, torch.cos, 0.0),
    "erf": lambda x: x.rising(torch.erf, -1, 1),
    "exp": lambda x: x.rising(torch.exp, 0),
    "expm1": lambda x: x.rising(torch.expm1, -1),
    "log1p": lambda x: x.rising(torch.log1p),
    "minimum": lambda x, most: Interval(x.low.clamp_max(most), x.high.clamp_max(most)),
    "normal_pdf": _normal_pdf,
    "normal_tail": _normal_tail,
    "positive_part": lambda x: Interval(x.low.clamp_min(0), x.high.clamp_min(0)),
    "sigmoid": _sigmoid,
    "sin": lambda x: _wave(x, torch.sin, math.pi / 2),
    "sqrt": lambda x: Interval(x.low.clamp_min(0), x.high.clamp_min(0)).rising(torch.sqrt, 0),
    "square": square,
    "step": lambda x: _where(x > 0, 1.0, x.constant(0.0)),
    "tanh": _tanh,
    "where": _where,
}
"""The functions that a formula may call, for intervals."""
