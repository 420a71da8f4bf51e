"""Compute the minimum and maximum slope of a combination of bases by branch and bound, with guaranteed accuracy.

The slope of a combination is the combination of slopes. The real line, up to 2^128 on either side, is divided into
cells. Interval arithmetic (:mod:`hullo.bases.intervals`) encloses each base's slope on a cell; the sum of the bounds
encloses the slope of the combination. Slopes at points bound the extreme from the other side. Cells that may contain a
slope beyond the most extreme one found are subdivided until none is left.

Everything that does not depend on coefficients is cached per base, so most queries take a few matrix products. Beyond
2^128 all slopes of the catalogue differ from their limits by less than 2^-128, except those that oscillate and those
that grow without bound. Of the latter, the one that grows fastest decides which extreme is infinite.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hullo.bases.base import Base
from hullo.bases.intervals import FUNCTIONS, Interval

ACCURACY = 1e-7
"""The accuracy of extremes, relative to the largest slope that the coefficients and bases allow, see
:func:`largest_slope`, or to the extreme itself."""

_NEAR, _STEP = 16.0, 1 / 64  # cells of equal width near the origin ...
_FAR, _PER_DOUBLING = 128, 8  # ... and, further out, of equal ratio, up to 2^128
_PARTS = 8  # of a cell that is subdivided
_INSIDE = 2.0**-36  # relative distance from the ends of a cell at which its slopes are sampled
_MAX_CELLS = 2_000_000
_WHOLE_TURNS = 2.0**36  # multiples of pi are exact enough up to here
_OUTSIDE = 2.0**100  # where bases that grow without bound are compared


@dataclass(frozen=True)
class _Cells:
    low: Tensor
    high: Tensor

    @property
    def middle(self) -> Tensor:
        return self.low + (self.high - self.low) / 2

    def points(self, frequencies: Sequence[float]) -> Tensor:
        """Return points inside each cell: near the ends, the middle, and extremes of waves."""
        inside, infinity = (self.high - self.low) * _INSIDE, torch.full_like(self.low, math.inf)
        first = torch.maximum(self.low + inside, torch.nextafter(self.low, infinity))  # an end may be a kink
        last = torch.minimum(self.high - inside, torch.nextafter(self.high, -infinity))
        wave = []
        for frequency in frequencies:
            turns = (self.middle * (frequency / math.pi)).round()
            is_exact = self.middle.abs() * frequency < _WHOLE_TURNS
            for shift in (-0.5, 0, 0.5, 1):
                at = ((turns + shift) * (math.pi / frequency)).clamp(first, last)
                wave.append(torch.where(is_exact, at, self.middle))
        return torch.stack([first, self.middle, last, *wave])

    def cut(self, chosen: Tensor) -> _Cells:
        """Return the chosen cells, each subdivided."""
        low, high = self.low[chosen], self.high[chosen]
        parts = torch.linspace(0, 1, _PARTS + 1, dtype=torch.float64)
        ends = low + (high - low) * parts[:, None]
        ends[-1] = high
        return _Cells(ends[:-1].flatten(), ends[1:].flatten())


@dataclass(frozen=True)
class _Enclosure:
    """Hold bounds of one base's slope on cells, and slopes at points inside them."""

    low: Tensor
    high: Tensor
    points: Tensor


def extremes(coefficients: Sequence[float], bases: Sequence[Base]) -> tuple[float, float] | None:
    """Return the infimum and the supremum of the slope, to `ACCURACY`; None if they are not known with certainty."""
    used = _used(coefficients, bases)
    if not used:
        return None if used is None else (0.0, 0.0)
    resolved = tuple(item for _, item in used)
    unit = 2.0 ** (math.frexp(max(abs(c) for c, _ in used))[1] - 1)  # avoids overflow
    scaled = [c / unit for c, _ in used]
    sides, scale = _infinite_sides(scaled, resolved), largest_slope(scaled, resolved)
    weights = torch.tensor(scaled, dtype=torch.float64)
    kinks = tuple(sorted({kink for item in resolved for kink in item.kinks}))
    waves = tuple(sorted({frequency for item in resolved for frequency in _frequencies(item)}))
    if len(waves) > 1:  # their sum comes close to extremes that it may never reach
        return None
    cells, enclosures, num_cells = _first_cells(kinks), [_first_enclosure(item, kinks, waves) for item in resolved], 0
    least = [min([math.inf, *(sign * side for side in sides)]) for sign in (1, -1)]  # of the slope, and of its negative
    while True:
        chosen = torch.zeros_like(cells.low, dtype=torch.bool)
        points = torch.stack([item.points for item in enclosures], dim=-1) @ weights
        for n, sign in enumerate((1, -1)):
            least[n] = min(least[n], float((sign * points).nan_to_num(math.inf).min()))
            if least[n] > -math.inf:
                margin = ACCURACY * max(scale, abs(least[n]))
                chosen |= _lower_bounds(sign * weights, enclosures) < least[n] - (1 - 1e-3) * margin
        if not bool(chosen.any()):
            return unit * least[0], -unit * least[1]
        cells = cells.cut(chosen)
        num_cells += len(cells.low)
        if num_cells > _MAX_CELLS or not bool(((cells.low < cells.middle) & (cells.middle < cells.high)).all()):
            return None
        enclosures = [_enclose(item, cells, waves) for item in resolved]


