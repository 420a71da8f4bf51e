"""The paper's claims about its results, and what records say about each.

Manessi and Rozza, "Learning Combinations of Activation Functions", ICPR 2018. A claim is a family of answers, one per
question and experiment. Verdicts of single answers are corrected for the size of the family by Holm's method; a claim
about most cases counts what holds at a false discovery rate of 5 % (Benjamini and Hochberg).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from hullo.lab.analysis.experiments import REFERENCE, Experiment
from hullo.lab.analysis.inference import compare
from hullo.lab.analysis.statistics import ALPHA, benjamini_hochberg, holm
from hullo.lab.spec import paper
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.records import Record
from hullo.properties import is_monotone
from pages.answers import (
    AGREES,
    FAILS,
    HOLDS,
    OPEN,
    UNTESTED,
    Answer,
    Count,
    Difference,
    Order,
    Prediction,
    decide,
    exceed_each,
)

FIXED = [row for row in paper.ROWS if not ActivationSpec.parse(row).learns]
CONVEX, AFFINE = (
    [row for row in paper.ROWS if ActivationSpec.parse(row).kind == kind] for kind in ("convex", "affine")
)
HULLS = CONVEX + AFFINE
DEEP = "resnet56"
RIVALS = ["leaky_relu(0.3)", "prelu"]
"""Activations close to hulls that are not in the paper: Keras's default slope, and a learned slope."""

Question = tuple[str, Sequence[str], Sequence[str]]
"""Its text, and the activations of which the best is compared with the best of the others."""
BEST = ("best hull over best fixed activation", HULLS, FIXED)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and the answers of experiments to it.

    Args:
        statement: the claim.
        said: where the paper makes it.
        answers: one per question and experiment.
        of_most: whether it is claimed of more than half of the answers, or of all.
    """

    statement: str
    said: str
    answers: tuple[Answer, ...]
    of_most: bool = False

    @cached_property
    def verdicts(self) -> list[str]:
        """Return each answer's verdict by Holm's method."""
        return decide(self.answers, holm)

    @cached_property
    def discoveries(self) -> list[str]:
        """Return each answer's verdict by the method of Benjamini and Hochberg."""
        return decide(self.answers, benjamini_hochberg)

    @property
    def verdict(self) -> str:
        verdicts = self.discoveries if self.of_most else self.verdicts
        fine = [verdict in (HOLDS, AGREES) for verdict in verdicts]
        if not verdicts:
            return UNTESTED
        if sum(fine) >= self._enough:
            return AGREES if AGREES in verdicts else HOLDS
        return FAILS if verdicts.count(FAILS) >= self._too_many else OPEN

    @property
    def _enough(self) -> int:
        """Return the number of answers that must hold for the claim to hold."""
        return len(self.answers) // 2 + 1 if self.of_most else len(self.answers)

    @property
    def _too_many(self) -> int:
        """Return the number of answers that must fail to refute the claim."""
        return math.ceil(len(self.answers) / 2) if self.of_most else 1

    @property
    def alpha(self) -> float:
        """Return the error rate that the next undecided answer must keep.

        Holm: the smallest p-value of the u answers that are not significant must be at most alpha / u. Benjamini and
        Hochberg: for k of m answers to count, the k-th smallest must be at most alpha k / m.
        """
        if self.of_most:
            return ALPHA * self._enough / max(1, len(self.answers))
        adjusted = holm([answer.p for answer in self.answers if answer.p is not None])
        return ALPHA / max(1, sum(p > ALPHA for p in adjusted))

    @property
    def seeds_needed(self) -> int | None:
        """Return the number of seeds that would decide an undecided claim if the mean differences are true.

        None if that is beyond what is searched, or unknown for want of a second seed.
        """
        verdicts = self.discoveries if self.of_most else self.verdicts
        waiting = [answer for answer, verdict in zip(self.answers, verdicts, strict=True) if verdict == OPEN]
        for wanted, enough in ((True, self._enough), (False, self._too_many)):
            missing = enough - sum(verdict in ((HOLDS, AGREES) if wanted else (FAILS,)) for verdict in verdicts)
            needs = [a.seeds_needed(self.alpha) or math.inf for a in waiting if a.by_means == wanted]
            if 0 < missing <= len(needs):
                least = sorted(needs)[missing - 1]
                return None if math.isinf(least) else int(least)
        return None


