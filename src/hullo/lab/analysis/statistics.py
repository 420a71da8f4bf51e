"""Statistics of a few runs: intervals, tests and corrections for many comparisons, by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import mean, stdev
from typing import Literal

LEVEL = 0.95
"""The probability that an interval covers the true mean if runs scatter normally."""
ALPHA = 1 - LEVEL
"""The error rate of verdicts."""


Error = Literal["mean", "next"]
"""The error of a test or an interval: of the mean, or of one more number."""


def variance_factor(count: int, error: Error = "mean") -> float:
    """Return the variance of an estimate from `count` numbers, as a multiple of the variance of one.

    mean
        1 / n: independent numbers.
    next
        1 + 1 / n: one more number around their mean. A published single run is compared so.

    >>> variance_factor(4), variance_factor(4, "next")
    (0.25, 1.25)
    """
    return 1 / count + (error == "next")


@dataclass(frozen=True)
class Interval:
    """A mean, and half the width of its 95 % interval; None for a single number.

    mean +- t s sqrt(f), where s is the sample's standard deviation, t the quantile of n - 1 degrees of freedom and f
    the `variance_factor`, 1 / n by default.

    >>> from hullo.lab.analysis.statistics import Interval
    >>> Interval.of([80.0, 82.0, 84.0]).spell()
    '82.00 ± 4.97'
    """

    mean: float
    half: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float], error: Error = "mean") -> Interval:
        """Return the interval of the mean of at least one number, or of one more number around it."""
        numbers = list(values)
        count = len(numbers)
        if count == 1:
            return cls(numbers[0], None, 1)
        half = t_quantile(count - 1) * stdev(numbers) * math.sqrt(variance_factor(count, error))
        return cls(mean(numbers), half, count)

    @property
    def low(self) -> float:
        return self.mean - (math.inf if self.half is None else self.half)

    @property
    def high(self) -> float:
        return self.mean + (math.inf if self.half is None else self.half)

    def covers(self, value: float) -> bool:
        """Return whether a number lies inside; an interval without a width covers everything."""
        return self.low <= value <= self.high

    @property
    def decimals(self) -> int:
        """Return the decimals that show two digits of the half width; without one beyond rounding, four of the mean.

        >>> [Interval(*numbers).decimals for numbers in ((2.55575, 0.00108, 64), (52651.2, 707.0, 5), (2.5, None, 1))]
        [4, 0, 3]
        """
        size, digits = abs(self.mean), 4
        if self.half and self.half > 1e-6 * size:
            size, digits = self.half, 2
        return max(0, digits - 1 - math.floor(math.log10(size))) if size else 2

    def spell(self, form: str = ".2f") -> str:
        """Return both numbers as text, in a format such as ``.2f``, or ``+.2f`` for differences.

        >>> Interval(1.25, 0.5, 3).spell("+.1f")
        '+1.2 ± 0.5'
        """
        half = "" if self.half is None else f" ± {self.half:{form.removeprefix('+')}}"
        return f"{self.mean:{form}}{half}"


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Interval | None:
    """Return the mean difference between runs of the same seed; None if there are none.

    >>> paired({0: 81.0, 1: 83.0, 2: 99.0}, {0: 80.0, 1: 80.0}).spell("+.2f")
    '+2.00 ± 12.71'
    """
    shared = sorted(one.keys() & other.keys())
    return Interval.of(one[seed] - other[seed] for seed in shared) if shared else None


def pooled_deviation(samples: Iterable[Sequence[float]]) -> float | None:
    """Return the standard deviation that samples with different means share; None if no sample has two numbers.

    sqrt(sum of (n - 1) s^2 / sum of (n - 1)).

    >>> pooled_deviation([[1.0, 3.0], [10.0, 14.0], [7.0]])
    2.23606797749979
    """
    several = [numbers for numbers in samples if len(numbers) > 1]
    degrees = sum(len(numbers) - 1 for numbers in several)
    squares = math.fsum((len(numbers) - 1) * stdev(numbers) ** 2 for numbers in several)
    return math.sqrt(squares / degrees) if degrees else None


def p_value(values: Sequence[float], expected: float = 0.0, error: Error = "mean") -> float:
    """Return the two-sided p-value of a t test that the mean of the values is `expected`; 1.0 for a single value.

    >>> round(p_value([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    count, difference = len(values), mean(values) - expected
    if count == 1 or difference == 0:
        return 1.0
    deviation = stdev(values) * math.sqrt(variance_factor(count, error))
    return _outside(abs(difference) / deviation, count - 1) if deviation else 0.0


def are_alike(values: Sequence[float]) -> bool:
    """Return whether numbers are equal up to rounding: they then do not say how far others would scatter.

    >>> are_alike([0.1 + 0.2, 0.3]), are_alike([0.3, 0.31])
    (True, False)
    """
    return max(values) - min(values) < 1e-6


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method: rejecting those up to alpha makes any error with probability alpha.

    In ascending order, adjusted_i = max over j <= i of (m - j + 1) p_j. Valid however the comparisons depend on each
    other.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    scaled = (min(1.0, (len(order) - rank) * p_values[i]) for rank, i in enumerate(order))
    placed = dict(zip(order, accumulate(scaled, max), strict=True))
    return [placed[i] for i in range(len(order))]


def partial_conjunction(p_values: Sequence[float], count: int) -> float:
    """Return the p-value of the claim that at least `count` of several effects are there.

    (m - k + 1) times the k-th smallest of m p-values (Benjamini and Heller, 2008), valid however these depend on each
    other. That all of them are there has the largest p-value; that one is, m times the smallest.

    >>> partial_conjunction([0.01, 0.04, 0.03], 3), partial_conjunction([0.01, 0.04, 0.03], 2)
    (0.04, 0.06)
    """
    return min(1.0, (len(p_values) - count + 1) * sorted(p_values)[count - 1])


@lru_cache
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """Return the t with P(-t < T < t) = level, for a whole number of degrees of freedom.

    >>> round(t_quantile(4), 3)
    2.776
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, degrees) < level else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _outside(t: float, degrees: int) -> float:
    """Return P(|T| > t)."""
    return max(0.0, 1 - _within(math.atan(t / math.sqrt(degrees)), degrees))


def _within(angle: float, degrees: int) -> float:
    """Return P(-t < T < t) for t = sqrt(degrees) tan(angle), as a finite sum.

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
