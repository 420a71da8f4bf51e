"""Decide from records which of the paper's claims hold.

The claims are those of Manessi and Rozza, "Learning Combinations of Activation Functions", ICPR 2018. A claim is a
family of answers, one per question and experiment; that at least k of m hold is a partial conjunction. Claims about
functions are proved, and claims that the records say nothing about are listed as not tested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.inference import Scores, compare
from hullo.lab.analysis.power import POWER
from hullo.lab.analysis.statistics import ALPHA, holm, partial_conjunction
from hullo.lab.spec import paper
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.records import Record
from hullo.properties import is_monotone
from pages.answers import (
    AGREES,
    FAILS,
    HOLDS,
    OPEN,
    PROVED,
    UNTESTED,
    Answer,
    Difference,
    Prediction,
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
        said: where the paper makes it, and how it is tested, as Markdown.
        answers: one per question and experiment.
        of_most: whether it is claimed of more than half of the answers, or of all.
        stated: the verdict of a proof or of a count; of a claim without answers, that it is not tested.
    """

    statement: str
    said: str
    answers: tuple[Answer, ...] = ()
    of_most: bool = False
    stated: str = UNTESTED

    @property
    def verdict(self) -> str:
        if not self.answers:
            return self.stated
        holds, fails = zip(*(answer.p for answer in self.answers), strict=True)
        if partial_conjunction(holds, self._enough) <= ALPHA:
            return AGREES if isinstance(self.answers[0], Prediction) else HOLDS
        return FAILS if partial_conjunction(fails, self._too_many) <= ALPHA else OPEN

    @property
    def verdicts(self) -> list[str]:
        """Return the verdict of each answer, alone."""
        return [_judge(answer) for answer in self.answers]

    @property
    def certain(self) -> list[bool]:
        """Return whether each verdict stands after correction for the number of answers (Holm)."""
        p_values = (answer.p[1:] if isinstance(answer, Prediction) else answer.p for answer in self.answers)
        return [p <= ALPHA for p in holm([*map(min, p_values)])]

    @property
    def _enough(self) -> int:
        """Return the number of answers that must hold for the claim to hold."""
        return len(self.answers) // 2 + 1 if self.of_most else len(self.answers)

    @property
    def _too_many(self) -> int:
        """Return the number of answers that must fail to refute the claim."""
        return len(self.answers) - self._enough + 1

    @property
    def seeds_needed(self) -> int | None:
        """Return the number of fresh seeds that would decide an undecided claim if the mean differences are true.

        All missing answers are found with a probability of 80 %, however they depend on each other. None if that is
        beyond what is searched, or unknown without a second seed.
        """
        for side, enough in enumerate((self._enough, self._too_many)):
            alpha = ALPHA / (len(self.answers) - enough + 1)
            missing = enough - sum(answer.p[side] <= alpha for answer in self.answers)
            waiting = [a for a in self.answers if a.by_means == (side == 0) and a.p[side] > alpha]
            if 0 < missing <= len(waiting):
                power = 1 - (1 - POWER) / missing
                least = sorted(answer.seeds_needed(alpha, power) or math.inf for answer in waiting)[missing - 1]
                return None if math.isinf(least) else int(least)
        return None


def _judge(answer: Answer) -> str:
    holds, fails = answer.p
    if isinstance(answer, Prediction):
        return OPEN if len(answer.values) == 1 else FAILS if fails <= ALPHA else AGREES
    return HOLDS if holds <= ALPHA else FAILS if fails <= ALPHA else OPEN


def claims(experiments: Sequence[Experiment], like_paper: Sequence[Experiment] | None = None) -> list[Claim]:
    """Return the paper's claims, with the answers of experiments on test images.

    Args:
        experiments: under the reading that claims are judged by.
        like_paper: the same runs under the paper's probable reading, for claims about the size of its figures; by
            default under the same reading.
    """
    tested = [e for e in experiments if e.split == "test"]
    read_alike = tested if like_paper is None else list(like_paper)
    whole = [e for e in tested if e.published]
    return [*_about_results(whole, read_alike), *_about_training(whole), *_about_functions(tested)]


