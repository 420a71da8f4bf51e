"""The decision errs as rarely as it says, finds what is there, and is a function of scores alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.analysis.power import detectable_difference
from hullo.lab.analysis.statistics import p_value
from hullo.lab.comparison.decision import (
    FRESH,
    KEEP,
    UNDECIDED,
    WINS,
    Choice,
    Score,
    Trial,
    Verdict,
    alpha_of,
    choose,
    confirm,
    count_trials,
    half_over_examples,
    judge,
)

CANDIDATES = ("own", "relu", "gelu", "silu", "prelu", "hull", "paper")
RATES = (0.1, 0.3, 1.0)


class Simulation:
    """Scores of runs that share an effect of their seed, with skewed noise, some of which diverge."""

    def __init__(self, seed: int, gains: dict[str, float], diverging: float, *, lopsided: bool = False) -> None:
        self.seed, self.gains, self.diverging, self.lopsided = seed, gains, diverging, lopsided
        self.trained: list[Trial] = []

    def train(self, trials: Sequence[Trial], words: str) -> dict[Trial, Score]:
        self.trained += trials
        return {trial: self._score(trial) for trial in trials}

    def _score(self, trial: Trial) -> Score:
        common = random.Random(f"{self.seed} {trial.seed}").gauss(0, 0.5)
        own = random.Random(f"{self.seed} {trial}")
        if own.random() < self.diverging:
            return Score(math.nan, math.nan)
        gain = self.gains.get(trial.candidate, 0.0)
        if self.lopsided:  # the challengers alone, so that differences have a skewness of -0.7
            noise = [own.gauss(0, 1) if trial.candidate == "own" else 1 - own.expovariate(1) for _ in range(2)]
        else:
            noise = [own.expovariate(1) - 1 for _ in range(2)]
        val, test = (gain + common + 0.5 * number for number in noise)
        return Score(val, test)

    def look(self, pairs: Sequence[int], worth: float) -> Verdict:
        """Choose, then look at growing numbers of pairs until one decides."""
        choice = choose(CANDIDATES, RATES, self.train)
        for look, count in enumerate(pairs, 1):
            verdict = confirm(choice, count, worth, look, self.train(choice.confirmation(count), ""))
            if verdict.kind != UNDECIDED:
                break
        return verdict


def verdict(seed: int, gains: dict[str, float], worth: float, diverging: float = 0.05) -> Verdict:
    """Return the verdict of up to three looks."""
    return Simulation(seed, gains, diverging).look((4, 8, 16), worth)


def rate(kind: str, gains: dict[str, float], *, worth: float, diverging: float = 0.05, count: int = 1000) -> float:
    """Return how often three looks end in a kind of verdict."""
    return sum(verdict(i, gains, worth, diverging).kind == kind for i in range(count)) / count


def test_equal_candidates_are_told_apart_in_fewer_than_six_and_a_half_percent() -> None:
    verdicts = [verdict(i, {}, worth=1e-9) for i in range(1000)]  # so that equal ones are seldom kept by a look
    for kind in (WINS, KEEP):
        assert sum(found.kind == kind for found in verdicts) / 1000 < 0.065
    assert rate(WINS, {}, worth=0.5) < 0.065


def test_differences_that_are_skewed_are_told_apart_as_rarely() -> None:
    verdicts = [Simulation(i, {}, 0.0, lopsided=True).look((4, 8, 16), worth=1e-9) for i in range(1000)]
    for kind in (WINS, KEEP):
        assert sum(found.kind == kind for found in verdicts) / 1000 < 0.065


def test_a_planted_gain_is_found() -> None:
    assert rate(WINS, {"hull": 1.5}, worth=0.5, diverging=0.02, count=100) > 0.9


@pytest.mark.parametrize(("seeds", "examples"), [(8, 60), (24, 120)])
def test_the_interval_over_examples_covers_the_gain_with_other_examples_and_that_over_seeds_does_not(
    seeds: int, examples: int
) -> None:
    generator, covered, covered_by_seeds = torch.Generator().manual_seed(0), 0, 0

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    for _ in range(500):
        table = 0.3 + draw(examples) + 0.1 * draw(seeds, 1) + draw(seeds, examples)
        found = judge(table.mean(1).tolist(), [0.0] * seeds, worth=1.0)
        covered += abs(found.gain - 0.3) <= half_over_examples(found, table.mean(0).tolist())
        covered_by_seeds += abs(found.gain - 0.3) <= found.half
    assert 0.93 < covered / 500 < 0.995
    assert covered_by_seeds / 500 < 0.9


@pytest.mark.parametrize("skew", [False, True])
def test_intervals_cover_the_gain_at_the_level_of_their_look(skew: bool) -> None:
    looks, covered = (4, 8, 16), [0, 0, 0]
    for seed in range(1000):
        draw = random.Random(seed)
        one, two = ([draw.expovariate(1) if skew else draw.gauss(0, 1) for _ in range(16)] for _ in range(2))
        for number, count in enumerate(looks):
            found = judge([0.3 + value for value in one[:count]], two[:count], 1.0, number + 1)
            covered[number] += abs(found.gain - 0.3) <= found.half
    for number, hits in enumerate(covered):
        assert hits / 1000 > 1 - alpha_of(number + 1) - 0.015


def test_seven_looks_at_equal_networks_err_in_one_twentieth() -> None:
    counts = (4, 6, 9, 13, 19, 28, 42)

    def wins(seed: int) -> bool:
        draw = random.Random(seed)
        one, two = ([draw.gauss(0, 1) for _ in range(counts[-1])] for _ in range(2))
        return any(judge(one[:n], two[:n], 1.0, look).kind == WINS for look, n in enumerate(counts, 1))

    assert sum(map(wins, range(1500))) / 1500 < 0.06  # 0.09 if all looks had the error rate of the first


def test_what_runs_of_a_seed_share_does_not_hide_a_gain() -> None:
    def wins(seed: int) -> bool:
        draw = random.Random(seed)
        choice, scores = Choice(rates={"own": 0.1, "gelu": 0.1}, challenger="gelu"), {}
        for trial in choice.confirmation(8):
            common = random.Random(f"{seed} {trial.seed}").gauss(0, 10)
            scores[trial] = Score(0.0, common + draw.gauss(0, 0.5) + 1.5 * (trial.candidate == "gelu"))
        return confirm(choice, 8, 0.5, 1, scores).kind == WINS

    assert sum(map(wins, range(100))) > 90


def test_gains_above_worth_are_excluded_wrongly_in_fewer_than_six_and_a_half_percent() -> None:
    everyone = dict.fromkeys(CANDIDATES[1:], 0.5)  # whoever the challenger is
    assert rate(KEEP, everyone, worth=0.45) < 0.065
    assert rate(KEEP, {}, worth=2.0, diverging=0.0, count=100) > 0.9


def test_all_candidates_get_the_same_trials_and_confirmation_gets_fresh_seeds() -> None:
    simulation = Simulation(0, {"hull": 5.0}, diverging=0.0)
    choice = choose(CANDIDATES, RATES, simulation.train, may_extend=lambda trials: False)
    first = [trial for trial in simulation.trained if trial.seed == 0]
    assert {
        trial.candidate: sum(other.candidate == trial.candidate for other in first) for trial in first
    } == dict.fromkeys(CANDIDATES, len(RATES))
    assert len(simulation.trained) == count_trials(len(CANDIDATES), len(RATES))
    chosen_on = {trial.seed for trial in simulation.trained}
    simulation.trained.clear()
    simulation.train(choice.confirmation(3), "")
    assert choice.challenger == "hull"
    assert {trial.candidate for trial in simulation.trained} == {"own", "hull"}
    assert chosen_on.isdisjoint(trial.seed for trial in simulation.trained)


@pytest.mark.parametrize(("best", "grid"), [(10.0, [0.1, 1.0, 10.0, 100.0]), (0.01, [0.001, 0.01, 0.1, 1.0])])
def test_the_grid_grows_for_all_if_the_best_rate_is_at_its_end(best: float, grid: list[float]) -> None:
    def train(trials: Sequence[Trial], words: str) -> dict[Trial, Score]:
        return {trial: Score(-abs(math.log10(trial.lr / best)), 0.0) for trial in trials}

    choice = choose(("own", "relu"), (0.1, 1.0), train)
    assert choice.grid == grid
    assert choice.rates == {"own": best, "relu": best}
    assert not any(map(choice.is_at_edge, choice.rates))


def test_without_time_the_end_of_the_grid_is_reported() -> None:
    def train(trials: Sequence[Trial], words: str) -> dict[Trial, Score]:
        return {trial: Score(trial.lr, 0.0) for trial in trials}

    choice = choose(("own", "relu"), (0.1, 1.0), train, may_extend=lambda trials: False)
    assert choice.is_at_edge("own")
    assert choice.is_at_edge("relu")
    assert not choose(("own", "relu"), (0.1,), train).is_at_edge("own")  # a single rate was asked for


def test_without_time_for_another_round_the_leader_is_the_challenger() -> None:
    simulation = Simulation(0, {"hull": 5.0}, diverging=0.0)
    choice = choose(
        CANDIDATES,
        RATES,
        simulation.train,
        count_seeds=lambda pairs, first, left: int(first == 0),
        may_extend=lambda trials: False,
    )
    assert choice.challenger == "hull"
    assert {trial.seed for trial in simulation.trained} == {0}


def test_runs_that_diverge_count_as_the_worst() -> None:
    scores = {Trial("own", 0.1, 0): Score(3.0, 0.0), Trial("relu", 0.1, 0): Score(math.nan, math.nan)}
    scores |= {Trial("gelu", 0.1, 0): Score(-2.0, 0.0)}
    choice = Choice(rates=dict.fromkeys(("own", "relu", "gelu"), 0.1), scores=scores)
    assert choice.values("relu") == {0: -2.0}
    assert judge([1.0, math.nan], [1.0, 1.0], worth=1.0, worst=-5.0).gain == -3.0


def test_a_network_that_diverges_in_the_confirmation_gets_the_worst_test_score_of_all() -> None:
    earlier = {Trial("own", 0.1, 0): Score(50.0, -7.0), Trial("gelu", 0.1, 0): Score(-90.0, 60.0)}
    choice = Choice(rates={"own": 0.1, "gelu": 0.1}, challenger="gelu", scores=earlier)
    scores = {trial: Score(0.0, 3.0) for trial in choice.confirmation(4)}
    scores[Trial("gelu", 0.1, FRESH)] = Score(math.nan, math.nan)
    assert confirm(choice, 4, 1.0, 1, scores).gain == (-7.0 - 3.0) / 4


def test_differences_without_scatter_decide_nothing() -> None:
    assert judge([2.0, 3.0, 4.0], [1.0, 2.0, 3.0], worth=5.0).kind == UNDECIDED
    assert judge([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], worth=5.0).kind == UNDECIDED
    assert judge([2.0, 3.0, 4.0], [2.0, 3.0, 4.0], worth=5.0).kind == UNDECIDED
    one, two = [58.3333, 56.6667, 60.0], [56.6667, 55.0, 58.3333]  # of 60 examples, rounded to six digits
    assert judge(one, two, worth=5.0).kind == judge(two, one, worth=5.0).kind == UNDECIDED


def test_a_challenger_that_is_significantly_worse_does_not_win() -> None:
    verdict = judge([1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.9, 2.1], worth=0.3)
    assert verdict.gain + verdict.half < 0
    assert verdict.kind == KEEP


def test_looks_spend_one_twentieth_together() -> None:
    assert sum(alpha_of(look) / 2 for look in range(1, 50)) == pytest.approx(0.05)


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=8),
    st.floats(0.01, 10),
    st.integers(1, 3),
)
def test_a_win_has_an_interval_above_zero_and_a_keep_one_below_worth(
    pairs: list[tuple[float, float]], worth: float, look: int
) -> None:
    one, two = zip(*pairs, strict=True)
    verdict, level = judge(one, two, worth, look), 0.05 / 2 ** (look - 1)
    p = p_value([a - b for a, b in pairs])
    assert verdict.level == 1 - level
    assert (verdict.kind == WINS) == (verdict.deviation > 0 and verdict.gain > 0 and p < level)
    if verdict.kind == KEEP:
        assert p_value([a - b for a, b in pairs], expected=worth) < level


def test_more_seeds_would_show_the_gain_or_that_it_is_not_worth_a_change() -> None:
    def needed(gain: float, worth: float) -> int | None:
        return Verdict(gain, 1.0, worth, pairs=4, deviation=1.0, look=1).needed

    assert needed(0.9, worth=1.0) == needed(0.1, worth=1.0)  # as far from zero as the other is from what is worth it
    assert needed(-0.5, worth=0.5) == needed(1.0, worth=0.5)
    assert needed(0.02, worth=0.04) is None
    seeds = needed(0.5, worth=1.0)  # at the error rate of the next look: 0.025
    assert seeds is not None
    assert detectable_difference(1.0, seeds, 0.025) <= 0.5 < detectable_difference(1.0, seeds - 1, 0.025)
    assert needed(9.0, worth=0.5) == 5  # one more than there are


def test_scores_in_steps_of_few_examples_keep_the_error_rate() -> None:
    """A gain that is worth a change, of networks that mostly score the same, is not excluded by scores that all do."""

    def keeps(seed: int, steps: Sequence[int]) -> bool:
        draw = random.Random(seed)
        own = [98.0] * steps[-1]
        other = [98.0 + 2 * (draw.random() < 0.15) for _ in own]  # a gain of 0.3
        looks = (judge(other[:count], own[:count], 0.3, look) for look, count in enumerate(steps, 1))
        return next((v.kind for v in looks if v.kind != UNDECIDED), UNDECIDED) == KEEP

    assert sum(keeps(seed, (4, 8, 16)) for seed in range(1000)) / 1000 < 0.065


def test_the_confirmation_pairs_test_scores_of_the_same_seeds() -> None:
    choice = Choice(rates={"own": 0.1, "gelu": 0.3}, challenger="gelu")
    gains, drawn = [0.9, 1.0, 1.1, 1.0], random.Random(0)
    scores = {}
    for seed, gain in enumerate(gains, FRESH):
        common = drawn.gauss(0, 50)
        scores[Trial("own", 0.1, seed)] = Score(drawn.gauss(9, 1), common)
        scores[Trial("gelu", 0.3, seed)] = Score(drawn.gauss(-9, 1), common + gain)
    found = confirm(choice, 4, 0.3, 1, scores)
    assert (found.gain, found.deviation, found.pairs) == pytest.approx((1.0, stdev(gains), 4))
    assert found.half == pytest.approx(3.1824463 * stdev(gains) / 2)  # the t quantile of three degrees of freedom
    assert found.kind == WINS


def test_the_challenger_is_the_best_on_validation_data_with_its_own_rate() -> None:
    """Each rate suits another candidate, and what scores best on test data is not chosen."""
    best = {"own": 0.1, "relu": 1.0, "gelu": 0.3}
    gains = {"own": 0.0, "relu": 1.0, "gelu": 2.0}

    def train(trials: Sequence[Trial], words: str) -> dict[Trial, Score]:
        return {a: Score(gains[a.candidate] - 5 * (a.lr != best[a.candidate]), -gains[a.candidate]) for a in trials}

    choice = choose(list(best), RATES, train, may_extend=lambda trials: False)
    assert (choice.challenger, choice.rates) == ("gelu", best)
