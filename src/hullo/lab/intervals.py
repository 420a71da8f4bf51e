"""How far a mean over a few runs can be trusted: intervals by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, stdev

LEVEL = 0.95
"""How often an interval holds the true mean, if runs scatter normally."""


@dataclass(frozen=True)
class Interval:
    """A mean, and half the width of its 95 % interval; one number alone has none.

    mean +- t s / sqrt(n), where s is the sample's standard deviation and t the quantile of n - 1 degrees of freedom.

    >>> from hullo.lab.intervals import Interval
    >>> Interval.of([80.0, 82.0, 84.0])
    Interval(mean=82.0, half=4.968275423500656, count=3)
    """

    mean: float
    half: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Interval:
        """The interval of at least one number."""
        numbers = list(values)
        count = len(numbers)
        half = t_quantile(count - 1) * stdev(numbers) / math.sqrt(count) if count > 1 else None
        return cls(mean(numbers), half, count)

    @property
    def low(self) -> float:
        return self.mean - (math.inf if self.half is None else self.half)

    @property
    def high(self) -> float:
        return self.mean + (math.inf if self.half is None else self.half)

    def spell(self, form: str = ".2f") -> str:
        """Both numbers as text, in a format such as ``.2f``, or ``+.2f`` for differences.

        >>> Interval(1.25, 0.5, 3).spell("+.1f")
        '+1.2 ± 0.5'
        """
        half = "" if self.half is None else f" ± {self.half:{form.removeprefix('+')}}"
        return f"{self.mean:{form}}{half}"


@lru_cache
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """The t with P(-t < T < t) = level, for a whole number of degrees of freedom.

    >>> round(t_quantile(4), 3)
    2.776
    """
    if degrees < 1 or not 0 < level < 1:
        raise ValueError(f"t_quantile({degrees}, {level}): give at least one degree of freedom and a level in (0, 1)")
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, degrees) < level else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """P(-t < T < t) for t = sqrt(degrees) tan(angle), which is a finite sum.

    sin (1 + cos^2 1/2 + cos^4 (1 3)/(2 4) + ...) for an even number of degrees, and
    2/pi (angle + sin (cos + cos^3 2/3 + cos^5 (2 4)/(3 5) + ...)) for an odd one, up to cos^(degrees - 2).
    """
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
