"""Answers that records give to a claim: differences between activations, published figures, and counts of runs.

A difference is taken between runs of the same seed. One activation exceeds the best of several others if it exceeds
each of them, so each is tested. The best of several is chosen on the other seeds and scored on the one left out, so
that the choice flatters nobody; as such scores depend on each other, their tests have a larger error (`variance_factor`
of folds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist, mean, stdev
from typing import NamedTuple, Protocol

from hullo.lab.analysis.power import seeds_needed
from hullo.lab.analysis.statistics import ALPHA, Error, Interval, p_value

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"
AGREES, UNTESTED = "agrees", "not tested"

Accuracies = Mapping[str, Mapping[int, float]]
"""Accuracies by activation and seed, in percent."""


class Fold(NamedTuple):
    """A seed, the two activations chosen on the other seeds, and their difference on this seed."""

    seed: int
    row: str
    other: str
    difference: float


def leave_one_seed_out(reached: Accuracies, rows: Sequence[str], others: Sequence[str]) -> list[Fold]:
    """Compare the best of some activations with the best of others, of those that were run.

    For each seed the best of either side by its mean over the other seeds is scored on this seed. With one activation
    on either side these are the differences between runs of the same seed. Only those `with_common_seeds` are compared.
    A single seed is the only one to choose on, and decides nothing.

    >>> reached = {"relu": {0: 80.0, 1: 80.0}, "tanh": {0: 90.0, 1: 70.0}, "identity": {0: 75.0, 1: 75.0}}
    >>> [fold.difference for fold in leave_one_seed_out(reached, ["relu", "tanh"], ["identity"])]
    [5.0, -5.0]
    """
    *sides, seeds = with_common_seeds(reached, rows, others)
    folds = []
    for seed in seeds:
        rest = [s for s in seeds if s != seed] or [seed]
        row, other = (max(names, key=lambda name: mean(reached[name][s] for s in rest)) for names in sides)
        folds.append(Fold(seed, row, other, reached[row][seed] - reached[other][seed]))
    return folds


def with_common_seeds(
    reached: Accuracies, rows: Sequence[str], others: Sequence[str]
) -> tuple[list[str], list[str], list[int]]:
    """Return the activations of two sides that can be compared on most seeds, and these seeds.

    These are the most seeds that any two of different sides share, and all activations that have them; of several sets
    of seeds, the one that most activations have.

    >>> reached = {"relu": {0: 1.0, 1: 1.0}, "tanh": {0: 1.0, 1: 1.0, 2: 1.0}, "elu": {3: 1.0, 4: 1.0}}
    >>> with_common_seeds(reached, ["tanh", "elu"], ["relu"])
    (['tanh'], ['relu'], [0, 1])
    """
    known = [[name for name in names if name in reached] for names in (rows, others)]

    def able(seeds: Set[int]) -> list[list[str]]:
        return [[name for name in names if reached[name].keys() >= seeds] for names in known]

    pairs = (reached[row].keys() & reached[other].keys() for row, other in product(*known))
    shared = dict.fromkeys(map(frozenset, pairs))  # in order
    seeds = max(shared, key=lambda seeds: (len(seeds), sum(map(len, able(seeds)))), default=frozenset())
    first, second = able(seeds) if seeds else ([], [])
    return first, second, sorted(seeds)


def against_each(reached: Accuracies, row: str, others: Sequence[str]) -> list[list[Fold]]:
    """Compare one activation with each of others on the seeds that all have, the strongest of the others first."""
    names = [name for name in others if name in reached]
    if row not in reached or not names:
        return []
    seeds = sorted(set.intersection(set(reached[row]), *(set(reached[name]) for name in names)))
    folds = [[Fold(s, row, name, reached[row][s] - reached[name][s]) for s in seeds] for name in names]
    return sorted(folds, key=lambda found: mean(fold.difference for fold in found)) if seeds else []


class Answer(Protocol):
    """The answer of one experiment to one question of a claim."""

    @property
    def experiment(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def p(self) -> float | None:
        """Return the p-value before correction for the number of answers; None if nothing is tested."""

    @property
    def by_means(self) -> bool:
        """Return whether the answer holds by the mean, ignoring its uncertainty."""

    @property
    def figures(self) -> list[str]:
        """Return the numbers as text."""

    def seeds_needed(self, alpha: float = ALPHA) -> int | None:
        """Return the number of seeds that would decide if what was seen is true; None if too many or unknown."""

    def judge(self, significant: bool) -> str:
        """Return the verdict, given whether the corrected p-value is small enough."""


@dataclass(frozen=True)
class Comparison:
    """The difference between an activation, or the best of several, and another, seed by seed.

    Args:
        experiment: its name.
        question: which activations are compared.
        folds: one per seed; against several others, those against the strongest.
        weaker: against several others, the folds against each of the rest.
        choice: whether the best of several was chosen on the other seeds.
        published: the same in the paper's figures, where others may be the best.
        at_least: whether no difference at all is claimed, too.
        unit: of the differences, if not points of accuracy.
    """

    experiment: str
    question: str
    folds: tuple[Fold, ...]
    weaker: tuple[tuple[Fold, ...], ...] = ()
    choice: bool = False
    published: float | None = None
    at_least: bool = False
    unit: str = ""

    @property
    def differences(self) -> list[float]:
        return [fold.difference for fold in self.folds]

    @property
    def difference(self) -> Interval:
        return Interval.of(self.differences, self._error)

    @property
    def p(self) -> float:
        """Return the two-sided p-value.

        To exceed several others is to exceed each: the largest p-value counts. To be exceeded by one of k others: k
        times the smallest.
        """
        return min(1.0, 2 * min(self._sides))

    @property
    def by_means(self) -> bool:
        return self.difference.mean > 0 or (self.at_least and self.difference.mean == 0)

    def judge(self, significant: bool) -> str:
        if significant:
            above, below = self._sides
            return HOLDS if above < below else FAILS
        return HOLDS if self.at_least and len(self.folds) > 1 and not any(self.differences) else OPEN

    def seeds_needed(self, alpha: float = ALPHA) -> int | None:
        """Return the number of seeds that would show the mean difference if it is true; None if too many or unknown."""
        if len(self.folds) == 1:
            return None
        rate = alpha if self.by_means else alpha / (1 + len(self.weaker))
        return seeds_needed(self.difference.mean, stdev(self.differences), rate, self._error)

    @property
    def figures(self) -> list[str]:
        pairs = dict.fromkeys(f"{fold.row} over {fold.other}" for fold in self.folds)
        shown = [pair.removeprefix(self.question).strip() for pair in pairs]
        figure = self.difference.spell("+.1f" if self.unit else "+.2f") + f" {self.unit}" * bool(self.unit)
        beside = [] if self.published is None else [f"paper {self.published:+.2f}"]
        return [*filter(None, shown), figure, *beside]

    @property
    def _error(self) -> Error:
        return "folds" if self.choice else "mean"

    @property
    def _sides(self) -> tuple[float, float]:
        """Return the one-sided p-values of being above all others, and of being below one."""
        each = [self.differences, *([fold.difference for fold in folds] for folds in self.weaker)]
        above = [_one_sided(differences, self._error) for differences in each]
        return max(above), min(1.0, len(each) * min(1 - p for p in above))


def _one_sided(values: Sequence[float], error: Error) -> float:
    """Return the p-value of the test that the mean is not positive."""
    p = p_value(values, 0.0, error) / 2
    return p if mean(values) > 0 else 1 - p


@dataclass(frozen=True)
class Prediction:
    """A published number, from a single run, compared with what another run of ours could give.

    Args:
        experiment, question: as for a comparison.
        values: the same figure from each seed alone.
        published: the paper's.
    """

    experiment: str
    question: str
    values: tuple[float, ...]
    published: float

    @property
    def interval(self) -> Interval:
        """Return the interval that covers one more run with a probability of 95 %."""
        return Interval.of(self.values, "next")

    @property
    def p(self) -> float:
        return p_value(self.values, self.published, "next")

    @property
    def by_means(self) -> bool:
        """Return whether a run could give the published figure if the mean and the deviation seen are the true ones."""
        reach = NormalDist().inv_cdf(1 - ALPHA / 2) * (stdev(self.values) if len(self.values) > 1 else 0.0)
        return abs(mean(self.values) - self.published) <= reach

    def seeds_needed(self, alpha: float = ALPHA) -> int | None:
        """Return the number of seeds that would show a run to differ; None if too many, or unknown with one seed."""
        if len(self.values) == 1:
            return None
        return seeds_needed(mean(self.values) - self.published, stdev(self.values), alpha, "next")

    def judge(self, significant: bool) -> str:
        """Return the verdict; a correction makes it harder to disagree, and must not make it easier to agree."""
        if len(self.values) == 1:
            return OPEN
        if significant:
            return FAILS
        return AGREES if self.p > ALPHA else OPEN

    @property
    def figures(self) -> list[str]:
        found = self.interval
        span = "" if found.half is None else f"one run: {found.low:+.2f} to {found.high:+.2f}"
        return [f"mean {found.mean:+.2f}", *filter(None, [span]), f"paper {self.published:+.2f}"]


@dataclass(frozen=True)
class Count:
    """The number of runs, or of their layers, that have a property.

    Args:
        experiment, question: as for a comparison.
        verdict: which needs no test.
        figures: the counts as text.
        having, total: the counts that are added up over all experiments.
        counted: what they count, as in "runs did not diverge".
    """

    experiment: str
    question: str
    verdict: str
    figures: list[str]
    having: int
    total: int
    counted: str
    p: None = None

    @property
    def by_means(self) -> bool:
        return self.verdict == HOLDS

    def judge(self, significant: bool) -> str:
        return self.verdict

    def seeds_needed(self, alpha: float = ALPHA) -> None:
        """Return None: runs that differ are a fact, which more seeds do not change."""


def decide(answers: Sequence[Answer], adjust: Callable[[Sequence[float]], list[float]]) -> list[str]:
    """Return the verdict of each answer after a correction of all p-values together."""
    tested = [i for i, answer in enumerate(answers) if answer.p is not None]
    adjusted = dict(zip(tested, adjust([answers[i].p or 0.0 for i in tested]), strict=True))
    return [answer.judge(adjusted.get(i, 1.0) <= ALPHA) for i, answer in enumerate(answers)]
