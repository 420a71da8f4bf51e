"""Verdicts follow from numbers alone, are corrected for their number, and one seed decides nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from pages.claims import render_claim
from pages.verdicts import Claim, claims

from hullo.lab.analysis.experiments import experiments
from hullo.lab.analysis.inference import Comparison
from hullo.lab.analysis.statistics import Interval, p_value
from hullo.lab.spec import paper
from hullo.lab.spec.records import Record
from made_records import make_column, make_record, make_records

COLUMNS = [str(column) for column in paper.DATA_COLUMNS]
SEEDS = 5


def claim(runs: Sequence[Record], words: str) -> Claim:
    (result,) = (claim for claim in claims(experiments(runs)) if words in claim.statement)
    return result


def compared(differences: Sequence[float]) -> Difference:
    return Difference("e", "q", (Comparison("a", "b", dict(enumerate(differences))),))


def near(level: float) -> list[float]:
    """Return the scores of five seeds around a level, as scores that do not scatter give no test."""
    return [level + shift for shift in (0.02, -0.01, 0.0, 0.01, -0.02)]


# --- verdicts


@pytest.mark.parametrize(
    ("reached", "verdict"),
    [
        ([85.0, 86.0, 85.5, 85.0, 85.0], HOLDS),
        ([80.0, 80.0, 83.0, 80.0, 80.0], OPEN),
        ([70.0, 71.0, 70.0, 71.0, 70.0], FAILS),
    ],
)
def test_the_best_hull_is_compared_with_the_best_fixed_activation(reached: list[float], verdict: str) -> None:
    """The first seed chooses affine(relu,tanh) and tanh, the others confirm."""
    tanh = [81.0, 82.0, 82.0, 81.0, 81.0]
    hulls = {row: [60.0 + i for i in range(len(reached))] for row in paper.ROWS[4:]}
    runs = make_column("kerasnet/cifar10", hulls | {"affine(relu,tanh)": reached, "tanh": tanh})
    result = claim(runs, "best activation is a hull")
    assert result.verdict == verdict
    (answer,) = result.answers
    assert isinstance(answer, Difference)
    assert (answer.strongest.row, answer.strongest.other) == ("affine(relu,tanh)", "tanh")
    assert answer.interval == Interval.of([one - other for one, other in zip(reached[1:], tanh[1:], strict=True)])
    assert answer.published == pytest.approx(87.45 - 82.86)  # the paper's best hull is another
    assert answer.by_means == (answer.interval.mean > 0)


def test_every_case_is_a_conjunction_and_most_cases_are_a_partial_one() -> None:
    clear, even = compared([1.0, 1.2, 0.8, 1.5, 0.4]), compared([0.5, -0.5, 0.25, -0.25])
    (p, _) = clear.p
    assert 0.05 / 20 < p < 0.05 / 3
    every = Claim("", "", (clear,) * 20)
    assert (every.verdict, every.verdicts, every.certain) == (HOLDS, [HOLDS] * 20, [False] * 20)
    assert Claim("", "", (clear, clear, clear, clear, even)).verdict == OPEN
    assert Claim("", "", (clear, clear, clear, even, even), of_most=True).verdict == HOLDS  # 3 p <= 0.05
    assert Claim("", "", (clear, clear, even, even, even), of_most=True).verdict == OPEN
    against = compared([-1.0, -1.2, -0.8, -1.5, -0.4])
    assert Claim("", "", (against, *[even] * 2)).verdict == FAILS  # one of three is enough, corrected for their number
    assert Claim("", "", (against, *[even] * 19)).verdict == OPEN


@given(st.lists(st.sampled_from([HOLDS, FAILS, OPEN]), max_size=7), st.booleans())
def test_a_claim_holds_if_enough_answers_do_whatever_the_undecided_are(verdicts: list[str], of_most: bool) -> None:
    sure = {HOLDS: compared([1.0, 1.001, 1.002]), FAILS: compared([-1.0, -1.001, -1.002]), OPEN: compared([1.0, -1.0])}

    def commit(undecided: str) -> str:
        return Claim("", "", tuple(sure[undecided if v == OPEN else v] for v in verdicts), of_most).verdict

    if not verdicts:
        assert commit(OPEN) == UNTESTED
    else:
        best, worst = commit(HOLDS), commit(FAILS)
        assert commit(OPEN) == (best if best == worst else OPEN)


def test_most_columns_are_more_than_half() -> None:
    def verdict(affine_best: int, convex_best: int) -> str:
        best = ["affine(identity,relu)"] * affine_best + ["convex(identity,relu)"] * convex_best
        runs = [run for name, row in zip(COLUMNS, best, strict=False) for run in make_column(name, {row: near(85.0)})]
        return claim(runs, "best affine hull beats").verdict

    assert [verdict(3, 2), verdict(2, 2), verdict(2, 3)] == [HOLDS, FAILS, FAILS]


def test_a_hull_is_compared_with_the_best_of_its_own_bases() -> None:
    over = {"identity": [81.0] * SEEDS, "tanh": near(90.0), "convex(identity,relu)": near(82.0)}
    result = claim(make_column("lenet5/cifar10", over), "best of their bases, in most")
    answers = {answer.question: answer for answer in result.answers}
    assert len(answers) == 8
    one = answers["convex(identity,relu)"]
    assert isinstance(one, Difference)
    assert [comparison.other for comparison in one.each] == ["identity", "relu"]  # the strongest first
    assert one.interval.mean == pytest.approx(1.0)
    assert one.published == pytest.approx(80.94 - 80.37)
    assert all(a.p[1] <= 0.05 for question, a in answers.items() if "tanh" in question)


def test_the_very_deep_network_is_resnet56() -> None:
    over = {"convex(identity,relu)": [82.0] * SEEDS}
    runs = make_column("lenet5/cifar10", over) + make_column("resnet56/cifar10", over)
    assert {answer.experiment for answer in claim(runs, "very deep").answers} == {"resnet56/cifar10"}


def test_affine_and_convex_hulls_of_the_same_bases_are_compared() -> None:
    """The mean over the four sets of bases is compared, seed by seed."""
    runs = make_column("lenet5/cifar10", {"affine(identity,tanh)": near(82.0), "affine(relu,tanh)": near(79.0)})
    result = claim(runs, "same bases")
    (answer,) = result.answers
    assert isinstance(answer, Difference)
    wanted = [(high + low - 160.0) / 4 for high, low in zip(near(82.0), near(79.0), strict=True)]
    assert [*answer.strongest.differences.values()] == pytest.approx(wanted)
    assert answer.published == pytest.approx((80.52 + 78.97 + 81.23 + 80.13 - 80.94 - 79.45 - 80.21 - 80.48) / 4)
    assert result.verdict == HOLDS


def test_at_least_as_good_includes_as_good() -> None:
    assert claim(make_column("lenet5/cifar10"), "at least as good as leaky_relu").verdict == HOLDS
    worse = make_column("lenet5/cifar10", {"leaky_relu": near(81.0)})
    assert claim(worse, "at least as good as leaky_relu").verdict == FAILS


def test_activations_that_are_not_in_the_paper_are_compared_where_they_were_run() -> None:
    assert claim(make_column("lenet5/cifar10"), "PReLU").verdict == UNTESTED
    runs = make_column("lenet5/cifar10", {"prelu": near(79.0)})
    assert claim(runs, "PReLU").verdict == HOLDS
    runs = make_column("lenet5/cifar10", {"prelu": near(79.0), "leaky_relu(0.3)": near(81.0)})
    assert claim(runs, "PReLU").verdicts == [FAILS, HOLDS]


# --- the paper's figures


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([4.0, 4.5, 5.0, 5.5, 4.0], AGREES),
        ([1.0, 7.0, 2.0, 9.0, 3.0], AGREES),  # wide: much would agree
        ([3.7, 4.3, 4.1, 4.5, 3.9], AGREES),  # outside of the interval of our mean, but it is one run
        ([6.4, 6.5, 6.4, 6.5, 6.6], FAILS),
        ([1.0, 1.1, 1.0, 1.1, 1.2], FAILS),
        ([4.59], OPEN),
    ],
)
def test_published_gains_are_compared_as_single_runs(gains: list[float], verdict: str) -> None:
    runs = make_column("kerasnet/cifar10", {"convex(relu,tanh)": [80.0 + gain for gain in gains]})
    result = claim(runs, "gains as much as in the paper, in every")
    assert result.verdict == verdict
    (answer,) = result.answers
    assert isinstance(answer, Prediction)
    assert answer.published == pytest.approx(4.59)
    if verdict != OPEN:
        assert answer.interval.covers(4.59) == (verdict == AGREES)


def test_published_gains_are_compared_under_the_papers_probable_reading_and_others_under_ours() -> None:
    ours, theirs = (
        experiments(make_column("kerasnet/cifar10", {"convex(relu,tanh)": [80.0 + gain for gain in gains]}))
        for gains in ([-3.0, -2.9, -3.1, -2.8, -3.2], [3.7, 4.3, 4.1, 4.5, 3.9])
    )
    judged = {claim.statement: claim.verdict for claim in claims(ours, theirs)}
    assert judged["The best hull gains as much as in the paper, in every column"] == AGREES
    assert judged["The best activation is a hull, in every column"] != HOLDS


def test_a_correction_does_not_turn_a_published_figure_into_one_that_agrees() -> None:
    words, (first, *others) = "gains as much as in the paper, in every", COLUMNS

    def shifted(name: str, shifts: Sequence[float]) -> list[Record]:
        (answer,) = claim(make_column(name), words).answers
        assert isinstance(answer, Prediction)
        return make_column(name, {"convex(relu,tanh)": [80.0 + answer.published + shift for shift in shifts]})

    near = shifted(first, [0.5, 0.6, 0.7, 0.8, 0.9])
    alone = claim(near, words)
    assert 0.01 < alone.answers[0].p[1] < 0.05
    assert alone.verdict == FAILS
    result = claim(near + [run for name in others for run in shifted(name, [-0.4, -0.2, 0.0, 0.2, 0.4])], words)
    verdicts = {answer.experiment: verdict for answer, verdict in zip(result.answers, result.verdicts, strict=True)}
    assert verdicts == {first: FAILS} | dict.fromkeys(others, AGREES)
    assert result.certain == [False] * len(COLUMNS)
    assert result.verdict == OPEN
    needed = result.answers[result.verdicts.index(FAILS)].seeds_needed(0.05 / len(COLUMNS))
    assert f"would decide: {needed}." in render_claim(result)


def test_a_gain_is_the_best_of_each_seed_as_in_a_paper_with_one() -> None:
    over = {"convex(relu,tanh)": [81.0, 80.0, 80.0], "affine(relu,tanh)": [80.0, 83.0, 80.0]}
    (answer,) = claim(make_column("lenet5/cifar10", over), "gains as much as in the paper, in every").answers
    assert isinstance(answer, Prediction)
    assert answer.values == (1.0, 3.0, 0.0)


def test_gains_are_the_papers_own_and_alexnet_is_not_tested_without_runs() -> None:
    runs = [run for name in COLUMNS for run in make_column(name)]
    answers = claim(runs, "gains as much as in the paper, in every").answers
    gains = {a.experiment: a.published for a in answers if isinstance(a, Prediction)}
    assert gains["lenet5/fashion-mnist"] == pytest.approx(0.69)
    assert gains["kerasnet/cifar10"] == pytest.approx(4.59) == max(gains.values())
    assert claim(runs, "AlexNet").verdict == UNTESTED
    alexnet = make_records({"relu": [57.0] * 3, "affine(relu,tanh)": [60.0, 60.5, 59.5]}, column="alexnet/ilsvrc2012")
    (answer,) = claim(runs + alexnet, "AlexNet").answers
    assert isinstance(answer, Prediction)
    assert answer.published == pytest.approx(paper.QUOTED_GAINS[paper.COLUMNS[5]])
    part = [replace(record, images=[9025, 3929]) for record in alexnet]
    assert claim(runs + part, "AlexNet").verdict == UNTESTED


# --- monotone functions, speed and divergence


def test_monotone_activations_are_counted_by_layer_and_run() -> None:
    layers = [[2.0, -1.0], [-1.0, 2.0], [0.5, 0.5]]
    runs = [make_record("affine(identity,tanh)", [80.0], seed=seed, coefficients=layers) for seed in range(2)]
    runs += [make_record("affine(identity,tanh)", [10.0], seed=2, coefficients=[[None, None], *layers[1:]])]
    runs += [make_record("convex(identity,tanh)", [80.0], coefficients=[[0.25, 0.75], [0.0, 1.0]])]
    assert "In 3 of 3 runs they do; of 8 layers, 3 are not monotone" in claim(runs, "lose monotonicity").said
    assert "2 of the 2 layers" in claim(runs, "keep the monotonicity").said
    assert claim(runs[-1:], "lose monotonicity").verdict == UNTESTED


@pytest.mark.parametrize(("kept", "verdict"), [(0, HOLDS), (1, HOLDS), (2, FAILS), (4, FAILS)])
def test_most_runs_lose_monotonicity_if_more_than_half_do_in_a_layer(kept: int, verdict: str) -> None:
    rises, falls = [2.0, -1.0], [-1.0, 2.0]
    runs = [
        make_record("affine(identity,tanh)", [80.0], seed=seed, coefficients=[rises, rises if seed < kept else falls])
        for seed in range(4)
    ]
    assert claim(runs, "lose monotonicity").verdict == verdict


def test_a_chosen_epochs_coefficients_count() -> None:
    record = make_record(
        "affine(identity,tanh)", [50.0, 60.0, 70.0], held_out=[1.0, 9.0, 2.0], coefficients=[[0.5, 0.5]]
    )
    falls = [[-1.0, 2.0]]
    for epoch, verdict in ((2, HOLDS), (3, FAILS)):
        path = [falls if i == epoch else [[0.5, 0.5]] for i in range(4)]
        (result,) = experiments([replace(record, coefficients=path)], reading="chosen")
        assert [c.verdict for c in claims([result]) if "lose monotonicity" in c.statement] == [verdict]


def test_one_activation_exceeds_several_if_it_exceeds_each() -> None:
    scores = {
        "relu": {0: 80.0, 1: 81.0, 2: 82.0},
        "tanh": {0: 70.0, 1: 71.5, 2: 72.0, 3: 99.0},
        "identity": {0: 79.0, 1: 80.5, 2: 80.5},
    }
    each = exceed_each(scores, "relu", ["tanh", "identity", "gelu"])
    assert [(comparison.other, comparison.seeds) for comparison in each] == [
        ("identity", (0, 1, 2)),
        ("tanh", (0, 1, 2)),
    ]
    above = Difference("e", "q", each)
    assert above.p == pytest.approx((p_value([1.0, 0.5, 1.5]), 1.0))  # the larger of two
    below = Difference("e", "q", exceed_each(scores, "tanh", ["relu", "identity"]))
    assert below.p == pytest.approx((1.0, 2 * p_value([10.0, 9.5, 10.0])))  # one of two is enough
    assert exceed_each(scores, "gelu", ["relu"]) == exceed_each(scores, "relu", ["gelu"]) == ()


def test_exceeding_several_equals_is_found_as_rarely_as_it_should_be() -> None:
    draw, trials, above, below = random.Random(4).gauss, 1500, 0, 0
    names = ["identity", "relu", "tanh"]
    for _ in range(trials):
        scores = {name: {seed: draw(80.0, 1.0) for seed in range(5)} for name in ["hull", *names]}
        holds, fails = Difference("e", "q", exceed_each(scores, "hull", names)).p
        above, below = above + (holds <= 0.05), below + (fails <= 0.05)
    most = 0.025 * trials + 3 * (0.025 * trials) ** 0.5
    assert above <= most
    assert 0 < below <= most


def test_every_claim_is_decided_by_records_or_says_why_not() -> None:
    listed = claims(experiments([run for name in COLUMNS for run in make_column(name)]))
    verdicts = {claim.verdict for claim in listed if not claim.answers}
    assert verdicts == {PROVED, HOLDS, FAILS, UNTESTED}
    careful = next(claim for claim in listed if "careful" in claim.statement)
    assert careful.verdict == UNTESTED


def test_held_out_images_alone_prove_nothing() -> None:
    runs = make_records({"relu": [80.0] * 3, "affine(identity,relu)": [85.0] * 3}, val_size=500)
    assert all(claim.answers == () for claim in claims(experiments(runs)))


# --- needed seeds


def test_needed_seeds_are_those_of_the_answer_that_decides() -> None:
    wide, wider = compared([2.0, -1.0, 1.0]), compared([3.0, -2.0, 1.0])
    against = compared([-2.0, 1.0, -1.0])
    sure = compared([1.0, 1.001, 1.002])
    every = Claim("", "", (sure, wide, wider))
    assert every.verdict == OPEN
    # each at 5 %, and each missed with a probability of 10 %, so that both are found with one of 80 %
    assert every.seeds_needed == max(answer.seeds_needed(power=0.9) or 0 for answer in (wide, wider))
    refuted = Claim("", "", (sure, wide, against))
    assert refuted.seeds_needed == against.seeds_needed(0.05 / 3)  # one that fails is enough
    most = Claim("", "", (sure, wide, wider), of_most=True)
    alpha = 0.05 / 2  # two of three
    assert most.seeds_needed == min(wide.seeds_needed(alpha) or 0, wider.seeds_needed(alpha) or 0)
    assert Claim("", "", (compared([1.0]),)).seeds_needed is None


@pytest.mark.parametrize("of_most", [False, True])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (compared([2.0, -1.0, 1.0]), "would decide: 44."),
        (compared([1.0, -1.0, 0.001]), "would decide: more than 1,000."),
        (compared([1.0]), "would decide: unknown."),
        (Prediction("e", "q", (1.0,), 1.0), "would decide: unknown."),
    ],
)
def test_an_undecided_claim_says_how_many_seeds_it_needs(answer: Answer, message: str, of_most: bool) -> None:
    claim = Claim("s", "said", (answer,), of_most)
    assert claim.verdict == OPEN
    assert message in render_claim(claim)
