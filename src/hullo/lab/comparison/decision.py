"""The decision: which networks to train, which candidate to confirm, and what that shows.

Everything here is a function of scores. `train` is whatever returns them: an engine that trains networks, or a
simulation that draws random numbers, by which the error rates of the whole procedure are tested. Scores are higher for
better networks, and NaN for those that diverged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean, stdev
from typing import NamedTuple

from hullo.lab.analysis.power import seeds_needed
from hullo.lab.analysis.statistics import ALPHA, pooled_deviation, t_quantile

ORIGINAL = "own"
"""The name of the original network in records."""
FRESH = 1000
"""The first seed of the confirmation; choices are made on seeds from 0."""
MAX_EXTENSIONS = 2
"""Largest number of times that the grid of learning rates grows."""
MAX_PAIRS = 300
"""The largest number of seeds of the confirmation."""
SAME = 1e-5
"""The scatter of differences, as a share of the largest score, up to which they are the same: records have 6 digits."""
WINS, KEEP, UNDECIDED = "wins", "keep", "undecided"


class Trial(NamedTuple):
    """A network to train: a candidate, its learning rate and a seed."""

    candidate: str
    lr: float
    seed: int


class Score(NamedTuple):
    """The scores of a trial after the epoch that was best on validation data; NaN if it diverged."""

    val: float
    test: float


Train = Callable[[Sequence[Trial], str], Mapping[Trial, Score]]
Pairs = Sequence[tuple[str, float]]


@dataclass
class Choice:
    """The challenger, and what led to it."""

    rates: dict[str, float] = field(default_factory=dict)  # the best learning rate of each candidate
    challenger: str = ""
    grid: list[float] = field(default_factory=list)
    scores: dict[Trial, Score] = field(default_factory=dict)

    def values(self, candidate: str, lr: float | None = None) -> dict[int, float]:
        """Return the validation scores of a candidate by seed, at its best rate or a given one.

        A network that diverged has the worst score of all.
        """
        pair, worst = (candidate, lr or self.rates[candidate]), worst_of(score.val for score in self.scores.values())
        found = {trial.seed: fill(score.val, worst) for trial, score in self.scores.items() if trial[:2] == pair}
        return dict(sorted(found.items()))

    def mean(self, candidate: str, lr: float | None = None) -> float:
        return fmean(self.values(candidate, lr).values())

    def changes(self, candidate: str) -> list[float]:
        """Return the differences from the original between networks of the same seed."""
        original = self.values(ORIGINAL)
        return [value - original[seed] for seed, value in self.values(candidate).items()]

    def is_at_edge(self, candidate: str) -> bool:
        """Return whether the best rate of a candidate is at an end of the grid."""
        return len(self.grid) > 1 and self.rates.get(candidate) in (self.grid[0], self.grid[-1])

    @property
    def deviation(self) -> float | None:
        """Return the standard deviation of the differences from the original, pooled over candidates."""
        return pooled_deviation([self.changes(name) for name in self.rates if name != ORIGINAL])

    def confirmation(self, pairs: int) -> list[Trial]:
        """Return the trials of the confirmation: the challenger and the original, on fresh seeds."""
        names, seeds = (self.challenger, ORIGINAL), range(FRESH, FRESH + pairs)
        return [Trial(name, self.rates[name], seed) for seed in seeds for name in names]


def worst_of(values: Iterable[float]) -> float:
    """Return the smallest finite number, or 0."""
    return min(filter(math.isfinite, values), default=0.0)


def fill(value: float, worst: float) -> float:
    return value if math.isfinite(value) else worst


def choose(
    candidates: Sequence[str],
    rates: Sequence[float],
    train: Train,
    *,
    count_seeds: Callable[[Pairs, int, int], int] = lambda pairs, first, left: 1,
    may_extend: Callable[[Sequence[Trial]], bool] = lambda trials: True,
) -> Choice:
    """Choose the challenger by successive halving on validation scores.

    The first round trains every candidate with every learning rate, and settles the rate of each. If the best rate of
    one is at an end of the grid, the grid grows for all, if there is time. Each further round drops the weaker half of
    the challengers, but never one of the last two, and adds seeds to the others and to the original; it may add none.
    `count_seeds` is given the candidates of a round with their rates, the first seed, and how many rounds are left.

    >>> quality = {"own": 0.0, "relu": 0.1, "gelu": 0.5}
    >>> choose(list(quality), [0.1], lambda trials, _: {t: Score(quality[t.candidate], 0) for t in trials}).challenger
    'gelu'
    """
    choice, challengers = Choice(grid=sorted(rates)), [name for name in candidates if name != ORIGINAL]
    sizes = halvings(len(challengers))

    def settle(new: Sequence[float], seeds: range, words: str) -> None:
        choice.scores |= train(
            [Trial(name, lr, seed) for seed in seeds for name, lr in product(candidates, new)], words
        )
        for name in candidates:
            choice.rates[name] = max(choice.grid, key=lambda lr: choice.mean(name, lr))

    words = f"round 1 of {1 + len(sizes)}"
    seeds = range(count_seeds([*product(candidates, choice.grid)], 0, len(sizes)))
    settle(choice.grid, seeds, words)
    if not any(math.isfinite(score.val) for score in choice.scores.values()):
        raise ValueError(
            "all networks diverged: losses, metrics or weights are not finite; check them, or give smaller lr"
        )
    for _ in range(MAX_EXTENSIONS):
        new = _beyond(choice)
        if not new or not may_extend(
            [Trial(name, lr, seed) for seed in seeds for name, lr in product(candidates, new)]
        ):
            break
        choice.grid = sorted([*choice.grid, *new])
        settle(new, seeds, f"{words}, more learning rates")
    for number, size in enumerate(sizes, 1):
        challengers = sorted(challengers, key=choice.mean, reverse=True)[:size]
        pairs = [(name, choice.rates[name]) for name in (ORIGINAL, *challengers)]
        seeds = range(seeds.stop, seeds.stop + count_seeds(pairs, seeds.stop, len(sizes) - number))
        trials = [Trial(*pair, seed) for seed in seeds for pair in pairs]
        choice.scores |= train(trials, f"round {1 + number} of {1 + len(sizes)}")
    choice.challenger = max(challengers, key=choice.mean)
    return choice


def halvings(challengers: int) -> list[int]:
    """Return the number of challengers in each round after the first.

    >>> [halvings(count) for count in (6, 5, 2, 1)]
    [[3, 2], [3, 2], [2], [1]]
    """
    sizes = [max(min(challengers, 2), math.ceil(challengers / 2))]
    while sizes[-1] > 2:
        sizes.append(math.ceil(sizes[-1] / 2))
    return sizes


def _beyond(choice: Choice) -> list[float]:
    """Return the rates beyond the ends of the grid at which a candidate was best, rounded to two digits.

    >>> _beyond(Choice({"own": 0.003}, grid=[0.0003, 0.001, 0.003]))
    [0.009]
    """
    grid, best = choice.grid, choice.rates.values()
    if len(grid) < 2:
        return []
    ends = [(grid[0], grid[1])] * (grid[0] in best) + [(grid[-1], grid[-2])] * (grid[-1] in best)
    return [float(f"{end**2 / inner:.2g}") for end, inner in ends]


def count_trials(candidates: int, rates: int) -> int:
    """Return the number of trials of `choose` with one seed in each round, without extensions of the grid.

    >>> count_trials(7, 3)
    28
    """
    return candidates * rates + sum(1 + size for size in halvings(candidates - 1))


@dataclass(frozen=True)
class Verdict:
    """The result of the confirmation: the gain of the challenger over the original on fresh seeds and the test data."""

    gain: float  # the mean difference; positive if the challenger is better
    half: float  # of the interval's width; infinite if all differences are the same: how far would others scatter?
    worth: float  # the smallest gain that is worth a change
    pairs: int  # number of seeds
    deviation: float  # of the differences; 0 if they are the same
    look: int  # how often the test was made, this time included

    @property
    def kind(self) -> str:
        """Return "wins" if the interval is above zero, "keep" (the original) if it is below `worth`, or "undecided"."""
        if self.gain > self.half:
            return WINS
        return KEEP if self.excluded < self.worth else UNDECIDED

    @property
    def level(self) -> float:
        """Return the level of the interval."""
        return 1 - alpha_of(self.look)

    @property
    def excluded(self) -> float:
        """Return the gain above which all are excluded."""
        return self.gain + self.half

    @property
    def needed(self) -> int | None:
        """Return the number of seeds, in all, that would decide if mean and deviation stayed; None beyond 1000."""
        shown = [gain for gain in (self.gain, self.worth - self.gain) if gain > 0]  # a win, or that it is not worth it
        needed = [seeds_needed(gain, self.deviation, alpha_of(self.look + 1)) for gain in shown]
        least = min((count for count in needed if count is not None), default=None)
        return None if least is None else max(least, self.pairs + 1)


def alpha_of(look: int) -> float:
    """Return the error rate of the interval of a look, counted from 1. Each of its ends errs at half of it.

    A finding errs at one end: "wins" without a gain, or "keep" with a gain that is worth a change. So all looks
    together err in at most 5 %.

    >>> [round(alpha_of(look), 4) for look in (1, 2, 3)]
    [0.05, 0.025, 0.0125]
    """
    return ALPHA * 0.5 ** (look - 1)


def judge(
    challenger: Sequence[float], original: Sequence[float], worth: float, look: int = 1, worst: float = math.inf
) -> Verdict:
    """Judge the test scores of both, with the same seeds, by the t interval of their differences.

    A network that diverged has a score of NaN, and gets the worst of all, other networks of the score `worst` included.

    >>> judge([90.1, 90.4, 90.2, 90.6], [89.0, 89.2, 89.3, 89.4], worth=0.3).kind
    'wins'
    >>> judge([90.1, 90.4, 90.2, 90.6], [90.2, 90.3, 90.3, 90.5], worth=0.3).kind
    'keep'
    >>> judge([90.1, 90.4, 90.2, 90.6], [90.2, 90.3, 90.3, 90.5], worth=0.1).kind
    'undecided'
    """
    floor = worst_of([*challenger, *original, worst])
    one, two = ([fill(score, floor) for score in scores] for scores in (challenger, original))
    differences = [a - b for a, b in zip(one, two, strict=True)]
    count, gain, deviation = len(differences), fmean(differences), stdev(differences)
    if deviation <= SAME * max(map(abs, (*one, *two))):
        return Verdict(gain, math.inf, worth, count, 0.0, look)
    half = t_quantile(count - 1, 1 - alpha_of(look)) * deviation / math.sqrt(count)
    return Verdict(gain, half, worth, count, deviation, look)


def half_over_examples(verdict: Verdict, differences: Sequence[float]) -> float:
    """Return half of the interval's width over seeds and test examples, given the mean difference of each example.

    The variances of both means are added: s^2 / n over n seeds and s^2 / N over N examples.
    """
    variance = verdict.deviation**2 / verdict.pairs + stdev(differences) ** 2 / len(differences)
    return t_quantile(verdict.pairs - 1, verdict.level) * math.sqrt(variance)


def confirm(choice: Choice, pairs: int, worth: float, look: int, scores: Mapping[Trial, Score]) -> Verdict:
    """Judge the challenger on fresh seeds, those of earlier looks included."""
    tests = [scores[trial].test for trial in choice.confirmation(pairs)]
    return judge(tests[::2], tests[1::2], worth, look, worst_of(score.test for score in choice.scores.values()))