def _about_results(whole: Sequence[Experiment], read_alike: Sequence[Experiment]) -> Iterator[Claim]:
    deep = [e for e in whole if e.setting.network == DEEP]
    alexnet = [e for e in read_alike if e.setting.network == paper.ALEXNET.network]
    small = [e for e in read_alike if e not in alexnet]
    bases = [(row, [row], _bases(row)) for row in HULLS]
    yield Claim(
        "The best activation is a hull, in every column",
        "claimed in the introduction, the results and the conclusion, of six columns",
        _compare(whole, BEST),
    )
    yield Claim(
        "The best hull gains as much as in the paper, in every column",
        "claimed in the results: 0.69 to 4.59 points",
        _gains(small),
    )
    yield Claim(
        "AlexNet gains as much on ILSVRC-2012 as in the paper",
        "claimed in the abstract, of all thousand classes: 3.01 points. The column was not run",
        _gains(alexnet),
    )
    yield Claim(
        "The best affine hull beats the best convex hull, in most columns",
        "claimed in the results, of five of six columns",
        _compare(whole, ("best affine over best convex hull", AFFINE, CONVEX)),
        of_most=True,
    )
    yield Claim(
        "Affine hulls beat the convex hulls of the same bases on average, in most columns",
        "a stricter form of the same claim, without a choice: the mean over the four sets of bases, seed by seed",
        tuple(_affine_over_convex(whole)),
        of_most=True,
    )
    bold, cells = _count_bold(small)
    yield Claim(
        "Hulls beat the best of their bases, in most cases",
        "claimed in the results and the conclusion, of what the table prints in bold: "
        f"{bold} of the {cells} cells of these columns",
        _compare(whole, *bases),
        of_most=True,
    )
    yield Claim(
        "Hulls beat the best of their bases in a very deep network, ResNet-56, in most cases",
        "claimed in the results: hulls work well there",
        _compare(deep, *bases),
        of_most=True,
    )
    yield Claim(
        "convex(identity,relu) is at least as good as leaky_relu, in every column",
        "claimed in the results",
        _compare(whole, ("convex(identity,relu)", ["convex(identity,relu)"], ["leaky_relu"]), at_least=True),
    )
    yield Claim(
        "The best hull beats leaky_relu(0.3) and PReLU, in every column",
        "not claimed by the paper, which ran neither: Keras's default slope, and one learned slope per channel",
        _compare(whole, *((f"best hull over {row}", HULLS, [row]) for row in RIVALS)),
    )


def _about_training(whole: Sequence[Experiment]) -> Iterator[Claim]:
    runs = [experiment.lost(r) for experiment in whole for r in experiment.records if r.spec.activation in HULLS]
    yield Claim(
        "Hulls work with residual units, dropout, pooling, convolutional and fully connected layers",
        f"claimed in the results. No type of layer was varied alone. {runs.count(False)} of {len(runs)} runs of hulls "
        "in these columns did not diverge; AlexNet's did at a constant learning rate "
        "([why](appendix.md#why-alexnet-diverged))",
    )
    yield Claim(
        "Hulls train faster than activations that restrict their functions less",
        "claimed in the related work, of learned piecewise linear units and of small networks as activations; neither "
        "was run, by the paper or here",
    )
    yield Claim(
        "Hulls are more expressive than activations that evolutionary algorithms learn",
        "claimed in the related work. A hull contains a choice among its bases, but those algorithms also add "
        "functions or scale them; none was run, by the paper or here",
    )
    yield Claim(
        "Slope one at the origin makes training faster",
        "claimed in the methods, of large initial gradients; to test it, hulls whose coefficients sum to other values "
        "would have to be run beside these",
    )
    yield Claim(
        "Hulls train without a careful initialization",
        "claimed in the related work and the methods. Every run starts from a careful one, Glorot's or AlexNet's; to "
        "test it, initial weights of a quarter and of four times that size would have to be run, beside ReLU's",
    )


def _about_functions(tested: Sequence[Experiment]) -> Iterator[Claim]:
    proof, test = "[proof](../mathematics.md#{})", "`tests/test_paper.py`"
    convex, affine = (_monotone_layers(tested, rows) for rows in (CONVEX, AFFINE))
    kept, lost = sum(map(sum, convex)), [run for run in affine if not all(run)]
    yield Claim(
        "Affine hulls lose monotonicity in at least one layer, in most runs",
        f"claimed in the results, of KerasNet on CIFAR-10. In {len(lost)} of {len(affine)} runs they do; of "
        f"{sum(map(len, affine)):,} layers, {sum(run.count(False) for run in lost):,} are not monotone",
        stated=UNTESTED if not affine else HOLDS if 2 * len(lost) > len(affine) else FAILS,
    )
    yield Claim(
        "The networks have as many parameters as the paper says",
        "given with the networks, from 431 thousand for LeNet-5 to 61 million for AlexNet; `tests/lab/networks` counts "
        "those of ours",
        stated=HOLDS,
    )
    yield Claim(
        "Convex hulls keep the monotonicity of their bases",
        f"{proof.format('slopes')}; {test}. So do {kept:,} of the {sum(map(len, convex)):,} layers of our runs",
        stated=PROVED,
    )
    yield Claim(
        "All monotone combinations lie in the convex cone",
        f"claimed in the methods; 2 identity - tanh rises and is not in it ({proof.format('slopes')}; {test})",
        stated=FAILS,
    )
    yield Claim(
        "A combination of such bases approximates the identity near the origin exactly if it is in the affine hull",
        f"{proof.format('near-the-origin')}, for linearly independent bases with slope one from both sides; {test}",
        stated=PROVED,
    )
    yield Claim(
        "Combinations are differentiable wherever their bases are",
        f"{proof.format('slopes')}: slopes add up",
        stated=PROVED,
    )
    yield Claim(
        "The convex hull is where the convex cone and the affine hull meet",
        f"by [definition](../mathematics.md#hulls); {test}",
        stated=PROVED,
    )
    yield Claim(
        "The convex hull is the affine hull, restricted to a compact set",
        "by [definition](../mathematics.md#hulls): a simplex in a hyperplane. Whether the restriction makes networks "
        "generalize better is neither claimed nor tested",
        stated=PROVED,
    )
    yield Claim(
        "convex(identity,relu) is leaky ReLU with a learned slope",
        f"{proof.format('slopes')}; {test}",
        stated=PROVED,
    )
    yield Claim(
        "A layer with a hull is a pipeline of two stages",
        f"{proof.format('a-layer-in-two-stages')}; {test}",
        stated=PROVED,
    )


