"""Interval arithmetic over formulas: bounds that hold for every x of an interval.

A :class:`Jet` encloses the values of a function and of its derivative on many intervals at once. With the functions
of :data:`FUNCTIONS` in the place of those of :mod:`hullo.bases.formulas`, the formula of a slope computes bounds of the
slope. Bounds are rounded outwards: each operation widens its result by more than the rounding errors of float64
arithmetic and of PyTorch's functions.

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
    """Hold lower and upper bounds, one pair for each of many intervals."""

    low: Tensor
    high: Tensor

    @staticmethod
    def point(value: Tensor) -> Interval:
        return Interval(value, value)

    def widened(self, error: float, tiny: float = 0.0) -> Interval:
        return Interval(self.low - (self.low.abs() * error + tiny), self.high + (self.high.abs() * error + tiny))

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high).widened(_ARITHMETIC)  # a sum of 0 is exact

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        products = torch.stack([a * b for a in (self.low, self.high) for b in (other.low, other.high)])
        products = products.nan_to_num(0.0, math.inf, -math.inf)  # zero times infinity, a bound that is not reached
        return Interval(products.amin(0), products.amax(0)).widened(_ARITHMETIC, _TINY)

    def __truediv__(self, other: Interval) -> Interval:
        inverse = Interval(1 / other.high, 1 / other.low)
        has_zero = (other.low <= 0) & (other.high >= 0)
        inverse = Interval(inverse.low.where(~has_zero, -math.inf), inverse.high.where(~has_zero, math.inf))
        return self * inverse.widened(_ARITHMETIC, _TINY)

    def magnitudes(self) -> Interval:
        """Return the interval of |x|."""
        ends = torch.stack([self.low.abs(), self.high.abs()])
        crosses = (self.low < 0) & (self.high > 0)
        return Interval(ends.amin(0).where(~crosses, 0.0), ends.amax(0))

    def rising(self, function: Callable[[Tensor], Tensor]) -> Interval:
        """Return the interval of a non-decreasing function."""
        return Interval(function(self.low), function(self.high)).widened(_FUNCTION, _TINY)

    def falling(self, function: Callable[[Tensor], Tensor]) -> Interval:
        """Return the interval of a non-increasing function."""
        return Interval(function(self.high), function(self.low)).widened(_FUNCTION, _TINY)

    def clamped(self, low: float, high: float) -> Interval:
        """Return the intersection with two bounds that are known to hold."""
        return Interval(self.low.clamp(low, high), self.high.clamp(low, high))

    def like(self, low: float, high: float) -> Interval:
        """Return the same bounds for every interval."""
        return Interval(torch.full_like(self.low, low), torch.full_like(self.low, high))


@dataclass(frozen=True, eq=False)
class Jet:
    """Hold bounds of a function and of its derivative. Two complements keep them tight where a function saturates.

    Args:
        value: bounds of the function.
        slope: bounds of its derivative.
        complement: one minus the function, if a tighter bound than by subtraction is known, as for a sigmoid.
        square_complement: one minus the square of the function, likewise, as for a tanh.
    """

    value: Interval
    slope: Interval
    complement: Jet | None = None
    square_complement: Jet | None = None

    @staticmethod
    def variable(low: Tensor, high: Tensor) -> Jet:
        """Return the jet of x on the intervals from low to high."""
        return Jet(Interval(low, high), Interval.point(torch.ones_like(low)))

    def constant(self, number: float) -> Jet:
        return Jet(self.value.like(number, number), self.value.like(0.0, 0.0))

    def _jet(self, other: Jet | float) -> Jet:
        return other if isinstance(other, Jet) else self.constant(other)

    def __neg__(self) -> Jet:
        return Jet(-self.value, -self.slope)

    def __add__(self, other: Jet | float) -> Jet:
        other = self._jet(other)
        return Jet(self.value + other.value, self.slope + other.slope)

    __radd__ = __add__

    def __sub__(self, other: Jet | float) -> Jet:
        return self + -self._jet(other)

    def __rsub__(self, other: float) -> Jet:
        return self.complement if other == 1 and self.complement is not None else self.constant(other) - self

    def __mul__(self, other: Jet | float) -> Jet:
        if other is self:
            return square(self)
        other = self._jet(other)
        return Jet(self.value * other.value, self.slope * other.value + self.value * other.slope)

    __rmul__ = __mul__

    def __truediv__(self, other: Jet | float) -> Jet:
        other = self._jet(other)
        ratio = self.value / other.value
        return Jet(ratio, (self.slope - ratio * other.slope) / other.value)

    def __rtruediv__(self, other: float) -> Jet:
        return self.constant(other) / self

    def __lt__(self, other: float) -> Condition:
        return Condition(self.value.high <= other, self.value.low >= other)

    def __gt__(self, other: float) -> Condition:
        return Condition(self.value.low >= other, self.value.high <= other)

    def chain(self, value: Interval, outer: Interval) -> Jet:
        """Return the jet of a function of this one, from its values and the derivative of the outer function."""
        return Jet(value, outer * self.slope)


@dataclass(frozen=True)
class Condition:
    """Hold where a comparison is true on the whole interval, and where it is false on all of it."""

    always: Tensor
    never: Tensor

    def choose(self, yes: Interval, no: Interval) -> Interval:
        """Return one of two bounds, or their union where the comparison holds on a part of the interval."""
        both = ~(self.always | self.never)
        low = torch.where(self.always, yes.low, no.low).where(~both, torch.minimum(yes.low, no.low))
        high = torch.where(self.always, yes.high, no.high).where(~both, torch.maximum(yes.high, no.high))
        return Interval(low, high)


def _where(condition: Condition, yes: Jet | float, no: Jet | float) -> Jet:
    first = yes if isinstance(yes, Jet) else no
    assert isinstance(first, Jet)  # noqa: S101  (a formula with two numbers here would be constant)
    yes, no = first._jet(yes), first._jet(no)
    unknown = first.value.like(-math.inf, math.inf)  # there may be a jump in between
    decided = Condition(condition.always | condition.never, torch.zeros_like(condition.always))
    slope = condition.choose(yes.slope, no.slope)
    return Jet(
        condition.choose(yes.value, no.value),
        Interval(slope.low.where(decided.always, unknown.low), slope.high.where(decided.always, unknown.high)),
    )


def square(x: Jet) -> Jet:
    ends = x.value.magnitudes()
    value = Interval(ends.low * ends.low, ends.high * ends.high).widened(_ARITHMETIC, _TINY)
    result = x.chain(value, x.value + x.value)
    return Jet(result.value, result.slope, complement=x.square_complement)


def _sigmoid(x: Jet) -> Jet:
    value, other = x.value.rising(torch.sigmoid).clamped(0, 1), (-x.value).rising(torch.sigmoid).clamped(0, 1)
    slope = x.chain(value, _bell(x.value, 1.0)).slope
    return Jet(value, slope, complement=Jet(other, -slope))


def _bell(x: Interval, scale: float) -> Interval:
    """Return the interval of sigmoid(scale x) (1 - sigmoid(scale x)), which decreases with |x|."""
    return x.magnitudes().falling(lambda m: torch.sigmoid(scale * m) * torch.sigmoid(-scale * m))


def _tanh(x: Jet) -> Jet:
    value = x.value.rising(torch.tanh).clamped(-1, 1)
    bell = _bell(x.value, 2.0)
    slopes = Interval(4 * bell.low, 4 * bell.high)  # 1 - tanh(x)^2
    result = x.chain(value, slopes)
    minus_two = x.value.like(-2.0, -2.0)
    return Jet(result.value, result.slope, square_complement=x.chain(slopes, minus_two * value * slopes))


def _normal_pdf(x: Jet) -> Jet:
    half = x.value.magnitudes()
    half = Interval(0.5 * half.low * half.low, 0.5 * half.high * half.high).widened(2 * _ARITHMETIC)
    bell = half.falling(lambda q: torch.exp(-q) / math.sqrt(2 * math.pi))
    return x.chain(bell, -x.value * bell)


def _normal_tail(x: Jet) -> Jet:
    scaled = x.value.magnitudes()
    scaled = Interval(math.sqrt(0.5) * scaled.low, math.sqrt(0.5) * scaled.high).widened(2 * _ARITHMETIC)
    value = scaled.falling(lambda z: 0.5 * torch.erfc(z)).clamped(0, 0.5)
    return x.chain(value, -(_sign(x) * _normal_pdf(x).value))


def _sign(x: Jet) -> Interval:
    return (x < 0).choose(x.value.like(-1.0, -1.0), x.value.like(1.0, 1.0))


def _erf(x: Jet) -> Jet:
    root = math.sqrt(2.0)
    bell = _normal_pdf(x * root).value
    return x.chain(
        x.value.rising(torch.erf).clamped(-1, 1), bell * x.value.like(2 * root, 2 * root).widened(_ARITHMETIC)
    )


def _exp(x: Jet) -> Jet:
    value = x.value.rising(torch.exp)
    return x.chain(value, value)


def _contains(x: Interval, offset: float) -> Tensor:
    """Return whether an interval may contain offset + 2 pi n for an integer n."""
    turns = Interval((x.low - offset) / (2 * math.pi), (x.high - offset) / (2 * math.pi)).widened(2.0**-50, 2.0**-50)
    return turns.high.floor() >= turns.low.ceil()


def _wave(x: Interval, function: Callable[[Tensor], Tensor], top: float) -> Interval:
    """Return the interval of sin or cos; `top` is where it is 1."""
    ends = torch.stack([function(x.low), function(x.high)])
    range_at_ends = Interval(ends.amin(0), ends.amax(0)).widened(_FUNCTION, 2.0**-48).clamped(-1, 1)
    return Interval(
        range_at_ends.low.where(~_contains(x, top + math.pi), -1.0), range_at_ends.high.where(~_contains(x, top), 1.0)
    )


def _sin(x: Jet) -> Jet:
    return x.chain(_wave(x.value, torch.sin, math.pi / 2), _wave(x.value, torch.cos, 0.0))


def _cos(x: Jet) -> Jet:
    return x.chain(_wave(x.value, torch.cos, 0.0), -_wave(x.value, torch.sin, math.pi / 2))


def _step(x: Jet) -> Jet:
    return _where(x > 0, 1.0, x.constant(0.0))


def _clamp(x: Jet, low: float, high: float) -> Jet:
    outside = (
        (x < low).choose(x.value.like(0, 0), x.value.like(1, 1)),
        (x > high).choose(x.value.like(0, 0), x.value.like(1, 1)),
    )
    return x.chain(x.value.clamped(low, high), outside[0] * outside[1])


def _one_over(x: Interval) -> Interval:
    return x.like(1.0, 1.0) / x


def _root_of_one_plus_square(x: Jet) -> Jet:
    return _sqrt(square(x) + 1.0)


def _sqrt(x: Jet) -> Jet:
    value = x.value.clamped(0, math.inf).rising(torch.sqrt)
    return x.chain(value, _one_over(value + value))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": lambda x: x.chain(x.value.magnitudes(), _sign(x)),
    "asinh": lambda x: x.chain(x.value.rising(torch.asinh), _one_over(_root_of_one_plus_square(x).value)),
    "atan": lambda x: x.chain(x.value.rising(torch.atan), _one_over((square(x) + 1.0).value)),
    "clamp": _clamp,
    "cos": _cos,
    "erf": _erf,
    "exp": _exp,
    "expm1": lambda x: x.chain(x.value.rising(torch.expm1), x.value.rising(torch.exp)),
    "log1p": lambda x: x.chain(x.value.rising(torch.log1p), _one_over((x + 1.0).value)),
    "minimum": lambda x, most: _clamp(x, -math.inf, most),
    "normal_pdf": _normal_pdf,
    "normal_tail": _normal_tail,
    "positive_part": lambda x: _clamp(x, 0.0, math.inf),
    "sigmoid": _sigmoid,
    "sin": _sin,
    "sqrt": _sqrt,
    "square": square,
    "step": _step,
    "tanh": _tanh,
    "where": _where,
}
"""The functions that a formula may call, for jets."""