def least_slope(coefficients: Sequence[float], bases: Sequence[Base]) -> float:
    """Return a lower bound of the slope from the bounds of the bases; -inf if they are not certain."""
    used = _used(coefficients, bases)
    return -math.inf if used is None else sum(min(c * bound for bound in item.slope_bounds) for c, item in used)


def _used(coefficients: Sequence[float], bases: Sequence[Base]) -> list[tuple[float, Base]] | None:
    """Return the coefficients that are not zero, and their bases; None if one of them is a user's."""
    used = [(c, item) for c, item in zip(coefficients, bases, strict=True) if c != 0]
    return used if all(item.is_certain for _, item in used) else None


def largest_slope(coefficients: Sequence[float], bases: Sequence[Base]) -> float:
    """Return a bound of the magnitude of slopes from the bounds of the bases, or from their slopes at ±1."""
    return sum(abs(c) * _largest_slope_of(item) for c, item in zip(coefficients, bases, strict=True))


def _largest_slope_of(item: Base) -> float:
    largest = max(map(abs, item.slope_bounds))
    return largest if math.isfinite(largest) else float(item.derivative(torch.tensor([-1.0, 1.0]).double()).abs().max())


def _infinite_sides(coefficients: Sequence[float], bases: Sequence[Base]) -> list[float]:
    """Return the infinite limits of the slope at both ends, those of the base that grows fastest there."""
    infinities = []
    growing = [pair for pair in zip(coefficients, bases, strict=True) if not pair[1].has_bounded_slope]
    for side in (-_OUTSIDE, _OUTSIDE) if growing else ():
        at = torch.tensor([side], dtype=torch.float64)
        slope, c = max(((float(item.derivative(at)), c) for c, item in growing), key=lambda pair: abs(pair[0]))
        if abs(slope) > 1:
            infinities.append(math.copysign(math.inf, c * slope))
    return infinities


def _lower_bounds(weights: Tensor, enclosures: list[_Enclosure]) -> Tensor:
    """Return a lower bound of the slope on each cell."""
    pairs = zip(weights, enclosures, strict=True)
    return torch.stack([c * (item.low if c > 0 else item.high) for c, item in pairs]).sum(0).nan_to_num(-math.inf)


def _enclose(item: Base, cells: _Cells, waves: tuple[float, ...]) -> _Enclosure:
    formula = item.formula
    assert formula is not None  # noqa: S101  (checked by `extremes`)
    function, slope = formula.functions(FUNCTIONS)
    x = Interval(cells.low, cells.high)
    found = slope(x, function(x) if re.search(r"\by\b", formula.slope) else None)
    found = found if isinstance(found, Interval) else x.constant(float(found))
    return _Enclosure(found.low, found.high, item.derivative(cells.points(waves)))


@functools.lru_cache(maxsize=64)
def _first_enclosure(item: Base, kinks: tuple[float, ...], waves: tuple[float, ...]) -> _Enclosure:
    return _enclose(item, _first_cells(kinks), waves)


@functools.lru_cache(maxsize=8)
def _first_cells(kinks: tuple[float, ...]) -> _Cells:
    near = torch.arange(-_NEAR, _NEAR, _STEP, dtype=torch.float64)
    doublings = torch.arange(0, (_FAR - math.log2(_NEAR)) * _PER_DOUBLING + 1, dtype=torch.float64) / _PER_DOUBLING
    far = _NEAR * doublings.exp2()
    ends = torch.cat([-far, near, far, torch.tensor(kinks, dtype=torch.float64)]).sort().values.unique_consecutive()  # type: ignore[no-untyped-call]
    return _Cells(ends[:-1], ends[1:])


def _frequencies(item: Base) -> tuple[float, ...]:
    """Return the frequencies of the waves in a base's slope."""
    slope = item.formula.slope if item.formula else ""
    return tuple(float(factor or 1) for factor in re.findall(r"\b(?:sin|cos)\((?:([^() ]+) \* )?x\)", slope))
