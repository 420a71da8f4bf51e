"""Intervals are Student's: quantiles as published, exact where nothing scatters, and they hold what they promise."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.intervals import Interval, t_quantile

LEVELS = st.floats(0.01, 0.99)
NUMBERS = st.lists(st.floats(0.0, 100.0), min_size=2, max_size=12)


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


@given(LEVELS, st.integers(1, 60))
def test_more_degrees_make_a_smaller_quantile(level: float, degrees: int) -> None:
    assert t_quantile(degrees + 1, level) < t_quantile(degrees, level)


@pytest.mark.parametrize(("degrees", "level"), [(0, 0.95), (-1, 0.95), (3, 0.0), (3, 1.0), (3, math.nan)])
def test_a_quantile_that_there_is_not_is_refused(degrees: int, level: float) -> None:
    with pytest.raises(ValueError, match=f"{degrees}, {level}.*at least one degree"):
        t_quantile(degrees, level)


def test_an_interval_by_hand() -> None:
    found = Interval.of([80.0, 82.0, 84.0])  # standard deviation 2
    assert (found.mean, found.count) == (82.0, 3)
    assert found.half == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)) * 2 / math.sqrt(3), rel=1e-12)
    assert (found.low, found.high) == (82.0 - found.half, 82.0 + found.half)
    assert found.spell() == "82.00 ± 4.97"
    assert Interval(-1.5, 0.25, 2).spell("+.1f") == "-1.5 ± 0.2"


def test_one_number_alone_has_no_interval() -> None:
    assert Interval.of([81.5]) == Interval(81.5, None, 1)
    assert (Interval.of([81.5]).low, Interval.of([81.5]).high) == (-math.inf, math.inf)
    assert Interval.of([81.5]).spell("+.2f") == "+81.50"


@given(st.floats(0.0, 100.0), st.integers(2, 9))
def test_numbers_that_are_all_alike_have_an_interval_of_no_width(value: float, count: int) -> None:
    assert Interval.of([value] * count) == Interval(value, 0.0, count)


@given(NUMBERS, st.randoms(use_true_random=False))
def test_the_order_of_numbers_does_not_matter(numbers: list[float], shuffler: random.Random) -> None:
    shuffled = shuffler.sample(numbers, len(numbers))
    assert Interval.of(shuffled) == Interval.of(numbers)


def test_intervals_hold_the_true_mean_as_often_as_they_say() -> None:
    draw = random.Random(0).gauss
    hits = sum(
        abs(found.mean - 7.0) < found.half
        for found in (Interval.of(draw(7.0, 3.0) for _ in range(4)) for _ in range(4000))
    )
    assert hits / 4000 == pytest.approx(0.95, abs=0.014)  # four standard deviations
