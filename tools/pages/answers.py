"""Answers that records give to a claim: differences between activations, published figures, and counts of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev
from typing import Protocol

from hullo.lab.analysis.inference import Comparison, Scores, compare
from hullo.lab.analysis.power import seeds_needed
from hullo.lab.analysis.statistics import ALPHA, Interval, p_value

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"
AGREES, UNTESTED = "agrees", "not tested"


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
class Difference:
    """The difference between an activation, or the best of several, and others.

    Args:
        experiment: its name.
        question: which activations are compared.
        each: against one other, or the best of several: one comparison. To exceed each of several others: one per
            other, the strongest first.
        published: the same in the paper's figures, where others may be the best.
        at_least: whether no difference at all is claimed, too.
    """

    experiment: str
    question: str
    each: tuple[Comparison, ...]
    published: float | None = None
    at_least: bool = False

    @property
    def strongest(self) -> Comparison:
        """Return the comparison with the strongest other."""
        return self.each[0]

    @property
    def interval(self) -> Interval:
        return self.strongest.interval

    @property
    def p(self) -> float:
        """Return the two-sided p-value.

        To exceed several others is to exceed each: the largest p-value counts. To be exceeded by one of k others: k
        times the smallest.
        """
        return min(1.0, 2 * min(self._sides))

    @property
    def by_means(self) -> bool:
        return self.interval.mean > 0 or (self.at_least and self.interval.mean == 0)

    def judge(self, significant: bool) -> str:
        if significant:
            above, below = self._sides
            return HOLDS if above < below else FAILS
        differences = self.strongest.differences.values()
        return HOLDS if self.at_least and len(differences) > 1 and not any(differences) else OPEN

    def seeds_needed(self, alpha: float = ALPHA) -> int | None:
        return self.strongest.seeds_needed(alpha if self.by_means else alpha / len(self.each))

    @property
    def figures(self) -> list[str]:
        pair = f"{self.strongest.row} over {self.strongest.other}".removeprefix(self.question).strip()
        beside = [] if self.published is None else [f"paper {self.published:+.2f}"]
        return [*filter(None, [pair]), self.interval.spell("+.2f"), *beside]

    @property
    def _sides(self) -> tuple[float, float]:
        """Return the one-sided p-values of being above all others, and of being below one."""
        halves = [(comparison.p / 2, comparison.interval.mean > 0) for comparison in self.each]
        above = [half if positive else 1 - half for half, positive in halves]
        return max(above), min(1.0, len(above) * min(1 - p for p in above))


def exceed_each(scores: Scores, row: str, others: Sequence[str]) -> tuple[Comparison, ...]:
    """Compare one activation with each of others on the seeds that all have, the strongest of the others first."""
    names = [name for name in (row, *others) if name in scores]
    seeds = set.intersection(*(set(scores[name]) for name in names)) if names else set()
    shared = {name: {seed: scores[name][seed] for seed in seeds} for name in names}
    found = (comparison for name in others if (comparison := compare(shared, [row], [name])))
    return tuple(sorted(found, key=lambda comparison: comparison.interval.mean))


@dataclass(frozen=True)
class Prediction:
    """A published number, from a single run, compared with what another run of ours could give.

    Args:
        experiment, question: as for a difference.
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
class Order:
    """How often one of a pair of runs comes first: an exact sign test, which needs no times of those that never come.

    Args:
        question: what is compared.
        times: of both, in each pair; infinite if never.
    """

    question: str
    times: tuple[tuple[float, float], ...]
    experiment: str = "all columns"

    @property
    def first(self) -> int:
        return sum(one < other for one, other in self.times)

    @property
    def total(self) -> int:
        """Return the number of pairs that are no ties."""
        return sum(one != other for one, other in self.times)

    @property
    def p(self) -> float:
        """Return twice the probability of at least as many firsts by chance: that it comes later is not tested."""
        count = self.total
        at_least = sum(math.comb(count, k) for k in range(self.first, count + 1))
        return min(1.0, 2 * math.ldexp(at_least, -count))

    @property
    def by_means(self) -> bool:
        return 2 * self.first > self.total

    @property
    def figures(self) -> list[str]:
        never = sum(math.isinf(one) for one, _ in self.times)
        return [f"earlier in {self.first} of {len(self.times)}", f"never in {never}"]

    def judge(self, significant: bool) -> str:
        return HOLDS if significant else OPEN

    def seeds_needed(self, alpha: float = ALPHA) -> None:
        """Return None: it is not searched for."""


@dataclass(frozen=True)
class Count:
    """The number of runs, or of their layers, that have a property.

    Args:
        experiment, question: as for a difference.
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
