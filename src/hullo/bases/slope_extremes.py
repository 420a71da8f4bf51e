"""Compute the minimum and maximum slope of a combination of bases by branch and bound, with guaranteed accuracy.

The slope of a combination is the combination of slopes. The real line, up to 2^128 on either side, is divided into
cells. The catalogue knows where the slope of each base turns from rising to falling or back (:attr:`Base.turns`), so
its slopes at the ends of a cell between two turns enclose all others; the sum of these bounds encloses the slope of the
combination. Slopes at points bound the extreme from the other side. Cells that may contain a slope beyond the most
extreme one found are subdivided until none is left.

Everything that does not depend on coefficients is cached per base, so most queries take a few matrix products. Beyond
2^128 all slopes of the catalogue differ from their limits by less than 2^-128, except those of waves and those that
grow without bound. Of the latter, the one that grows fastest decides which extreme is infinite. The slope of a wave
turns too often: its bounds are known beside bases of constant slope, such as the identity, and unknown beside others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hullo.bases.base import Base

ACCURACY = 1e-7
"""The accuracy of extremes, relative to the largest slope that the coefficients and bases allow, see
:func:`largest_slope`, or to the extreme itself."""

_NEAR, _STEP = 16.0, 1 / 64  # cells of equal width near the origin ...
_FAR, _PER_DOUBLING = 128, 8  # ... and, further out, of equal ratio, up to 2^128
_PARTS = 8  # of a cell that is subdivided
_MAX_CELLS = 2_000_000
_OUTSIDE = 2.0**100  # where bases that grow without bound are compared


@dataclass(frozen=True)
class _Cells:
    low: Tensor
    high: Tensor

    @property
    def middle(self) -> Tensor:
        return self.low + (self.high - self.low) / 2

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return the first and last numbers inside each cell: its ends may be kinks."""
        infinity = torch.full_like(self.low, math.inf)
        return torch.nextafter(self.low, infinity), torch.nextafter(self.high, -infinity)

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
    if any(item.is_wave for item in resolved):
        apart = [item for item in resolved if item.slope_bounds[0] != item.slope_bounds[1]]
        bounds = [(c * item.slope_bounds[0], c * item.slope_bounds[1]) for c, item in used]
        return None if len(apart) > 1 else (sum(map(min, bounds)), sum(map(max, bounds)))
    unit = 2.0 ** (math.frexp(max(abs(c) for c, _ in used))[1] - 1)  # avoids overflow
    scaled = [c / unit for c, _ in used]
    sides, scale = _infinite_sides(scaled, resolved), largest_slope(scaled, resolved)
    weights = torch.tensor(scaled, dtype=torch.float64)
    edges = tuple(sorted({edge for item in resolved for edge in (*item.kinks, *item.turns)}))
    cells, enclosures, num_cells = _first_cells(edges), [_first_enclosure(item, edges) for item in resolved], 0
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
        enclosures = [_enclose(item, cells) for item in resolved]


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


def _enclose(item: Base, cells: _Cells) -> _Enclosure:
    """Return the bounds of a slope on cells without turns inside, and the slopes at both ends and in the middle."""
    first, last = map(item.derivative, cells.ends())
    points = torch.stack([first, item.derivative(cells.middle), last])
    return _Enclosure(torch.minimum(first, last), torch.maximum(first, last), points)


@functools.lru_cache(maxsize=64)
def _first_enclosure(item: Base, edges: tuple[float, ...]) -> _Enclosure:
    return _enclose(item, _first_cells(edges))


@functools.lru_cache(maxsize=8)
def _first_cells(edges: tuple[float, ...]) -> _Cells:
    near = torch.arange(-_NEAR, _NEAR, _STEP, dtype=torch.float64)
    doublings = torch.arange(0, (_FAR - math.log2(_NEAR)) * _PER_DOUBLING + 1, dtype=torch.float64) / _PER_DOUBLING
    far = _NEAR * doublings.exp2()
    ends = torch.cat([-far, near, far, torch.tensor(edges, dtype=torch.float64)]).sort().values.unique_consecutive()  # type: ignore[no-untyped-call]
    return _Cells(ends[:-1], ends[1:])