def claims(experiments: Sequence[Experiment], like_paper: Sequence[Experiment] | None = None) -> list[Claim]:
    """Return the paper's claims with the answers of experiments on test images.

    Args:
        experiments: under the reading that claims are judged by.
        like_paper: the same runs under the paper's probable reading, for claims about the size of its figures; by
            default under the same reading.
    """
    tested = [e for e in experiments if e.split == "test"]
    read_alike = [e for e in experiments if e.split == "test"] if like_paper is None else list(like_paper)
    whole = [e for e in tested if any(e.published(row) is not None for row in paper.ROWS)]
    deep = [e for e in whole if e.setting.network == DEEP]
    alexnet = [e for e in read_alike if e.setting.network == paper.ALEXNET.network]
    small = [e for e in read_alike if e not in alexnet]
    over_rivals = [(f"best hull over {row}", HULLS, [row]) for row in RIVALS]
    same_bases = [(f"{one} over {two}", [one], [two]) for one, two in zip(AFFINE, CONVEX, strict=True)]
    bases = [(row, [row], [item.name for item in ActivationSpec.parse(row).bases]) for row in HULLS]
    return [
        Claim(
            "The best activation is a hull, in every column",
            "claimed in the abstract and the results",
            _compare(whole, BEST),
        ),
        Claim("The best hull gains as much as in the paper, in every column", "claimed in the results", _gains(small)),
        Claim(
            "AlexNet gains as much on ILSVRC-2012 as in the paper",
            "claimed in the abstract, of all thousand classes",
            _gains(alexnet),
        ),
        Claim(
            "The best affine hull beats the best convex hull, in most columns",
            "claimed in the results",
            _compare(whole, ("best affine over best convex hull", AFFINE, CONVEX)),
            of_most=True,
        ),
        Claim(
            "Affine hulls beat the convex hulls of the same bases, in most cases",
            "claimed in the results, read row by row",
            _compare(whole, *same_bases),
            of_most=True,
        ),
        Claim(
            "Hulls beat the best of their bases, in most cases",
            "claimed in the results",
            _compare(whole, *bases),
            of_most=True,
        ),
        Claim(
            "Hulls beat the best of their bases in a very deep network, ResNet-56, in most cases",
            "claimed in the results",
            _compare(deep, *bases),
            of_most=True,
        ),
        Claim(
            "convex(identity,relu) is at least as good as leaky_relu, in every column",
            "claimed in the results",
            _compare(whole, ("convex(identity,relu)", ["convex(identity,relu)"], ["leaky_relu"]), at_least=True),
        ),
        Claim(
            "Convex hulls are monotone in every layer, in all cases",
            "claimed in the results",
            tuple(_monotone(tested, CONVEX)),
        ),
        Claim(
            "Affine hulls lose monotonicity in at least one layer, in most cases",
            "claimed in the results",
            tuple(_monotone(tested, AFFINE)),
            of_most=True,
        ),
        Claim(
            "Hulls train faster: they reach ReLU's best accuracy before ReLU does, in most cases",
            "claimed in the related work and the methods; an exact sign test, of which a hull that never reaches the "
            "level is later than any",
            tuple(_earlier(whole)),
            of_most=True,
        ),
        Claim(
            "Hulls train without a careful initialization, in every run",
            "claimed in the methods",
            tuple(_trained(tested)),
        ),
        Claim(
            "The best hull beats leaky_relu(0.3) and PReLU, in every column",
            "not claimed by the paper, which ran neither: Keras's default slope, and one learned slope per channel",
            _compare(whole, *over_rivals),
        ),
    ]


def _compare(experiments: Sequence[Experiment], *questions: Question, at_least: bool = False) -> tuple[Answer, ...]:
    """Compare one activation with each of others, or the best of several with the best of others."""
    found = []
    for text, rows, others in questions:
        for experiment in experiments:
            reached, published = experiment.accuracies, _published_gain(experiment, rows, others)
            each = [compare(reached, rows, others)] if len(rows) > 1 else exceed_each(reached, rows[0], others)
            if known := tuple(filter(None, each)):
                found.append(Difference(experiment.name, text, known, published, at_least))
    return tuple(found)


def _published_gain(experiment: Experiment, rows: Sequence[str], others: Sequence[str]) -> float | None:
    ours, theirs = ([v for row in names if (v := experiment.published(row)) is not None] for names in (rows, others))
    return max(ours) - max(theirs) if ours and theirs else None


