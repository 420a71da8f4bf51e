"""Verdicts follow from numbers alone, and one seed decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_record, make_records
from markdown_it import MarkdownIt

from hullo.lab import paper
from hullo.lab.activations import Row
from hullo.lab.claims import FAILS, HOLDS, OPEN, Claim, Comparison, Share, claims, render_claims
from hullo.lab.intervals import Interval
from hullo.lab.records import Record
from hullo.lab.table.experiments import experiments

COLUMNS = [str(column) for column in paper.COLUMNS[:5]]


def claim(runs: Sequence[Record], words: str) -> Claim:
    (found,) = (claim for claim in claims(experiments(runs)) if words in claim.statement)
    return found


def column(name: str, over: dict[str, Sequence[float]] | None = None) -> list[Record]:
    """A column where three runs of every row reached 80, but for some; coefficients stay where they began."""
    rows = {row: [80.0] * 3 for row in paper.ROWS} | (over or {})
    return [
        record
        for row, reached in rows.items()
        for record in make_records({row: reached}, column=name, coefficients=[Row.parse(row).start.values()])
    ]


@pytest.mark.parametrize(
    ("reached", "verdict"),
    [
        ([85.0, 86.0, 85.5], HOLDS),
        ([80.0, 80.0, 83.0], OPEN),
        ([85.0], OPEN),  # one seed
    ],
)
def test_the_best_hull_is_compared_with_the_best_fixed_activation(reached: list[float], verdict: str) -> None:
    runs = column("kerasnet/cifar10", {"affine(relu,tanh)": reached, "tanh": [79.0, 81.0, 81.0]})
    found = claim(runs, "best activation is a hull")
    assert found.verdict == verdict
    (answer,) = found.answers
    assert isinstance(answer, Comparison)
    assert (answer.row, answer.over) == ("affine(relu,tanh)", "tanh")
    pairs = zip(reached, [79.0, 81.0, 81.0], strict=False)
    assert answer.difference == Interval.of(one - other for one, other in pairs)
    assert answer.published == pytest.approx(87.45 - 82.86)  # the paper's best hull is another
    assert answer.by_means == (answer.difference.mean > 0)


def test_a_fixed_activation_that_is_best_refutes_it() -> None:
    runs = column(COLUMNS[0], {"affine(relu,tanh)": [90.0] * 3}) + column(COLUMNS[1], {"tanh": [90.0] * 3})
    found = claim(runs, "best activation is a hull")
    assert [answer.verdict for answer in found.answers] == [HOLDS, FAILS]
    assert found.verdict == FAILS
    assert "By means alone 1 would hold." in render_claims([found])


@pytest.mark.parametrize(("gain", "verdict"), [(5.0, HOLDS), (4.0, FAILS)])
def test_gains_are_measured_against_the_papers(gain: float, verdict: str) -> None:
    runs = column("kerasnet/cifar10", {"convex(relu,tanh)": [80.0 + gain] * 3})
    assert claim(runs, "gains as much").verdict == verdict
    assert claim(runs, "best activation is a hull").verdict == HOLDS


def test_gains_are_the_papers_own() -> None:
    runs = [run for name in COLUMNS for run in column(name)]
    gains = {a.experiment: a.published for a in claim(runs, "gains as much").answers if isinstance(a, Comparison)}
    assert gains["lenet5/fashion-mnist"] == pytest.approx(0.69)
    assert gains["kerasnet/cifar10"] == pytest.approx(4.59) == max(gains.values())


def test_most_columns_are_more_than_half() -> None:
    def verdict(affine_best: int, convex_best: int) -> str:
        best = ["affine(identity,relu)"] * affine_best + ["convex(identity,relu)"] * convex_best
        runs = [run for name, row in zip(COLUMNS, best, strict=False) for run in column(name, {row: [85.0] * 3})]
        return claim(runs, "best affine hull beats").verdict

    assert [verdict(3, 2), verdict(2, 2), verdict(2, 3)] == [HOLDS, FAILS, FAILS]


@given(st.lists(st.sampled_from([HOLDS, FAILS, OPEN]), max_size=7), st.booleans())
def test_a_claim_holds_if_enough_answers_do_whatever_the_undecided_are(verdicts: list[str], of_most: bool) -> None:
    def settle(undecided: str) -> str:
        shares = [Share("e", str(i), 1, 1, 1, 1, undecided if v == OPEN else v) for i, v in enumerate(verdicts)]
        return Claim("", tuple(shares), of_most).verdict

    if not verdicts:
        assert settle(OPEN) == OPEN
    else:
        best, worst = settle(HOLDS), settle(FAILS)
        assert settle(OPEN) == (best if best == worst else OPEN)


def test_a_hull_is_compared_with_the_best_of_its_own_bases() -> None:
    runs = column("lenet5/cifar10", {"identity": [81.0] * 3, "tanh": [90.0] * 3, "convex(identity,relu)": [82.0] * 3})
    answers = {answer.question: answer for answer in claim(runs, "best of their bases").answers}
    assert len(answers) == 8
    one = answers["convex(identity,relu)"]
    assert isinstance(one, Comparison)
    assert (one.over, one.difference, one.verdict) == ("identity", Interval(1.0, 0.0, 3), HOLDS)
    assert one.published == pytest.approx(80.94 - 80.37)
    assert {answer.verdict for question, answer in answers.items() if "tanh" in question} == {FAILS}


def test_affine_and_convex_hulls_of_the_same_bases_are_compared() -> None:
    runs = column("lenet5/cifar10", {"affine(identity,tanh)": [82.0] * 3})
    answers = claim(runs, "same bases").answers
    assert [(a.row, a.over) for a in answers if isinstance(a, Comparison)] == [
        (row, row.replace("affine", "convex")) for row in paper.ROWS[-4:]
    ]
    assert [answer.verdict for answer in answers] == [FAILS, HOLDS, FAILS, FAILS]


def test_at_least_as_good_includes_as_good() -> None:
    assert claim(column("lenet5/cifar10"), "at least as good as leaky_relu").verdict == HOLDS
    worse = column("lenet5/cifar10", {"leaky_relu": [81.0] * 3})
    assert claim(worse, "at least as good as leaky_relu").verdict == FAILS


def test_monotone_activations_are_counted_by_layer_and_seed() -> None:
    layers = [[2.0, -1.0], [-1.0, 2.0], [0.5, 0.5]]  # 2x - tanh(x) rises, 2 tanh(x) - x does not
    runs = [make_record("affine(identity,tanh)", [80.0], seed=seed, coefficients=layers) for seed in range(2)]
    runs += [make_record("affine(identity,tanh)", [10.0], seed=2, coefficients=[[None, None], *layers[1:]])]
    runs += [make_record("convex(identity,tanh)", [80.0], coefficients=[[0.25, 0.75], [0.0, 1.0]])]
    assert claim(runs, "lose monotonicity").answers == (
        Share("kerasnet/cifar10", "affine(identity,tanh)", 5, 8, 0, 3, HOLDS),
    )
    assert claim(runs, "are monotone").answers == (
        Share("kerasnet/cifar10", "convex(identity,tanh)", 2, 2, 1, 1, HOLDS),
    )
    assert claim(runs[-1:], "lose monotonicity").verdict == OPEN


@pytest.mark.parametrize(("kept", "verdict"), [(0, HOLDS), (1, OPEN), (2, OPEN), (3, FAILS)])
def test_an_affine_hull_loses_monotonicity_if_it_does_in_every_run(kept: int, verdict: str) -> None:
    rises, falls = [2.0, -1.0], [-1.0, 2.0]
    runs = [
        make_record("affine(identity,tanh)", [80.0], seed=seed, coefficients=[rises, rises if seed < kept else falls])
        for seed in range(3)
    ]
    (share,) = claim(runs, "lose monotonicity").answers
    assert share.verdict == verdict
    assert share.figures[1] == f"all in {kept} of 3 runs"


def test_validation_proves_nothing() -> None:
    runs = make_records({"relu": [80.0] * 3, "affine(identity,relu)": [85.0] * 3}, val_size=500)
    assert all(claim.answers == () and claim.verdict == OPEN for claim in claims(experiments(runs)))


def test_every_answer_is_in_the_rendered_page() -> None:
    runs = [run for name in COLUMNS for run in column(name, {"affine(relu,tanh)": [81.0, 82.0, 83.0]})]
    found = claims(experiments(runs))
    page = MarkdownIt("commonmark").enable("table").render(render_claims(found))
    assert page.count("<h3>") == len(found)
    assert page.count("<td") == sum(len({a.question for a in c.answers}) * (1 + len(COLUMNS)) for c in found)
    assert "<h3>The best activation is a hull, in every column: undecided</h3>" in page
    assert "affine(relu,tanh) over identity<br>+2.00 ± 2.48<br>paper +0.69<br>undecided" in page
    assert "Of 5: 0 hold, 0 do not, 5 undecided. By means alone 5 would hold." in page
    assert "In all, 60 of 60 learned activations are monotone." in page
