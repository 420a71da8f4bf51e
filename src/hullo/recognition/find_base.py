"""Find the base of the catalogue that a function equals, including its parameter."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from hullo._compat import real_tensors
from hullo.bases import Base, all_bases, get_base, make_member

_FAR = 1e30  # exponentials are constant beyond
_NEAR = 2.0**-12
_UNDERFLOW = 1e-300
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


@functools.cache
@real_tensors()
def points() -> Tensor:
    """Return numbers in float64 that float32 can hold, too, dense near the origin, in random order."""
    generator = torch.Generator().manual_seed(20180130)
    near = 24 * torch.rand(700, dtype=torch.float64, generator=generator) - 12
    far = 128 * torch.rand(200, dtype=torch.float64, generator=generator) - 64
    magnitudes = (240 * torch.rand(200, dtype=torch.float64, generator=generator) - 120).exp2()
    whole = torch.arange(-24.0, 25.0, dtype=torch.float64)
    x = torch.cat([near, far, magnitudes, -magnitudes, whole, whole + 1e-3, whole - 1e-3])
    return x[torch.randperm(len(x), generator=generator)]


@functools.lru_cache(maxsize=8)
@real_tensors()
def values(bases: tuple[Base, ...]) -> Tensor:
    """Return the values of bases at the test points, one row per base."""
    return torch.stack([item.function(points()) for item in bases])


def combination(coefficients: Sequence[float], bases: Sequence[Base], x: Tensor) -> Tensor:
    """Return the values of a combination, by plain operations."""
    return sum((c * item.function(x) for c, item in zip(coefficients, bases, strict=True)), torch.zeros_like(x))


def same_as(coefficients: Sequence[float], bases: tuple[Base, ...], tolerance: float) -> Base | None:
    """Return the base of the catalogue that a combination equals, with a tolerance on each coefficient.

    At every test point, the two may differ by what the tolerance changes there. It is relative to the coefficient if
    the slope of its base is unbounded: a small one matters for large inputs.
    """
    table = values(bases)
    own = torch.tensor(coefficients, dtype=torch.float64, device="cpu")
    is_bounded = torch.tensor([item.has_bounded_slope for item in bases], device="cpu")
    slack = tolerance * torch.where(is_bounded, 1.0, own.abs())
    total, bound = own @ table, slack @ table.abs() + _UNDERFLOW

    def agrees(row: Tensor) -> bool:
        return bool((((row - total).abs() <= bound) | ~bound.isfinite()).all())

    members = candidate_members(functools.partial(combination, coefficients, bases), decimals=6)
    candidates = [*dict.fromkeys((*bases, *all_bases())), *(get_base(item.name) for item in members)]
    return next((item for item in candidates if agrees(item.function(points()))), None)