def _gains(experiments: Sequence[Experiment]) -> tuple[Answer, ...]:
    """Compare the paper's gain of its best hull with the same figure from each of our seeds: one run per activation."""
    question, rows, others = BEST
    found = []
    for experiment in experiments:
        reached, published = experiment.accuracies, _published_gain(experiment, rows, others)
        sides = [[reached[name] for name in names if name in reached] for names in (rows, others)]
        if published is not None and all(sides):
            seeds = sorted(set.intersection(*(set(run) for side in sides for run in side)))
            values = tuple(max(run[s] for run in sides[0]) - max(run[s] for run in sides[1]) for s in seeds)
            if values:
                found.append(Prediction(experiment.name, question, values, published))
    return tuple(found)


def _earlier(experiments: Sequence[Experiment]) -> Iterator[Order]:
    """Count, for each hull, the pairs of a column and a seed in which it reaches ReLU's best accuracy before ReLU."""
    for row in HULLS:
        epochs = []
        for experiment in experiments:
            curves = {(r.spec.activation, r.spec.seed): experiment.curve(r) for r in experiment.records}
            for reference, own in (
                (curves[REFERENCE, seed], curve)
                for (name, seed), curve in curves.items()
                if name == row and (REFERENCE, seed) in curves
            ):
                level = max(reference)
                epochs.append((first_reaching(own, level), first_reaching(reference, level)))
        if epochs:
            yield Order(row, tuple(epochs))


def first_reaching(curve: Sequence[float], level: float) -> float:
    """Return the first epoch, counted from 1, with at least this accuracy; infinity if none has.

    >>> first_reaching([70.0, 80.0, 79.0], 80.0), first_reaching([70.0], 80.0)
    (2, inf)
    """
    return next((epoch for epoch, reached in enumerate(curve, 1) if reached >= level), math.inf)


def _trained(experiments: Sequence[Experiment]) -> Iterator[Count]:
    """Count the hulls' runs that did not diverge; all start from the default initialization."""
    for experiment in experiments:
        runs = [record for record in experiment.records if record.spec.activation in HULLS]
        if runs:
            sound = sum(not experiment.lost(record) for record in runs)
            verdict = HOLDS if sound == len(runs) else FAILS
            figures = [f"{sound} of {len(runs)} runs did not diverge"]
            question = "hulls, default initialization"
            yield Count(experiment.name, question, verdict, figures, sound, len(runs), "runs did not diverge")


def _monotone(experiments: Sequence[Experiment], rows: Sequence[str]) -> Iterator[Count]:
    """Count the learned functions, one per layer and run, that are monotone; for affine hulls, those that are not."""
    for row in rows:
        for experiment in experiments:
            own = (record for record in experiment.records if record.spec.activation == row)
            runs = [layers for record in own if (layers := monotone_layers(record, experiment.read_epoch(record)))]
            if runs:
                whole, monotone, total = sum(map(all, runs)), sum(map(sum, runs)), sum(map(len, runs))
                if row in CONVEX:
                    verdict = HOLDS if whole == len(runs) else FAILS
                    having, counted = monotone, "layers are monotone"
                else:
                    verdict = FAILS if whole == len(runs) else OPEN if whole else HOLDS
                    having, counted = total - monotone, "layers are not monotone"
                figures = [f"{monotone} of {total} monotone", f"all in {whole} of {len(runs)} runs"]
                yield Count(experiment.name, row, verdict, figures, having, total, counted)


def monotone_layers(record: Record, epoch: int) -> list[bool]:
    """Return whether each layer's activation is monotone after an epoch.

    Those that diverged are no functions; those of bases without a formula, of which this is unknown, are left out.
    """
    answers = [_is_monotone(tuple(layer), tuple(record.bases)) for layer in known_layers(record, epoch)]
    return [answer for answer in answers if answer is not None]


@cache
def _is_monotone(coefficients: tuple[float, ...], bases: tuple[str, ...]) -> bool | None:
    answer = is_monotone(coefficients, bases)
    assert not isinstance(answer, list)  # noqa: S101  (there is one row)
    return answer


def known_layers(record: Record, epoch: int) -> list[list[float]]:
    """Return the coefficients of each layer after an epoch, without layers that diverged."""
    layers = [[c for c in layer if c is not None] for layer in record.coefficients[epoch]] if record.bases else []
    return [layer for layer in layers if len(layer) == len(record.bases)]
