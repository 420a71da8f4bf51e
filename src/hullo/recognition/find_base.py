"""Find the base of the catalogue that a function equals, including its parameter."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from hullo.bases import Base, all_bases, get_base, make_member
from hullo.bases.least_squares import express

_FAR = 1e30  # exponentials are constant beyond
_NEAR = 2.0**-12
_POINTS = (-_FAR, -1.0, 0.0, _NEAR, 1.0)

_PARAMETERS: dict[str, Callable[[float, float, float, float, float], float]] = {
    "leaky_relu": lambda far, left, middle, near, right: -left if right == 1 else math.nan,
    "elu": lambda far, left, middle, near, right: -far if right == 1 else math.nan,
    "celu": lambda far, left, middle, near, right: -far if right == 1 else math.nan,
    "softplus": lambda far, left, middle, near, right: math.log(2) / middle,
    "unit_softplus": lambda far, left, middle, near, right: -2 * math.log(2) / far,
    "sin": lambda far, left, middle, near, right: math.asin(near) / _NEAR if abs(near) < 1 else math.nan,
}
"""Solve for the parameter of a family, from the values of a member at five points; `snake` is not supported."""


def candidate_members(function: Callable[[Tensor], Tensor], decimals: int | None = None) -> Iterator[Base]:
    """Yield, for each family with a parameter, the only member that may equal a function.

    Its parameter is rounded to 12 digits; if `decimals` is given, a member rounded to so many decimals comes first.
    """
    values = function(torch.tensor(_POINTS, dtype=torch.float64, device="cpu")).tolist()
    far, left, middle, near, right = values[0], values[1], values[2] or math.nan, values[3], round(values[4], 5)
    for name, solve in _PARAMETERS.items():
        parameter = solve(far or math.nan, left, middle, near, right)
        if math.isnan(parameter) or abs(parameter) > _FAR / 1e6:
            continue
        digits = [float(f"{parameter:.12g}") + 0.0]
        for rounded in digits if decimals is None else [round(parameter, decimals) + 0.0, *digits]:
            with contextlib.suppress(ValueError):  # no member has such a parameter
                yield make_member(name, rounded)


def combination(coefficients: Sequence[float], bases: Sequence[Base], x: Tensor) -> Tensor:
    """Return the values of a combination, by plain operations."""
    return sum((c * item.function(x) for c, item in zip(coefficients, bases, strict=True)), torch.zeros_like(x))


def same_as(coefficients: Sequence[float], bases: tuple[Base, ...], tolerance: float) -> Base | None:
    """Return the base of the catalogue that a combination equals, with a tolerance on each coefficient.

    A base equals the combination if it lies in the span of the bases and has the same coefficients there. The tolerance
    of a coefficient is relative if the slope of its base is unbounded: a small one matters for large inputs.
    """

    def candidates() -> Iterator[tuple[Base, ...]]:
        yield from (bases, all_bases())
        combined = functools.partial(combination, coefficients, bases)
        points = torch.tensor([-7.0, -2.0, -0.5, 0.0, 0.5, 2.0, 7.0], dtype=torch.float64, device="cpu")
        bound = 100 * tolerance * (1 + sum(map(abs, coefficients)))
        for item in candidate_members(combined, decimals=6):
            if bool((combined(points) - item.function(points)).abs().max() <= bound):  # takes less time than the span
                yield (get_base(item.name),)

    def agrees(expected: Sequence[float]) -> bool:
        return all(
            abs(c - e) <= tolerance * (1 if item.has_bounded_slope else abs(e))
            for c, e, item in zip(coefficients, expected, bases, strict=True)
        )

    for items in candidates():
        for item, expected in zip(items, _in_span(bases, items), strict=True):
            if expected is not None and agrees(expected):
                return item
    return None


@functools.lru_cache(maxsize=256)
def _in_span(bases: tuple[Base, ...], candidates: tuple[Base, ...]) -> list[list[float] | None]:
    """Return the coefficients of candidates in these bases, without rounding errors; None for others."""
    found = express([item.function for item in candidates], [item.function for item in bases])
    return [row and [round(number, 12) + 0.0 for number in row] for row in found]
