"""Choose on some seeds, confirm on others: the one test behind every verdict.

The best of several activations by its mean over some seeds leads on these seeds by luck, too. So one set of seeds
chooses the best of each side, and a plain paired t test on other seeds says whether it leads. Where the first seeds
choose, the test is exact for any number of seeds and activations, if differences scatter normally; where a chosen pair
has fresh seeds (see `choosing_seeds`), simulations find the same error rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from hullo.lab.analysis.power import POWER, seeds_needed
from hullo.lab.analysis.statistics import ALPHA, Interval, are_alike, p_value

Scores = Mapping[str, Mapping[int, float]]
"""Scores by activation and seed; larger is better, so negate a loss."""


@dataclass(frozen=True)
class Comparison:
    """Paired differences between two activations, on seeds that did not choose them.

    Args:
        row, other: the two activations.
        differences: score of `row` minus score of `other`, by seed; at least one.
        chosen_on: the seeds that chose the two; empty where each side had one activation.
        left_out: activations that were not chosen from, since they lack seeds to choose on or to confirm on.
    """

    row: str
    other: str
    differences: Mapping[int, float]
    chosen_on: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds that confirm."""
        return tuple(self.differences)

    @property
    def interval(self) -> Interval:
        """Return the mean difference and its 95 % interval."""
        return Interval.of(self.differences.values())

    @property
    def p(self) -> float:
        """Return the two-sided p-value; 1.0 where the differences do not scatter, which gives no test."""
        values = list(self.differences.values())
        return 1.0 if are_alike(values) else p_value(values)

    @property
    def undecided(self) -> str:
        """Return that a difference is undecided, with the seeds that would decide it; an empty string if it is not."""
        needed = self.seeds_needed()
        return "" if self.p <= ALPHA else f"undecided{f': {needed} seeds' if needed else ''}"

    def seeds_needed(self, alpha: float = ALPHA, power: float = POWER) -> int | None:
        """Return the number of confirming seeds that would show the mean difference seen, if it is the true one.

        None if that takes too many, or is unknown without scatter.
        """
        values = list(self.differences.values())
        return None if are_alike(values) else seeds_needed(mean(values), stdev(values), alpha, power=power)


def compare(
    scores: Scores, rows: Sequence[str], others: Sequence[str], choose_on: Collection[int] | None = None
) -> Comparison | None:
    """Compare the best of some activations with the best of others, of those that were run.

    With one activation on either side nothing is chosen, and by default all common seeds confirm.

    Args:
        scores: by activation and seed; larger is better.
        rows, others: the activations of the two sides.
        choose_on: the seeds that choose; by default `choosing_seeds`.

    Returns:
        The comparison, or None if the two sides have no seeds in common that could confirm.

    >>> scores = {"relu": {0: 80.0, 1: 80.0, 2: 80.0}, "tanh": {0: 70.0, 1: 90.0, 2: 90.0}}
    >>> scores |= {"affine(identity,relu)": {0: 81.0, 1: 82.0, 2: 83.0}}
    >>> found = compare(scores, ["affine(identity,relu)"], ["relu", "tanh"])
    >>> found.other, found.chosen_on, found.differences
    ('relu', (0,), {1: 2.0, 2: 3.0})
    """
    sides = [[name for name in names if name in scores] for names in (rows, others)]
    if not all(sides):
        return None
    choosing, able = _choosing(scores, sides) if choose_on is None else _confirmed(scores, sides, sorted(choose_on))
    if not all(able):
        return None
    row, other = (_best(scores, side, choosing) for side in able)
    seeds = sorted((scores[row].keys() & scores[other].keys()) - set(choosing))
    left_out = tuple(name for side, kept in zip(sides, able, strict=True) for name in side if name not in kept)
    differences = {seed: scores[row][seed] - scores[other][seed] for seed in seeds}
    return Comparison(row, other, differences, choosing, left_out) if seeds else None


def choosing_seeds(scores: Scores, rows: Sequence[str], others: Sequence[str]) -> tuple[int, ...]:
    """Return the seeds that choose by default: the first fifth, at least one, of those that most activations have.

    Where all of these would choose two activations that were run on two or more seeds besides, as a chosen pair is on
    fresh ones, they do, and the others confirm. A fifth finds true differences more often than a third or a half does,
    for 5 to 40 seeds: most seeds are better spent on confirming.

    >>> hulls, fixed = ["affine(identity,relu)", "convex(identity,relu)"], ["relu"]
    >>> choosing_seeds(dict.fromkeys(hulls + fixed, dict.fromkeys(range(5), 80.0)), hulls, fixed)
    (0,)
    """
    return _choosing(scores, [[name for name in names if name in scores] for names in (rows, others)])[0]


def _choosing(scores: Scores, sides: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], list[list[str]]]:
    """Return the seeds that choose, and the activations of each side that they can choose."""
    if sum(map(len, sides)) == 2:
        return (), [list(side) for side in sides]
    count = Counter(seed for side in sides for name in side for seed in scores[name])
    shared = set.intersection(*({seed for name in side for seed in scores[name]} for side in sides))
    common = sorted(seed for seed in shared if 2 * count[seed] > sum(map(len, sides)))
    able = [[name for name in side if scores[name].keys() >= set(common)] for side in sides]
    if all(able):
        row, other = (_best(scores, side, common) for side in able)
        if len((scores[row].keys() & scores[other].keys()) - set(common)) >= 2:
            return tuple(common), able
    return _confirmed(scores, sides, common[: max(1, len(common) // 5)])


def _confirmed(
    scores: Scores, sides: Sequence[Sequence[str]], choosing: Sequence[int]
) -> tuple[tuple[int, ...], list[list[str]]]:
    """Return the seeds that choose, and the activations that have these and others, which can confirm."""
    return tuple(choosing), [[name for name in side if scores[name].keys() > set(choosing)] for side in sides]


def _best(scores: Scores, names: Sequence[str], seeds: Sequence[int]) -> str:
    return max(names, key=lambda name: sum(scores[name][seed] for seed in seeds))
