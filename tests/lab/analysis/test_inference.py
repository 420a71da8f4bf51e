"""Test that choosing and confirming on different seeds keeps its error rate, and which seeds do what."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.analysis.inference import Comparison, choosing_seeds, compare
from hullo.lab.analysis.power import seeds_needed
from hullo.lab.analysis.statistics import Interval, p_value

HULLS = [f"hull {i}" for i in range(8)]
FIXED = [f"fixed {i}" for i in range(4)]


def score(seeds: range, value: float = 80.0) -> dict[int, float]:
    return dict.fromkeys(seeds, value)


@pytest.mark.parametrize("seeds", [3, 5, 10, 40])
def test_error_rate_among_equals(seeds: int) -> None:
    """Compare 8 with 4 activations that are all alike: 5 % of the comparisons find a difference, within 6.5 %.

    With 2,000 trials the standard error is 0.5 points.
    """
    draw, trials, found, gains = random.Random(seeds).gauss, 2000, 0, 0.0
    for _ in range(trials):
        scores = {name: {seed: draw(80.0, 1.0) for seed in range(seeds)} for name in HULLS + FIXED}
        comparison = compare(scores, HULLS, FIXED)
        assert comparison is not None
        found += comparison.p <= 0.05
        gains += comparison.interval.mean
    assert 0.035 <= found / trials <= 0.065
    assert abs(gains / trials) < 4 * (2 / (seeds - max(1, seeds // 5)) / trials) ** 0.5


def test_fresh_seeds_of_a_chosen_pair_keep_the_error_rate() -> None:
    """Run a pair that five seeds chose again on twenty fresh seeds: only these confirm."""
    draw, trials, found = random.Random(1).gauss, 2000, 0
    for _ in range(trials):
        scores = {name: {seed: draw(80.0, 1.0) for seed in range(5)} for name in HULLS + FIXED}
        pair = [max(side, key=lambda name: sum(scores[name].values())) for side in (HULLS, FIXED)]
        for name in pair:
            scores[name] |= {seed: draw(80.0, 1.0) for seed in range(5, 25)}
        comparison = compare(scores, HULLS, FIXED)
        assert comparison is not None
        assert [comparison.row, comparison.other] == pair
        assert (comparison.chosen_on, comparison.seeds) == ((0, 1, 2, 3, 4), tuple(range(5, 25)))
        found += comparison.p <= 0.05
    assert 0.035 <= found / trials <= 0.065


def test_fresh_seeds_of_another_pair_keep_the_error_rate() -> None:
    """Run the best of 8 and of 4 again on fresh seeds, then compare the 8 with 5: a fifth activation may be better."""
    draw, trials, found, kept = random.Random(2).gauss, 2000, 0, 0
    others = [*FIXED, "prelu"]
    for _ in range(trials):
        scores = {name: {seed: draw(80.0, 1.0) for seed in range(5)} for name in HULLS + others}
        for side in (HULLS, FIXED):
            scores[max(side, key=lambda name: sum(scores[name].values()))] |= {
                seed: draw(80.0, 1.0) for seed in range(5, 25)
            }
        comparison = compare(scores, HULLS, others)
        assert comparison is not None
        assert comparison.left_out == ()
        found += comparison.p <= 0.05
        kept += comparison.chosen_on == (0, 1, 2, 3, 4)
    assert 0.7 < kept / trials < 0.9
    assert 0.035 <= found / trials <= 0.065


def test_the_first_seeds_choose_and_the_others_confirm() -> None:
    scores = {
        "relu": {0: 70.0, 1: 71.0, 2: 72.0},
        "tanh": {0: 69.0, 1: 90.0, 2: 90.0},  # better on the seeds that may not choose
        "hull": {0: 75.0, 1: 76.0, 2: 78.0},
    }
    found = compare(scores, ["hull"], ["relu", "tanh"])
    assert found == Comparison("hull", "relu", {1: 5.0, 2: 6.0}, chosen_on=(0,))
    assert found.interval == Interval.of([5.0, 6.0])
    assert found.p == p_value([5.0, 6.0])
    assert found.seeds_needed() == seeds_needed(5.5, 0.5**0.5)
    other = compare(scores, ["hull"], ["relu", "tanh"], choose_on=[2, 1])
    assert other == Comparison("hull", "tanh", {0: 6.0}, chosen_on=(1, 2))
    assert other.p == 1.0
    assert other.seeds_needed() is None


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=6))
def test_without_a_choice_all_seeds_confirm(runs: list[tuple[float, float]]) -> None:
    scores = {"relu": {i: one for i, (one, _) in enumerate(runs)}, "tanh": {i: two for i, (_, two) in enumerate(runs)}}
    found = compare(scores, ["relu"], ["tanh", "gelu"])
    assert found == Comparison("relu", "tanh", {i: one - two for i, (one, two) in enumerate(runs)})


@pytest.mark.parametrize(("seeds", "choosing"), [(1, 1), (2, 1), (5, 1), (9, 1), (10, 2), (40, 8)])
def test_a_fifth_of_the_seeds_chooses(seeds: int, choosing: int) -> None:
    scores = {name: score(range(seeds)) for name in HULLS + FIXED}
    assert choosing_seeds(scores, HULLS, FIXED) == tuple(range(choosing))


def test_an_activation_without_the_choosing_seeds_is_left_out() -> None:
    scores = {name: score(range(5)) for name in HULLS + FIXED}
    scores[HULLS[0]] = score(range(7, 8), 99.0)
    found = compare(scores, HULLS, FIXED)
    assert found is not None
    assert found.left_out == (HULLS[0],)
    assert found.seeds == (1, 2, 3, 4)


def test_without_seeds_to_confirm_there_is_no_comparison() -> None:
    assert compare({"relu": {0: 1.0}, "tanh": {1: 1.0}}, ["relu"], ["tanh"]) is None
    assert compare({"relu": {0: 1.0}}, ["relu"], ["tanh"]) is None
    one = {name: score(range(1)) for name in HULLS + FIXED}
    assert compare(one, HULLS, FIXED) is None
    apart = {name: score(range(3)) for name in HULLS} | {name: score(range(3, 6)) for name in FIXED}
    assert compare(apart, HULLS, FIXED) is None


def test_differences_that_do_not_scatter_give_no_test() -> None:
    scores = {"relu": {0: 80.1, 1: 81.4}, "hull": {0: 80.2, 1: 81.5}}
    found = compare(scores, ["hull"], ["relu"])
    assert found is not None
    assert (found.p, found.seeds_needed()) == (1.0, None)


def test_two_fresh_seeds_confirm_alone_and_one_is_too_few() -> None:
    old = {name: dict.fromkeys(range(5), 80.0) for name in ("hull", "relu", "tanh")}
    for fresh, choosing in ((1, (0,)), (2, (0, 1, 2, 3, 4))):
        seeds = dict.fromkeys(range(5, 5 + fresh), 80.0)
        scores = {name: own | (seeds if name in ("hull", "relu") else {}) for name, own in old.items()}
        scores["elu"] = scores["tanh"]
        assert choosing_seeds(scores, ["hull"], ["relu", "tanh", "elu"]) == choosing
