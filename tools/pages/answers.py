"""Answers that records give to a claim: differences between activations, and published figures.

Each is of one experiment to one question. Of its two p-values `p`, a small first one says that the claim holds, a small
second one that it does not; `by_means` ignores the uncertainty. `seeds_needed` is the number of fresh seeds that would
decide if what was seen is true; None if too many or unknown. `figures` are the numbers as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev

from hullo.lab.analysis.inference import Comparison, Scores, compare
from hullo.lab.analysis.power import POWER, seeds_needed
from hullo.lab.analysis.statistics import ALPHA, Interval, p_value

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"
AGREES, UNTESTED, PROVED = "agrees", "not tested", "proved"


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
    def p(self) -> tuple[float, float]:
        """Return two-sided p-values.

        To exceed several others is to exceed each: the largest p-value counts. To be exceeded by one of k others: k
        times the smallest.
        """
        above = [found.p if found.interval.mean > 0 else 2 - found.p for found in self.each]
        holds, fails = min(1.0, max(above)), min(1.0, len(above) * min(2 - p for p in above))
        differences = self.strongest.differences.values()
        equal = self.at_least and len(differences) > 1 and not any(differences)
        return (0.0, 1.0) if equal else (holds, fails)

    @property
    def by_means(self) -> bool:
        return self.interval.mean > 0 or (self.at_least and self.interval.mean == 0)

    def seeds_needed(self, alpha: float = ALPHA, power: float = POWER) -> int | None:
        return self.strongest.seeds_needed(alpha if self.by_means else alpha / len(self.each), power)

    @property
    def figures(self) -> list[str]:
        pair = f"{self.strongest.row} over {self.strongest.other}"
        beside = []
        if self.published is not None:
            excluded = self.interval.half is not None and not self.interval.covers(self.published)
            beside = [f"paper {self.published:+.2f}{', excluded' * excluded}"]
        shown = [] if pair == self.question else [pair.removeprefix(self.question).strip()]
        return [*shown, self.interval.spell("+.2f"), *beside]


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
    def p(self) -> tuple[float, float]:
        """Return 0 for a figure that agrees, which needs no test, and the p-value of one that does not."""
        p = p_value(self.values, self.published, "next")
        return float(p <= ALPHA or len(self.values) == 1), p

    @property
    def by_means(self) -> bool:
        """Return whether a run could give the published figure if the mean and the deviation seen are the true ones."""
        reach = NormalDist().inv_cdf(1 - ALPHA / 2) * (stdev(self.values) if len(self.values) > 1 else 0.0)
        return abs(mean(self.values) - self.published) <= reach

    def seeds_needed(self, alpha: float = ALPHA, power: float = POWER) -> int | None:
        """Return the number of seeds that would show a run to differ; None if too many, or unknown with one seed."""
        if len(self.values) == 1:
            return None
        return seeds_needed(mean(self.values) - self.published, stdev(self.values), alpha, "next", power)

    @property
    def figures(self) -> list[str]:
        found = self.interval
        span = "" if found.half is None else f"one run: {found.low:+.2f} to {found.high:+.2f}"
        return [f"mean {found.mean:+.2f}", *filter(None, [span]), f"paper {self.published:+.2f}"]


Answer = Difference | Prediction
