"""Known functions: combinations of bases that a hull can start as."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from hullo.bases import Base, get_base, resolve
from hullo.bases.least_squares import express
from hullo.recognition.find_base import combination

AMBIGUOUS = frozenset({"sigmoid", "hardsigmoid", "softplus", "sin", "arctan", "asinh", "erf"})
"""Functions that often are gates, probabilities, positivity constraints or positional encodings, not activations."""

LEARNED = {"prelu": ("identity", "relu"), "xielu": ("identity", "relu2", "xielu_negative")}
"""Bases of activations with parameters."""

NOT_IN_CATALOGUE = (
    "it is not in the catalogue, or has parameters that are not recognized; hullo.add_base adds a function"
)

_PAPER = ("identity", "relu", "tanh")


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
