"""The decision errs as rarely as it says, finds what is there, and is a function of scores alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.comparison.decision import (
    KEEP,
    UNDECIDED,
    WINS,
    Arm,
    Choice,
    Score,
    Verdict,
    alpha_of,
    choose,
    confirm,
    count_runs,
    judge,
)

CANDIDATES = ("own", "relu", "gelu", "silu", "prelu", "hull", "paper")
RATES = (0.1, 0.3, 1.0)


class Simulation:
    """Scores of runs that share an effect of their seed, with skewed noise, some of which diverge."""

    def __init__(self, seed: int, gains: dict[str, float], diverging: float) -> None:
        self.seed, self.gains, self.diverging = seed, gains, diverging
        self.trained: list[Arm] = []

    def train(self, arms: Sequence[Arm], words: str) -> list[Score]:
        self.trained += arms
        return [self._score(arm) for arm in arms]

    def _score(self, arm: Arm) -> Score:
        common = random.Random(f"{self.seed} {arm.seed}").gauss(0, 0.5)
        own = random.Random(f"{self.seed} {arm}")
        if own.random() < self.diverging:
            return Score(math.nan, math.nan)
        gain = self.gains.get(arm.candidate, 0.0)
        val, test = (gain + common + 0.5 * (own.expovariate(1) - 1) for _ in range(2))
        return Score(val, test)

    def look(self, pairs: Sequence[int]) -> Verdict:
        """Choose, then look at growing numbers of pairs until one decides."""
        choice = choose(CANDIDATES, RATES, self.train)
        for look, count in enumerate(pairs, 1):
            verdict = confirm(choice, "own", count, look, self.train)
            if verdict.p <= verdict.alpha:
                break
        return verdict


def test_equal_candidates_are_told_apart_in_fewer_than_six_and_a_half_percent() -> None:
    count = 1000
    verdicts = [Simulation(i, {}, diverging=0.05).look((4, 8, 16)) for i in range(count)]
    assert sum(verdict.p <= verdict.alpha for verdict in verdicts) / count < 0.065


def test_a_planted_gain_is_found() -> None:
    count = 100
    verdicts = [Simulation(i, {"hull": 1.5}, diverging=0.02).look((8, 16)) for i in range(count)]
    assert sum(verdict.kind == WINS for verdict in verdicts) / count > 0.9


def test_all_candidates_get_the_same_trials_and_confirmation_gets_fresh_seeds() -> None:
    simulation = Simulation(0, {"hull": 5.0}, diverging=0.0)
    choice = choose(CANDIDATES, RATES, simulation.train, may_extend=lambda runs: False)
    first = [arm for arm in simulation.trained if arm.seed == 0]
    assert {arm.candidate: sum(other.candidate == arm.candidate for other in first) for arm in first} == dict.fromkeys(
        CANDIDATES, len(RATES)
    )
    assert len(simulation.trained) == count_runs(len(CANDIDATES), len(RATES))
    chosen_on = {arm.seed for arm in simulation.trained}
    simulation.trained.clear()
    confirm(choice, "own", 3, 1, simulation.train)
    assert choice.challenger == "hull"
    assert {arm.candidate for arm in simulation.trained} == {"own", "hull"}
    assert chosen_on.isdisjoint(arm.seed for arm in simulation.trained)


def test_the_grid_grows_for_all_if_the_best_rate_is_at_its_end() -> None:
    def train(arms: Sequence[Arm], words: str) -> list[Score]:
        return [Score(-abs(math.log10(arm.lr) - 1), 0.0) for arm in arms]

    choice = choose(("own", "relu"), (0.1, 1.0), train)
    assert choice.grid == [0.1, 1.0, 10.0, 100.0]
    assert choice.rates == {"own": 10.0, "relu": 10.0}
    assert not choice.at_edge


def test_without_time_the_end_of_the_grid_is_reported() -> None:
    choice = choose(
        ("own", "relu"), (0.1, 1.0), lambda arms, _: [Score(arm.lr, 0.0) for arm in arms], may_extend=lambda runs: False
    )
    assert choice.at_edge == ["own", "relu"]


def test_without_time_for_another_round_the_leader_is_the_challenger() -> None:
    simulation = Simulation(0, {"hull": 5.0}, diverging=0.0)
    choice = choose(
        CANDIDATES,
        RATES,
        simulation.train,
        count_seeds=lambda left, runs: int(left == 3),
        may_extend=lambda runs: False,
    )
    assert choice.challenger == "hull"
    assert {arm.seed for arm in simulation.trained} == {0}


def test_runs_that_diverge_count_as_the_worst() -> None:
    scores = {Arm("own", 0.1, 0): Score(3.0, 0.0), Arm("relu", 0.1, 0): Score(math.nan, math.nan)}
    scores |= {Arm("gelu", 0.1, 0): Score(-2.0, 0.0)}
    choice = Choice(rates=dict.fromkeys(("own", "relu", "gelu"), 0.1), scores=scores)
    assert choice.values("relu") == {0: -2.0}
    assert judge([1.0, math.nan], [1.0, 1.0], worst=-5.0).gain == -3.0


def test_differences_without_scatter_decide_nothing() -> None:
    assert judge([2.0, 3.0, 4.0], [1.0, 2.0, 3.0]).kind == UNDECIDED
    assert judge([2.0, 3.0, 4.0], [2.0, 3.0, 4.0]).kind == KEEP


def test_looks_spend_one_twentieth_together() -> None:
    assert sum(alpha_of(look) for look in range(1, 50)) == pytest.approx(0.05)


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=8))
def test_a_win_has_an_interval_above_zero(pairs: list[tuple[float, float]]) -> None:
    one, two = zip(*pairs, strict=True)
    verdict = judge(one, two)
    assert (verdict.kind == WINS) == (verdict.deviation > 0 and verdict.gain - verdict.half >= 0 and verdict.p <= 0.025)
    if verdict.kind == KEEP:
        assert not verdict.gain - verdict.half > 0
