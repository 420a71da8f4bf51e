"""What the paper claims of its table, answered from records: what holds, what does not, and by how much.

Manessi and Rozza, "Learning Combinations of Activation Functions", ICPR 2018. Most claims say that one activation
exceeds another. Such a comparison is the mean over seeds of the difference between runs of the same seed, with its
95 % interval: it *holds* if the interval is above what is claimed, *does not hold* if it is below, and is *undecided*
in between. No interval allows for the number of comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hullo.lab import paper
from hullo.lab.activations import Row
from hullo.lab.intervals import Interval
from hullo.lab.records import Record
from hullo.lab.table.experiments import Experiment
from hullo.lab.table.markdown import escape, grid
from hullo.properties import is_monotone

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"

FIXED = [row for row in paper.ROWS if not Row.parse(row).learns]
CONVEX, AFFINE = ([row for row in paper.ROWS if Row.parse(row).kind == kind] for kind in ("convex", "affine"))


@dataclass(frozen=True)
class Comparison:
    """Of several activations the best, against the best of several others, in one experiment.

    Args:
        experiment: its name.
        question: which activations are compared.
        row, over: the best of each by their means, which flatters both where there was a choice.
        difference: over the seeds that both have.
        published: the same in the paper's figures, where others may be the best.
        verdict: HOLDS, FAILS or OPEN.
        by_means: whether it would hold if the mean difference were certain, as the paper's single figures are read.
    """

    experiment: str
    question: str
    row: str
    over: str
    difference: Interval
    published: float | None
    verdict: str
    by_means: bool

    @property
    def figures(self) -> list[str]:
        """The numbers in words."""
        pair = f"{self.row} over {self.over}".removeprefix(self.question).strip()
        beside = [] if self.published is None else [f"paper {self.published:+.2f}"]
        return [pair] * bool(pair) + [self.difference.spell("+.2f"), *beside]


@dataclass(frozen=True)
class Share:
    """How many of the activations that a row's runs had learned, one a layer and seed, are monotone, and in how many of
    the runs all of them."""

    experiment: str
    question: str
    monotone: int
    total: int
    whole: int
    runs: int
    verdict: str

    @property
    def figures(self) -> list[str]:
        return [f"{self.monotone} of {self.total} monotone", f"all in {self.whole} of {self.runs} runs"]


Answer = Comparison | Share
Judge = Callable[[Interval, float | None], str]
"""The verdict on a difference, beside the paper's."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and what experiments say about it."""

    statement: str
    answers: tuple[Answer, ...]
    of_most: bool = False  # claimed of more than half of what is asked, or of all of it

    @property
    def counts(self) -> dict[str, int]:
        """How many answers there are of each verdict."""
        return {verdict: sum(answer.verdict == verdict for answer in self.answers) for verdict in (HOLDS, FAILS, OPEN)}

    @property
    def verdict(self) -> str:
        total, counts = len(self.answers), self.counts
        enough, too_many = (total // 2 + 1, math.ceil(total / 2)) if self.of_most else (total, 1)
        if not total:
            return OPEN
        return HOLDS if counts[HOLDS] >= enough else FAILS if counts[FAILS] >= too_many else OPEN


def claims(experiments: Sequence[Experiment]) -> list[Claim]:
    """The paper's claims, with what experiments on test pictures say about each."""
    tested = [experiment for experiment in experiments if not experiment.validates]

    def ask(*questions: tuple[str, Sequence[str], Sequence[str]], judge: Judge = _more) -> tuple[Answer, ...]:
        asked = (_compare(experiment, *question, judge) for question in questions for experiment in tested)
        return tuple(answer for answer in asked if answer)

    best = ("best hull over best fixed activation", CONVEX + AFFINE, FIXED)
    return [
        Claim("The best activation is a hull, in every column", ask(best)),
        Claim("The best hull gains as much over the best fixed activation as in the paper", ask(best, judge=_as_much)),
        Claim(
            "The best affine hull beats the best convex hull, in most columns",
            ask(("best affine over best convex hull", AFFINE, CONVEX)),
            of_most=True,
        ),
        Claim(
            "Affine hulls beat the convex hulls of the same bases, in most cases",
            ask(*((f"{one} over {other}", [one], [other]) for one, other in zip(AFFINE, CONVEX, strict=True))),
            of_most=True,
        ),
        Claim(
            "Hulls beat the best of their bases, in most cases",
            ask(*((row, [row], [item.name for item in Row.parse(row).bases]) for row in CONVEX + AFFINE)),
            of_most=True,
        ),
        Claim(
            "convex(identity,relu) is at least as good as leaky_relu, in every column",
            ask(("convex(identity,relu) over leaky_relu", ["convex(identity,relu)"], ["leaky_relu"]), judge=_at_least),
        ),
        Claim(
            "Convex hulls are monotone in every layer, in all cases",
            tuple(_shares(tested, CONVEX, lambda whole, runs: HOLDS if whole == runs else FAILS)),
        ),
        Claim(
            "Affine hulls lose monotonicity in at least one layer, in most cases",
            tuple(_shares(tested, AFFINE, lambda whole, runs: FAILS if whole == runs else OPEN if whole else HOLDS)),
            of_most=True,
        ),
    ]


def _more(difference: Interval, _: float | None) -> str:
    return HOLDS if difference.low > 0 else FAILS if difference.high <= 0 else OPEN


def _at_least(difference: Interval, _: float | None) -> str:
    return HOLDS if difference.low >= 0 else FAILS if difference.high < 0 else OPEN


def _as_much(difference: Interval, published: float | None) -> str:
    if published is None:
        return OPEN
    return HOLDS if difference.low >= published else FAILS if difference.high < published else OPEN


def _compare(
    experiment: Experiment, question: str, rows: Sequence[str], others: Sequence[str], judge: Judge
) -> Comparison | None:
    """The best of some rows over the best of others, of those that were run; None if that is none."""
    means = {row: cell.accuracy.mean for row, cell in experiment.cells.items()}
    row, other = (
        max((name for name in names if name in means), key=lambda name: means[name], default=None)
        for names in (rows, others)
    )
    difference = experiment.difference(row, other) if row and other else None
    if row is None or other is None or difference is None:
        return None
    known = {name: value for name in paper.ROWS if (value := experiment.published(name)) is not None}
    ours, theirs = ([known[name] for name in names if name in known] for names in (rows, others))
    published = max(ours) - max(theirs) if ours and theirs else None
    by_means = judge(replace(difference, half=0.0), published) == HOLDS
    verdict = judge(difference, published)
    return Comparison(experiment.name, question, row, other, difference, published, verdict, by_means)


def _shares(
    experiments: Iterable[Experiment], rows: Sequence[str], judge: Callable[[int, int], str]
) -> Iterator[Share]:
    for row in rows:
        for experiment in experiments:
            own = (record for record in experiment.records if record.spec.activation == row)
            if runs := [layers for record in own if (layers := _monotone(record, experiment.epoch))]:
                whole, monotone = sum(map(all, runs)), sum(map(sum, runs))
                counts = monotone, sum(map(len, runs)), whole, len(runs)
                yield Share(experiment.name, row, *counts, judge(whole, len(runs)))


def _monotone(record: Record, epoch: int) -> list[bool]:
    """Whether each layer's activation is; those that diverged are no functions."""
    layers = [[c for c in layer if c is not None] for layer in record.coefficients[epoch]]
    return [bool(is_monotone(layer, record.bases)) for layer in layers if len(layer) == len(record.bases)]


def render_claims(answered: Sequence[Claim]) -> str:
    """Claims as Markdown: the verdict, then a line a question and a column an experiment."""
    return "\n\n".join(map(_render, answered))


def _render(claim: Claim) -> str:
    names = list(dict.fromkeys(answer.experiment for answer in claim.answers))
    lines: dict[str, dict[str, Answer]] = {}
    for answer in claim.answers:
        lines.setdefault(answer.question, {})[answer.experiment] = answer
    body = ([escape(question), *(_cell(found.get(name)) for name in names)] for question, found in lines.items())
    holds, fails, undecided = claim.counts.values()
    table = grid(["", *map(escape, names)], body) if names else ""
    counted = f"Of {len(claim.answers)}: {holds} hold, {fails} do not, {undecided} undecided."
    if shares := [answer for answer in claim.answers if isinstance(answer, Share)]:
        monotone, total = sum(share.monotone for share in shares), sum(share.total for share in shares)
        counted += f" In all, {monotone} of {total} learned activations are monotone."
    else:
        by_means = sum(isinstance(answer, Comparison) and answer.by_means for answer in claim.answers)
        counted += f" By means alone {by_means} would hold."
    return f"### {escape(claim.statement)}: {claim.verdict}\n\n{counted}\n\n{table}"


def _cell(answer: Answer | None) -> str:
    if answer is None:
        return ""
    verdict = answer.verdict if answer.verdict == OPEN else f"**{answer.verdict}**"
    return "<br>".join([*map(escape, answer.figures), verdict])
