"""Compare functions with the bases of the catalogue, and hold those that a hull can start as."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hullo._compat import real_tensors
from hullo.bases import Base, all_bases, get_base, make_member, resolve
from hullo.bases.least_squares import express

AMBIGUOUS = frozenset({"sigmoid", "hardsigmoid", "softplus", "sin", "arctan", "asinh", "erf"})
"""Functions that often are gates, probabilities, positivity constraints or positional encodings, not activations."""

LEARNED = {"prelu": ("identity", "relu"), "xielu": ("identity", "relu2", "xielu_negative")}
"""Bases of activations with parameters."""

NOT_IN_CATALOGUE = (
    "it is not in the catalogue, or has parameters that are not recognized; hullo.add_base adds a function"
)

_PAPER = ("identity", "relu", "tanh")

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


@dataclass(frozen=True)
class Known:
    """Hold a function that a hull can start as: rows of coefficients of bases, one row per channel or one for all."""

    name: str
    bases: tuple[Base, ...]
    rows: tuple[tuple[float, ...], ...] = ((1.0,),)

    @classmethod
    def of(cls, name: str, scale: float = 1.0) -> Known:
        """Return a base of the catalogue, times a constant."""
        item = get_base(name)
        return cls(item.name, (item,), ((scale,),))

    @property
    def family(self) -> str:
        """Return the name without its parameters."""
        return self.name.partition("(")[0]

    @property
    def spelling(self) -> str:
        """Return the name, with the constant it is multiplied by."""
        scale = self.rows[0][0]
        return self.name if len(self.bases) > 1 or scale == 1 else f"{scale:.4g} {self.name}"

    def coefficients(self, bases: Sequence[Base]) -> list[list[float]] | None:
        """Return the coefficients of the function in other bases, one row per channel; None if there are none."""
        if all(item in bases for item in self.bases):
            named = [dict(zip(self.bases, row, strict=True)) for row in self.rows]
            return [[row.get(item, 0.0) for item in bases] for row in named]
        functions = [functools.partial(combination, row, self.bases) for row in self.rows]
        rows = [
            [round(number, 12) for number in solution]
            for solution in express(functions, [item.function for item in bases])
            if solution is not None
        ]
        return rows if len(rows) == len(self.rows) else None


@dataclass(frozen=True)
class Reading:
    """Hold the result of reading an activation; `known` is None, with a reason, if no hull can start as it."""

    known: Known | None
    reason: str = ""


@functools.lru_cache(maxsize=256)
def default_bases(known: Known) -> tuple[Base, ...]:
    """Return the bases of a hull that starts as a function, if none are given."""
    paper = resolve(_PAPER)
    if len(known.bases) > 2:  # a combination with parameters
        return known.bases
    return paper if known.coefficients(paper) else (*resolve(("identity", "tanh")), *known.bases)
