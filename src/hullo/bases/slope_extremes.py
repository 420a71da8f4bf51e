"""Compute the minimum and maximum slope of a combination of bases by branch and bound, with guaranteed accuracy.

The slope of a combination is the combination of slopes. The real line, up to 2^128 on either side, is divided into
cells. The catalogue knows where the slope of each base turns from rising to falling or back (:attr:`Base.turns`), so
its slopes at the ends of a cell between two turns enclose all others; the sum of these bounds encloses the slope of the
combination. Slopes at points bound the extreme from the other side. Cells that may contain a slope beyond the most
extreme one found are subdivided until none is left.

Beyond 2^128 all slopes of the catalogue differ from their limits by less than 2^-128, except those of waves and those
that grow without bound, which are huge at 2^128 already. The slope of a wave turns too often: its bounds are known
beside bases of constant slope, such as the identity, and unknown beside others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def extremes(coefficients: Sequence[float], bases: Sequence[Base]) -> tuple[float, float] | None:
    """Return the infimum and the supremum of the slope, to `ACCURACY`; None if they are not known with certainty."""
    used = [(c, item) for c, item in zip(coefficients, bases, strict=True) if c != 0]
    if not all(item.is_built_in for _, item in used):
        return None
    if not used:
        return 0.0, 0.0
    if any(item.is_wave for _, item in used):
        apart = [item for _, item in used if item.slope_bounds[0] != item.slope_bounds[1]]
        bounds = [(c * item.slope_bounds[0], c * item.slope_bounds[1]) for c, item in used]
        return None if len(apart) > 1 else (sum(map(min, bounds)), sum(map(max, bounds)))
    unit = 2.0 ** (math.frexp(max(abs(c) for c, _ in used))[1] - 1)  # avoids overflow
    scaled = [(c / unit, item) for c, item in used]
    least, negated = _infimum(scaled), _infimum([(-c, item) for c, item in scaled])
    return None if least is None or negated is None else (unit * least, -unit * negated)


def _infimum(terms: list[tuple[float, Base]]) -> float | None:
    """Return the infimum of the sum of slopes times numbers; None if too many cells would be needed."""
    scale = largest_slope(*zip(*terms, strict=True))
    ends = torch.tensor([-(2.0**_FAR), 2.0**_FAR], dtype=torch.float64)  # beyond `scale` there: without bound
    if float(_slopes(terms, ends).sum(0).min()) < -2 * scale:
        return -math.inf
    low, high = _first_cells([edge for _, item in terms for edge in (*item.kinks, *item.turns)])
    least, num_cells = math.inf, 0
    while True:
        infinity = torch.full_like(low, math.inf)
        first, last = torch.nextafter(low, infinity), torch.nextafter(high, -infinity)  # the ends may be kinks
        at_first, at_last = _slopes(terms, first), _slopes(terms, last)
        least = min(least, float(at_first.sum(0).min()), float(at_last.sum(0).min()))
        margin = ACCURACY * max(scale, abs(least))
        chosen = torch.minimum(at_first, at_last).sum(0) < least - (1 - 1e-3) * margin
        if not bool(chosen.any()):
            return least
        num_cells += _PARTS * int(chosen.sum())
        if num_cells > _MAX_CELLS or not bool((first < last)[chosen].all()):
            return None
        parts = torch.linspace(0, 1, _PARTS + 1, dtype=torch.float64)[:, None]
        cuts = torch.lerp(low[chosen], high[chosen], parts)
        low, high = cuts[:-1].flatten(), cuts[1:].flatten()


def _slopes(terms: list[tuple[float, Base]], x: Tensor) -> Tensor:
    """Return the slope of each base at points, times its number."""
    return torch.stack([c * item.derivative(x) for c, item in terms])


def _first_cells(edges: list[float]) -> tuple[Tensor, Tensor]:
    """Return the ends of cells that have the edges only at their ends."""
    near = torch.arange(-_NEAR, _NEAR, _STEP, dtype=torch.float64)
    doublings = torch.arange(0, (_FAR - math.log2(_NEAR)) * _PER_DOUBLING + 1, dtype=torch.float64) / _PER_DOUBLING
    far = _NEAR * doublings.exp2()
    ends = torch.cat([-far, near, far, torch.tensor(edges, dtype=torch.float64)]).unique()  # type: ignore[no-untyped-call]
    return ends[:-1], ends[1:]


def largest_slope(coefficients: Sequence[float], bases: Sequence[Base]) -> float:
    """Return a bound of the magnitude of slopes from the bounds of the bases, or from their slopes at ±1."""
    return sum(abs(c) * _largest_slope_of(item) for c, item in zip(coefficients, bases, strict=True))


def _largest_slope_of(item: Base) -> float:
    largest = max(map(abs, item.slope_bounds))
    return largest if math.isfinite(largest) else float(item.derivative(torch.tensor([-1.0, 1.0]).double()).abs().max())
