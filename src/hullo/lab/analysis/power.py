"""The power of a t test: the difference that a number of seeds can show, and the seeds that a difference needs."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache

import torch

from hullo.lab.analysis.statistics import ALPHA, Error, t_quantile, variance_factor

POWER = 0.8
"""The required probability to find a difference."""
MOST_SEEDS = 1000
"""The largest number of seeds to consider."""
POINTS = 4001
"""The number of points of the trapezoidal rule, and of those where its integrand is steep."""
REACH = 9.0
"""Standard deviations beyond which a density counts as zero."""


@lru_cache
def t_power(effect: float, seeds: int, alpha: float = ALPHA, error: Error = "mean") -> float:
    """Return the probability that a two-sided t test finds a difference of `effect` standard deviations.

    With n seeds, nu = n - 1, c the critical value, f the variance factor and delta = effect / sqrt(f), this is
    P(|Z + delta| > c S), where Z is normal and nu S^2 has the chi-squared distribution of nu degrees of freedom:
    the integral of Phi(delta - c s) + Phi(-delta - c s) over the density of S. With ``error="next"`` the number that
    is compared is known, so only the mean scatters, by sqrt(1 / n), while the test allows for sqrt(1 + 1 / n).

    >>> round(t_power(1.0, 10), 3)
    0.803
    """
    degrees = seeds - 1
    scatter = variance_factor(seeds, "mean" if error == "next" else error)
    critical = t_quantile(degrees, 1 - alpha) * math.sqrt(variance_factor(seeds, error) / scatter)
    delta = effect / math.sqrt(scatter)
    low, high = max(0.0, 1 - REACH / math.sqrt(degrees)), 1 + REACH / math.sqrt(degrees)
    # Phi(delta - c s) falls from 1 to 0 around s = delta / c, steeply if c is large
    steep = torch.linspace(delta - REACH, delta + REACH, POINTS, dtype=torch.float64) / critical
    s = torch.cat([torch.linspace(low, high, POINTS, dtype=torch.float64), steep.clamp(low, high)]).sort().values
    scale = math.log(2) + degrees / 2 * math.log(degrees / 2) - math.lgamma(degrees / 2)
    density = torch.exp(scale + torch.special.xlogy(degrees - 1.0, s) - degrees * s**2 / 2)
    found = torch.special.ndtr(delta - critical * s) + torch.special.ndtr(-delta - critical * s)
    return min(1.0, float(torch.trapezoid(density * found, s)))


def seeds_needed(
    difference: float, deviation: float, alpha: float = ALPHA, error: Error = "mean", power: float = POWER
) -> int | None:
    """Return the least number of seeds that finds a difference; None beyond MOST_SEEDS.

    Args:
        difference: the mean of differences between runs of the same seed.
        deviation: their standard deviation.
        alpha: the error rate of the test.
        error: whose error the test is about.
        power: the required probability to find it.

    >>> seeds_needed(1.0, 1.0)
    10
    """
    if not difference:
        return None
    if not deviation:
        return 2
    effect = abs(difference) / deviation
    known = range(2, MOST_SEEDS + 1)
    place = bisect_left(known, power, key=lambda seeds: t_power(effect, seeds, alpha, error))
    return known[place] if place < len(known) else None


def detectable_difference(deviation: float, seeds: int, alpha: float = ALPHA) -> float:
    """Return the least difference that a number of seeds, at least two, finds with probability POWER.

    >>> round(detectable_difference(1.0, 5), 2)
    1.68
    """
    return _detectable_effect(seeds, alpha) * deviation


@lru_cache
def _detectable_effect(seeds: int, alpha: float) -> float:
    low, high = 0.0, 1.0
    while t_power(high, seeds, alpha) < POWER:
        high *= 2
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if t_power(middle, seeds, alpha) < POWER else (low, middle)
    return high
