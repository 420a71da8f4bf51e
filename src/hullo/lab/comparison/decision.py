"""The decision: which runs to train, which candidate to confirm, and what that shows.

Everything here is a function of scores. `train` is whatever returns them: an engine that trains networks, or a
simulation that draws random numbers, by which the error rate of the whole procedure is tested. Scores are higher for
better networks, and NaN for those that diverged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import mean, stdev

from hullo.lab.analysis.power import detectable_difference, seeds_needed
from hullo.lab.analysis.statistics import ALPHA, p_value, pooled_deviation, t_quantile

FRESH = 1000
"""The first seed of the confirmation; choices are made on seeds from 0."""
MAX_EXTENSIONS = 2
"""How often the grid of learning rates may grow."""
WINS, KEEP, UNDECIDED = "wins", "keep", "undecided"


@dataclass(frozen=True, order=True)
class Arm:
    """A run: a candidate, its learning rate and a seed."""

    candidate: str
    lr: float
    seed: int


@dataclass(frozen=True)
class Score:
    """The scores of a run after the epoch that was best on validation data; higher is better, NaN if it diverged."""

    val: float
    test: float


Train = Callable[[Sequence[Arm], str], Sequence[Score]]


@dataclass
class Choice:
    """The challenger, and what led to it."""

    rates: dict[str, float] = field(default_factory=dict)  # the best learning rate of each candidate
    challenger: str = ""
    scores: dict[Arm, Score] = field(default_factory=dict)
    at_edge: list[str] = field(default_factory=list)  # candidates with the best rate at an end of the grid
    grid: list[float] = field(default_factory=list)

    def values(self, candidate: str, lr: float | None = None) -> dict[int, float]:
        """Return the validation scores of a candidate by seed, at its best rate or a given one.

        A run that diverged counts as the worst of all runs.
        """
        rate = self.rates[candidate] if lr is None else lr
        worst = worst_of(score.val for score in self.scores.values())
        runs = {arm.seed: s.val for arm, s in self.scores.items() if (arm.candidate, arm.lr) == (candidate, rate)}
        return {seed: fill(value, worst) for seed, value in sorted(runs.items())}

    def deviation(self, original: str) -> float | None:
        """Return the standard deviation of differences from the original between runs of the same seed."""
        own = self.values(original)
        others = [self.values(candidate) for candidate in self.rates if candidate != original]
        return pooled_deviation([[other[seed] - own[seed] for seed in other if seed in own] for other in others])


def worst_of(values: Iterable[float]) -> float:
    """Return the smallest finite number; 0 if there is none."""
    return min((value for value in values if math.isfinite(value)), default=0.0)


def fill(value: float, worst: float) -> float:
    return value if math.isfinite(value) else worst


def choose(
    candidates: Sequence[str],
    rates: Sequence[float],
    train: Train,
    *,
    count_seeds: Callable[[int, int], int] = lambda left, runs: 1,
    may_extend: Callable[[int], bool] = lambda runs: True,
) -> Choice:
    """Choose the challenger by successive halving on validation scores.

    The first round trains every candidate with every learning rate, and settles the rate of each. If the best rate of
    one is at an end of the grid, the grid grows for all. Each further round drops the weaker half of the challengers,
    and adds seeds to the others and to the original.

    Args:
        candidates: their names; the first is the original, which is never dropped.
        rates: the grid of learning rates.
        train: trains runs, with a description of the round, and returns their scores.
        count_seeds: number of seeds that a round adds, given how many rounds are left and its runs for each seed. A
            round after the first may add none.
        may_extend: whether there is time for a number of runs to extend the grid.

    >>> quality = {"own": 0.0, "relu": 0.1, "gelu": 0.5}
    >>> choose(list(quality), [0.1], lambda arms, _: [Score(quality[arm.candidate], 0) for arm in arms]).challenger
    'gelu'
    """
    choice, (original, *challengers) = Choice(grid=sorted(rates)), candidates
    sizes = halvings(len(challengers))

    def run(pairs: Sequence[tuple[str, float]], seeds: range, words: str) -> None:
        arms = [Arm(name, lr, seed) for seed in seeds for name, lr in pairs]
        choice.scores.update(zip(arms, train(arms, words), strict=True))

    def settle() -> None:
        for name in candidates:
            choice.rates[name] = max(choice.grid, key=lambda lr: mean(choice.values(name, lr).values()))

    seeds = range(count_seeds(len(sizes), len(candidates) * len(choice.grid)))
    run([*product(candidates, choice.grid)], seeds, f"round 1 of {1 + len(sizes)}")
    settle()
    for _ in range(MAX_EXTENSIONS):
        new = _beyond(choice)
        if not new or not may_extend(len(candidates) * len(seeds) * len(new)):
            break
        run([*product(candidates, new)], seeds, f"round 1 of {1 + len(sizes)}, more learning rates")
        choice.grid = sorted([*choice.grid, *new])
        settle()
    ends = {choice.grid[0], choice.grid[-1]} if len(choice.grid) > 1 else set()
    choice.at_edge = [name for name in candidates if choice.rates[name] in ends]
    for number, size in enumerate(sizes, 1):
        challengers.sort(key=lambda name: mean(choice.values(name).values()), reverse=True)
        challengers = challengers[:size]
        seeds = range(seeds.stop, seeds.stop + count_seeds(len(sizes) - number, 1 + size))
        words = f"round {1 + number} of {1 + len(sizes)}"
        run([(name, choice.rates[name]) for name in (original, *challengers)], seeds, words)
    (choice.challenger,) = challengers
    return choice


def halvings(challengers: int) -> list[int]:
    """Return the number of challengers in each round after the first.

    >>> halvings(6), halvings(1)
    ([3, 2, 1], [1])
    """
    sizes = [math.ceil(challengers / 2)]
    while sizes[-1] > 1:
        sizes.append(math.ceil(sizes[-1] / 2))
    return sizes


def _beyond(choice: Choice) -> list[float]:
    """Return the rates beyond the ends of the grid at which a candidate was best."""
    grid, best = choice.grid, set(choice.rates.values())
    if len(grid) < 2:
        return []
    below = [_spell_rate(grid[0] ** 2 / grid[1])] if grid[0] in best else []
    above = [_spell_rate(grid[-1] ** 2 / grid[-2])] if grid[-1] in best else []
    return below + above


def _spell_rate(lr: float) -> float:
    """Round a rate to two digits, so that grids of 1, 3, 10 stay so.

    >>> _spell_rate(0.003**2 / 0.001)
    0.009
    """
    return float(f"{lr:.2g}")


def count_runs(candidates: int, rates: int) -> int:
    """Return the number of runs of `choose` with one seed in each round, without extensions of the grid.

    >>> count_runs(7, 3)
    30
    """
    return candidates * rates + sum(1 + size for size in halvings(candidates - 1))


@dataclass(frozen=True)
class Verdict:
    """The result of the confirmation: the gain of the challenger over the original on fresh seeds and the test data.

    Args:
        kind: "wins", "keep" (the original), or "undecided".
        gain: the mean difference; positive if the challenger is better.
        half: half of the interval's width, at the level 1 - alpha.
        alpha: the error rate of this look.
        p: of the paired t test.
        pairs: number of seeds.
        deviation: of the differences.
        look: how often the test was made, this time included.
    """

    kind: str
    gain: float
    half: float
    alpha: float
    p: float
    pairs: int
    deviation: float
    look: int

    @property
    def more(self) -> int | None:
        """Return the number of further seeds that would decide if mean and deviation stayed; None if too many."""
        if not 0 < self.deviation < math.inf:
            return None
        needed = seeds_needed(self.gain, self.deviation, alpha_of(self.look + 1))
        return None if needed is None else max(1, needed - self.pairs)

    @property
    def excluded(self) -> float:
        """Return the gain above which all are excluded."""
        return self.gain + self.half


def alpha_of(look: int) -> float:
    """Return the error rate of a look, counted from 1: all looks together have 0.05.

    >>> [round(alpha_of(k), 5) for k in (1, 2, 3)]
    [0.025, 0.0125, 0.00625]
    """
    return float(ALPHA / 2**look)


def judge(challenger: Sequence[float], original: Sequence[float], look: int = 1, worst: float | None = None) -> Verdict:
    """Judge the test scores of both, with the same seeds, by one paired t test.

    The challenger wins if it is significantly better. Otherwise the original is kept if the gains that the test would
    have found with a probability of 0.8 are excluded.

    Args:
        challenger, original: scores by seed; NaN for a run that diverged, which counts as the worst of all.
        look: how often the test is made on growing numbers of seeds, this time included.
        worst: the worst score of other runs.

    >>> judge([90.1, 90.4, 90.2, 90.6], [89.0, 89.2, 89.3, 89.4]).kind
    'wins'
    >>> judge([90.1, 90.4, 90.2, 90.6], [90.2, 90.3, 90.3, 90.5]).kind
    'keep'
    """
    known = [value for value in (*challenger, *original) if math.isfinite(value)]
    floor = worst_of([*known, *([] if worst is None else [worst])])
    differences = [fill(one, floor) - fill(two, floor) for one, two in zip(challenger, original, strict=True)]
    count, alpha = len(differences), alpha_of(look)
    gain, deviation = mean(differences), stdev(differences) if count > 1 else math.inf
    half = t_quantile(count - 1, 1 - alpha) * deviation / math.sqrt(count) if count > 1 else math.inf
    p = p_value(differences) if deviation else 1.0  # equal differences do not say how far others would scatter
    if p <= alpha:
        kind = WINS if gain > 0 else KEEP
    elif count > 1 and gain + half < detectable_difference(deviation, count, alpha):
        kind = KEEP
    else:
        kind = KEEP if gain == deviation == 0 else UNDECIDED
    return Verdict(kind, gain, half, alpha, p, count, deviation, look)


def confirm(choice: Choice, original: str, pairs: int, look: int, train: Train) -> Verdict:
    """Train the challenger and the original on fresh seeds, those of earlier looks included, and judge them."""
    names, seeds = (choice.challenger, original), range(FRESH, FRESH + pairs)
    arms = [Arm(name, choice.rates[name], seed) for seed in seeds for name in names]
    scores = dict(zip(arms, train(arms, "confirmation"), strict=True))
    one, two = ([scores[Arm(name, choice.rates[name], seed)].test for seed in seeds] for name in names)
    return judge(one, two, look, worst_of(score.test for score in choice.scores.values()))


def detectable(deviation: float, pairs: int, look: int = 1) -> float:
    """Return the gain that a confirmation finds with a probability of 0.8."""
    return detectable_difference(deviation, pairs, alpha_of(look))
