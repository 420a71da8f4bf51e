"""The best of several activations is chosen and scored on different seeds: a choice among equals gains nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.analysis.comparisons import (
    FAILS,
    HOLDS,
    Comparison,
    Fold,
    against_each,
    leave_one_seed_out,
    with_common_seeds,
)
from hullo.lab.analysis.statistics import Interval, p_value


def test_the_best_is_chosen_on_the_other_seeds_and_scored_on_the_one_left_out() -> None:
    reached = {
        "relu": {0: 70.0, 1: 71.0, 2: 72.0},
        "tanh": {0: 99.0, 1: 60.0, 2: 60.0},  # best on seed 0 alone, where the others know nothing of it
        "identity": {0: 50.0, 1: 51.0, 2: 52.0},
    }
    folds = leave_one_seed_out(reached, ["relu", "tanh"], ["identity"])
    assert folds == [
        Fold(0, "relu", "identity", 20.0),
        Fold(1, "tanh", "identity", 9.0),
        Fold(2, "tanh", "identity", 8.0),
    ]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=6))
def test_without_a_choice_these_are_the_differences_between_runs_of_the_same_seed(
    runs: list[tuple[float, float]],
) -> None:
    reached = {"relu": {i: one for i, (one, _) in enumerate(runs)}, "tanh": {i: two for i, (_, two) in enumerate(runs)}}
    folds = leave_one_seed_out(reached, ["relu"], ["tanh"])
    assert [fold.difference for fold in folds] == [one - two for one, two in runs]


def test_only_seeds_that_all_have_count() -> None:
    reached = {"relu": {0: 80.0, 1: 81.0}, "tanh": {1: 70.0, 2: 70.0}}
    assert leave_one_seed_out(reached, ["relu"], ["tanh"]) == [Fold(1, "relu", "tanh", 11.0)]
    assert leave_one_seed_out(reached, ["relu"], ["gelu"]) == []
    assert leave_one_seed_out({"relu": {0: 1.0}, "tanh": {1: 1.0}}, ["relu"], ["tanh"]) == []


@pytest.mark.parametrize(("rows", "others"), [(8, 4), (8, 1)])
def test_choosing_among_equals_gains_nothing(rows: int, others: int) -> None:
    """Of activations that are all alike, how often is one kind found to be better or worse?

    The best by its mean would often be; and the folds, taken for independent, still more often than they say.
    """
    draw, trials = random.Random(3).gauss, 800
    names = [f"hull {i}" for i in range(rows)], [f"fixed {i}" for i in range(others)]
    found, gains = {"honest": 0, "independent": 0, "by means": 0}, []
    for _ in range(trials):
        reached = {name: {seed: draw(80.0, 1.0) for seed in range(5)} for side in names for name in side}
        folds = tuple(leave_one_seed_out(reached, *names))
        comparison = Comparison("e", "q", folds, choice=True)
        gains.append(comparison.difference.mean)
        found["honest"] += comparison.p <= 0.05
        found["independent"] += replace(comparison, choice=False).p <= 0.05
        best = [max(side, key=lambda name: sum(reached[name].values())) for side in names]
        found["by means"] += p_value([reached[best[0]][seed] - reached[best[1]][seed] for seed in range(5)]) <= 0.05
    assert found["honest"] / trials < 0.05 + 3 * (0.05 * 0.95 / trials) ** 0.5
    assert max(found["independent"], found["by means"]) / trials > 0.08
    assert abs(sum(gains) / trials) < 4 * (2 / 5 / trials) ** 0.5


def test_one_activation_exceeds_several_if_it_exceeds_each() -> None:
    reached = {
        "relu": {0: 80.0, 1: 81.0, 2: 82.0},
        "tanh": {0: 70.0, 1: 71.5, 2: 72.0},
        "identity": {0: 79.0, 1: 80.5, 2: 80.5},
    }
    strongest, weaker = against_each(reached, "relu", ["tanh", "identity", "gelu"])
    assert [fold.other for fold in strongest + weaker] == ["identity"] * 3 + ["tanh"] * 3
    comparison = Comparison("e", "q", tuple(strongest), (tuple(weaker),))
    assert comparison.difference == Interval.of([1.0, 0.5, 1.5])
    assert comparison.p == pytest.approx(p_value([1.0, 0.5, 1.5]))  # the larger of two
    worse = tuple(fold._replace(difference=-fold.difference) for fold in strongest)
    below = replace(comparison, folds=worse)
    assert below.p == pytest.approx(2 * p_value([-1.0, -0.5, -1.5]))  # one of two is enough
    assert (below.judge(True), comparison.judge(True)) == (FAILS, HOLDS)
    assert against_each(reached, "gelu", ["relu"]) == against_each(reached, "relu", ["gelu"]) == []


def test_exceeding_several_equals_is_found_as_rarely_as_it_should_be() -> None:
    draw, trials, found = random.Random(4).gauss, 1500, {HOLDS: 0, FAILS: 0}
    names = ["identity", "relu", "tanh"]
    for _ in range(trials):
        reached = {name: {seed: draw(80.0, 1.0) for seed in range(5)} for name in ["hull", *names]}
        strongest, *weaker = map(tuple, against_each(reached, "hull", names))
        comparison = Comparison("e", "q", strongest, tuple(weaker))
        if comparison.p <= 0.05:
            found[comparison.judge(True)] += 1
    most = 0.025 * trials + 3 * (0.025 * trials) ** 0.5
    assert found[HOLDS] <= most
    assert 0 < found[FAILS] <= most


def test_an_activation_with_fewer_seeds_does_not_take_those_of_others() -> None:
    reached = {"relu": dict.fromkeys(range(5), 80.0), "leaky_relu": {0: 99.0}, "tanh": {2: 90.0, 3: 91.0, 4: 92.0}}
    folds = leave_one_seed_out(reached, ["tanh"], ["relu", "leaky_relu"])
    assert [(fold.seed, fold.other, fold.difference) for fold in folds] == [
        (2, "relu", 10.0),
        (3, "relu", 11.0),
        (4, "relu", 12.0),
    ]


def test_activations_that_share_no_seeds_with_others_do_not_prevent_a_comparison() -> None:
    reached = {"relu": dict.fromkeys(range(3), 80.0), "tanh": dict.fromkeys(range(3), 81.0)}
    reached |= {"elu": dict.fromkeys(range(5, 9), 99.0)}
    assert with_common_seeds(reached, ["tanh", "elu"], ["relu"]) == (["tanh"], ["relu"], [0, 1, 2])
    assert [fold.difference for fold in leave_one_seed_out(reached, ["tanh", "elu"], ["relu"])] == [1.0] * 3
    assert with_common_seeds(reached, ["tanh"], ["elu"]) == ([], [], [])
