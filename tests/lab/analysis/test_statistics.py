"""Intervals and tests are Student's; corrections are those of Holm and of Benjamini and Hochberg."""

from __future__ import annotations

import math
import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.analysis.statistics import (
    Error,
    Interval,
    holm,
    p_value,
    partial_conjunction,
    pooled_deviation,
    t_quantile,
)

LEVELS = st.floats(0.01, 0.99)
NUMBERS = st.lists(st.floats(0.0, 100.0), min_size=2, max_size=12)
P_VALUES = st.lists(st.floats(0.0, 1.0), max_size=12)


@pytest.mark.parametrize(
    ("level", "published"),
    [
        (0.95, {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 20: 2.086, 30: 2.042}),
        (0.95, {60: 2.000, 120: 1.980, 100_000: 1.960}),
        (0.99, {1: 63.657, 2: 9.925, 5: 4.032, 10: 3.169, 29: 2.756}),
        (0.5, {1: 1.000, 4: 0.741, 9: 0.703}),
    ],
)
def test_quantiles_are_the_published_ones(level: float, published: dict[int, float]) -> None:
    assert {degrees: round(t_quantile(degrees, level), 3) for degrees in published} == published


@given(LEVELS)
def test_quantiles_of_one_and_two_degrees_have_their_closed_forms(level: float) -> None:
    assert t_quantile(1, level) == pytest.approx(math.tan(math.pi / 2 * level), rel=1e-12)
    assert t_quantile(2, level) == pytest.approx(level * math.sqrt(2 / (1 - level**2)), rel=1e-12)


def test_an_interval_by_hand() -> None:
    found = Interval.of([80.0, 82.0, 84.0])  # standard deviation 2
    assert (found.mean, found.count) == (82.0, 3)
    assert found.half == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)) * 2 / math.sqrt(3), rel=1e-12)
    assert (found.low, found.high) == (82.0 - found.half, 82.0 + found.half)
    assert found.spell() == "82.00 ± 4.97"
    assert Interval(-1.5, 0.25, 2).spell("+.1f") == "-1.5 ± 0.2"


def test_one_number_alone_has_no_interval_and_decides_nothing() -> None:
    for found in (Interval.of([81.5]), Interval.of([81.5], "next")):
        assert found == Interval(81.5, None, 1)
        assert (found.low, found.high) == (-math.inf, math.inf)
        assert found.covers(-1e300)
        assert found.spell("+.2f") == "+81.50"
    assert p_value([81.5]) == 1.0


@given(st.floats(0.0, 100.0), st.integers(2, 9))
def test_numbers_that_are_all_alike_have_an_interval_of_no_width(value: float, count: int) -> None:
    assert Interval.of([value] * count) == Interval.of([value] * count, "next") == Interval(value, 0.0, count)
    assert p_value([value] * count, value) == 1.0
    assert p_value([value] * count, value + 1) == 0.0


@pytest.mark.parametrize(("runs", "kind"), [(4, "mean"), (4, "next"), (2, "next")])
def test_intervals_cover_what_they_promise_as_often_as_they_say(runs: int, kind: Error) -> None:
    """The true mean, and one more number of the same kind."""
    draw = random.Random(0).gauss
    hits = 0
    for _ in range(4000):
        numbers = [draw(7.0, 3.0) for _ in range(runs)]
        wanted = 7.0 if kind == "mean" else draw(7.0, 3.0)
        hits += Interval.of(numbers, kind).covers(wanted)
    assert hits / 4000 == pytest.approx(0.95, abs=0.014)  # four standard deviations


@given(NUMBERS)
def test_a_prediction_interval_is_the_means_interval_times_the_root_of_one_more_than_the_count(
    numbers: list[float],
) -> None:
    mean, following = Interval.of(numbers), Interval.of(numbers, "next")
    assert following.half == pytest.approx((mean.half or 0.0) * math.sqrt(len(numbers) + 1), rel=1e-9)


def test_p_values_are_the_published_ones() -> None:
    # Student (1908), hours of additional sleep: t = 4.0621 on 9 degrees of freedom, p = 0.00283
    sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    assert p_value(sleep) == pytest.approx(0.00283, abs=5e-6)


@given(NUMBERS, st.floats(-50.0, 50.0))
def test_a_p_value_is_below_alpha_where_the_interval_does_not_cover(numbers: list[float], expected: float) -> None:
    for error in get_args(Error):
        found = Interval.of(numbers, error)
        distance, half = abs(found.mean - expected), found.half or 0.0
        if abs(distance - half) > 1e-9 * max(1.0, distance):
            assert (p_value(numbers, expected, error) < 0.05) == (distance > half)


def test_deviations_are_pooled_by_their_degrees_of_freedom() -> None:
    assert pooled_deviation([[0.0, 2.0], [10.0, 10.0, 10.0, 10.0]]) == pytest.approx(math.sqrt(2.0 / 4))
    assert pooled_deviation([[1.0], []]) is None


# Benjamini and Hochberg (1995), table 1: at 0.05 Holm's procedure rejects three
PUBLISHED = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
PUBLISHED += [0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]


def test_holm_rejects_as_many_as_in_the_published_example() -> None:
    assert sum(p <= 0.05 for p in holm(PUBLISHED)) == 3


@given(P_VALUES, st.floats(0.001, 0.3))
def test_holm_is_the_step_procedure(p_values: list[float], alpha: float) -> None:
    """From the smallest p on, until one exceeds alpha / (number left)."""
    count, ordered = len(p_values), sorted(p_values)
    down = 0
    while down < count and ordered[down] * (count - down) <= alpha:
        down += 1
    adjusted = holm(p_values)
    assert sum(p <= alpha for p in adjusted) == down
    assert all(p <= a for p, a in zip(p_values, adjusted, strict=True))
    pairs = sorted(zip(p_values, adjusted, strict=True))
    assert [a for _, a in pairs] == sorted(adjusted)


@pytest.mark.parametrize(("real", "count"), [(0, 1), (2, 3), (4, 5)])
def test_error_rate_of_a_partial_conjunction(real: int, count: int) -> None:
    """Claim one more effect than there are, of five; those that are there are as good as certain."""
    draw, trials, found = random.Random(2).random, 4000, 0
    for _ in range(trials):
        found += partial_conjunction([0.0] * real + [draw() for _ in range(5 - real)], count) <= 0.05
    assert found / trials <= 0.062
    assert partial_conjunction([0.02, 0.04, 0.01], 3) == 0.04