def _compare(experiments: Sequence[Experiment], *questions: Question, at_least: bool = False) -> tuple[Answer, ...]:
    """Compare one activation with each of others, or the best of several with the best of others."""
    found = []
    for text, rows, others in questions:
        for experiment in experiments:
            reached, published = experiment.accuracies, published_gain(experiment.published, rows, others)
            each = [compare(reached, rows, others)] if len(rows) > 1 else exceed_each(reached, rows[0], others)
            if known := tuple(filter(None, each)):
                found.append(Difference(experiment.name, text, known, published, at_least))
    return tuple(found)


def _affine_over_convex(experiments: Sequence[Experiment]) -> Iterator[Difference]:
    """Compare affine with convex hulls, averaged over the sets of bases; the seed is the unit."""
    for experiment in experiments:
        sides, published = {"affine": AFFINE, "convex": CONVEX}, experiment.published
        means = {kind: mean_scores(experiment.accuracies, rows) for kind, rows in sides.items()}
        if found := compare(means, ["affine"], ["convex"]):
            pairs = (pair for pair in zip(AFFINE, CONVEX, strict=True) if published.keys() >= {*pair})
            gaps = [published[affine] - published[convex] for affine, convex in pairs]
            yield Difference(experiment.name, "affine over convex", (found,), mean(gaps) if gaps else None)


def mean_scores(scores: Scores, rows: Sequence[str]) -> Mapping[int, float]:
    """Return the mean over activations by seed, of the seeds that all have."""
    own = [scores.get(row, {}) for row in rows]
    return {seed: mean(reached[seed] for reached in own) for seed in sorted(set.intersection(*map(set, own)))}


def _count_bold(experiments: Sequence[Experiment]) -> tuple[int, int]:
    """Return how many hulls exceed their bases in the paper's table, and how many there are, in these columns."""
    gains = [
        gain
        for experiment in experiments
        for row in HULLS
        if (gain := published_gain(experiment.published, [row], _bases(row))) is not None
    ]
    return sum(gain > 0 for gain in gains), len(gains)


def _bases(row: str) -> list[str]:
    return [item.name for item in ActivationSpec.parse(row).bases]


def published_gain(published: Mapping[str, float], rows: Sequence[str], others: Sequence[str]) -> float | None:
    """Return by how much the best figure of some activations exceeds that of others; None where one is missing."""
    ours, theirs = ([published[row] for row in names if row in published] for names in (rows, others))
    return max(ours) - max(theirs) if ours and theirs else None


def _gains(experiments: Sequence[Experiment]) -> tuple[Answer, ...]:
    """Compare the paper's gain of its best hull with the same figure from each of our seeds: one run per activation."""
    question, rows, others = BEST
    found = []
    for experiment in experiments:
        reached, published = experiment.accuracies, published_gain(experiment.published, rows, others)
        sides = [[reached[name] for name in names if name in reached] for names in (rows, others)]
        if published is not None and all(sides):
            seeds = sorted(set.intersection(*(set(run) for side in sides for run in side)))
            values = tuple(max(run[s] for run in sides[0]) - max(run[s] for run in sides[1]) for s in seeds)
            if values:
                found.append(Prediction(experiment.name, question, values, published))
    return tuple(found)


def _monotone_layers(experiments: Sequence[Experiment], rows: Sequence[str]) -> list[list[bool]]:
    """Return whether the function of each layer is monotone, for each run of some activations.

    Layers that diverged are no functions; those of bases without a formula, of which this is unknown, are left out.
    """
    found = []
    for experiment in experiments:
        for record in (record for row in rows for record in experiment.runs.get(row, [])):
            layers = known_layers(record, experiment.read_epoch(record))
            answers = [_is_monotone(tuple(layer), tuple(record.bases)) for layer in layers]
            found.append([answer for answer in answers if answer is not None])
    return [answers for answers in found if answers]


@cache
def _is_monotone(coefficients: tuple[float, ...], bases: tuple[str, ...]) -> bool | None:
    answer = is_monotone(coefficients, bases)
    assert not isinstance(answer, list)  # noqa: S101  (there is one row)
    return answer


def known_layers(record: Record, epoch: int) -> list[list[float]]:
    """Return the coefficients of each layer after an epoch, without layers that diverged."""
    layers = [[c for c in layer if c is not None] for layer in record.coefficients[epoch]] if record.bases else []
    return [layer for layer in layers if len(layer) == len(record.bases)]
