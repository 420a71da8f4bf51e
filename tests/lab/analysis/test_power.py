"""Power, detectable differences and needed seeds: published values, closed cases and simulation."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.analysis.power import MOST_SEEDS, POWER, detectable_difference, seeds_needed, t_power
from hullo.lab.analysis.statistics import p_value, t_quantile


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.05 / 40])
@pytest.mark.parametrize("seeds", [2, 3, 5, 30, 1000])
def test_without_a_difference_the_power_is_the_error_rate(seeds: int, alpha: float) -> None:
    assert t_power(0.0, seeds, alpha) == pytest.approx(alpha, abs=1e-6)


@pytest.mark.parametrize(
    ("effect", "seeds", "alpha", "power"),
    [
        (1.0, 10, 0.05, 0.8030968566),
        (2.0, 5, 0.05, 0.9088848681),
        (0.5, 2, 0.05, 0.0619486067),
        (0.1, 1000, 0.01, 0.719446),
    ],
)
def test_power_is_that_of_the_noncentral_t_distribution(effect: float, seeds: int, alpha: float, power: float) -> None:
    """Its tails as SciPy 1.17 computes them."""
    assert t_power(effect, seeds, alpha) == pytest.approx(power, abs=1e-6)


@given(st.floats(0.0, 1000.0), st.sampled_from([0.2, 0.05, 0.05 / 40, 0.05 / 400]))
def test_the_power_of_three_seeds_has_a_closed_form(effect: float, alpha: float) -> None:
    """1 - c / sqrt(c^2 + 2) exp(-delta^2 / (c^2 + 2)), as the chi-squared of two degrees is exponential."""
    critical, delta = t_quantile(2, 1 - alpha), effect * math.sqrt(3)
    wanted = 1 - critical / math.sqrt(critical**2 + 2) * math.exp(-(delta**2) / (critical**2 + 2))
    assert t_power(effect, 3, alpha) == pytest.approx(wanted, abs=2e-6)


def test_the_power_against_a_known_number_is_how_often_it_lies_outside_of_simulated_intervals() -> None:
    draw = random.Random(3).gauss
    found = sum(p_value([draw(0.0, 1.0) for _ in range(6)], 4.0, "next") <= 0.05 for _ in range(2000))
    assert found / 2000 == pytest.approx(t_power(4.0, 6, error="next"), abs=0.045)
    # with ever more seeds it depends on whether the number lies within 1.96 standard deviations
    assert t_power(2.2, MOST_SEEDS, error="next") > 0.99
    assert t_power(1.7, MOST_SEEDS, error="next") < 0.01


@given(st.floats(0.05, 5.0), st.floats(0.1, 3.0), st.sampled_from([0.05, 0.01, 0.05 / 40]))
def test_the_needed_number_of_seeds_is_the_least_that_is_enough(
    difference: float, deviation: float, alpha: float
) -> None:
    needed = seeds_needed(difference, deviation, alpha)
    effect = difference / deviation
    if needed is None:
        assert t_power(effect, MOST_SEEDS, alpha) < POWER
    else:
        assert t_power(effect, needed, alpha) >= POWER
        assert needed == 2 or t_power(effect, needed - 1, alpha) < POWER
        assert seeds_needed(-difference, deviation, alpha) == needed


@given(st.integers(2, 40), st.floats(0.1, 5.0), st.sampled_from([0.05, 0.01]))
def test_the_detectable_difference_is_found_with_the_wanted_power(seeds: int, deviation: float, alpha: float) -> None:
    difference = detectable_difference(deviation, seeds, alpha)
    assert t_power(difference / deviation, seeds, alpha) == pytest.approx(POWER, abs=1e-6)


def test_differences_that_nothing_can_show_need_no_finite_number_of_seeds() -> None:
    assert seeds_needed(0.0, 1.0) is None
    assert seeds_needed(0.01, 1.0) is None
    assert seeds_needed(1.0, 0.0) == 2
    assert detectable_difference(0.0, 5) == 0.0
