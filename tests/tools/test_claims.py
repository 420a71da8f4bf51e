"""Test the pages of claims: every claim and its verdict are shown, under every reading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from pages.answers import FAILS, HOLDS, OPEN
from pages.claims import (
    claims_tables,
    power_table,
    readings_table,
    slips_list,
    summary_list,
)
from pages.verdicts import claims

from hullo.lab.analysis.experiments import experiments
from hullo.lab.analysis.power import detectable_difference
from hullo.lab.analysis.readings import BEST, CHOSEN
from hullo.lab.analysis.statistics import Interval
from hullo.lab.analysis.tables.markdown import escape
from hullo.lab.spec import paper
from hullo.lab.spec.activation import ActivationSpec
from made_records import make_column, make_record

COLUMNS = [str(column) for column in paper.DATA_COLUMNS]


def test_the_papers_slips_are_those_of_its_table() -> None:
    text = slips_list(experiments(make_column("kerasnet/cifar10", {})))
    assert "gives 0.69 points on lenet5/fashion-mnist" in text
    assert "has 0.29 on lenet5/cifar10" in text
    assert "is 3.29, not the 3.01" in text
    layers = [[2.0, -1.0], [-1.0, 2.0], [0.5, 0.5]]  # 2x - tanh(x) rises, 2 tanh(x) - x does not
    text = slips_list(experiments([make_record("affine(identity,tanh)", [80.0], coefficients=layers)]))
    assert "Of the 2 activations with a negative coefficient that our affine hulls learned, 1 are monotone" in text


def test_every_undecided_claim_of_the_results_names_its_seeds() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "index.md").read_text()
    undecided = page.partition(f"**{OPEN.capitalize()}**")[2].partition("**")[0]
    lines = [line for line in undecided.splitlines() if line.startswith("- ")]
    assert lines
    assert all(re.search(r"; fresh seeds that would decide: (more than )?[\d,]+\)$", line) for line in lines)


def page(text: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(text)


RUNS = [run for name in COLUMNS for run in make_column(name, {"affine(relu,tanh)": [82.0, 82.5, 82.0, 82.5, 82.5]})]


def test_every_answer_is_in_the_rendered_page() -> None:
    result = experiments(RUNS)
    judged = claims(result, experiments(RUNS, reading="best"))
    rendered = page(claims_tables(result))
    answered = [claim for claim in judged if claim.answers]
    assert rendered.count("<h3>") == len(answered)
    sizes = [(len({a.question for a in c.answers}), len({a.experiment for a in c.answers})) for c in answered]
    cells = sum(questions * (1 + e) if questions > 1 else 3 * e for questions, e in sizes)
    assert rendered.count("<td") == cells + 3 * (len(judged) - len(answered))
    assert "<h3>The best activation is a hull, in every column: holds</h3>" in rendered
    gain = Interval.of([2.5, 2.0, 2.5, 2.5]).spell("+.2f")  # the first seed chooses
    cell = f"affine(relu,tanh) over identity<br>{gain}<br>paper +0.69, excluded</td>"
    assert cell in re.sub(' style="[^"]*"', "", rendered)
    assert "100 of the 100 layers of our runs" in rendered


def test_the_summary_has_a_line_per_claim_under_its_verdict() -> None:
    judged = claims(experiments(RUNS), experiments(RUNS, reading="best"))
    text = summary_list(experiments(RUNS))
    assert text.count("\n- ") == len(judged)
    for claim in judged:
        _, _, below = text.partition(f"**{claim.verdict.capitalize()}**")
        assert f"- {escape(claim.statement)}" in below.partition("**")[0]


def test_every_reading_judges_by_itself() -> None:
    """With held-out images that choose a bad epoch of every hull, hulls win by their best epoch alone."""
    runs = []
    for row in paper.ROWS:
        hull = ActivationSpec.parse(row).learns
        tested, held_out = ([70.0, 90.0], [60.0, 50.0]) if hull else ([80.0, 80.0], [60.0, 50.0])
        coefficients = [[*ActivationSpec.parse(row).initial_coefficients]]
        shared = {"held_out": held_out, "coefficients": coefficients}
        for seed in range(3):
            scatter = 0.01 * seed * hull
            runs.append(make_record(row, [value + scatter for value in tested], seed=seed, **shared))
    result = experiments(runs)
    assert [e.reading for e in result] == [CHOSEN]
    line = next(line for line in readings_table(result).splitlines() if "best activation is a hull" in line)
    verdicts = dict(zip(("last", "chosen", "best"), line.split(" | ")[1:], strict=True))
    assert verdicts["chosen"].startswith(FAILS)
    assert verdicts["last"].startswith(HOLDS)
    assert verdicts["best"].startswith(HOLDS)
    assert BEST.short in readings_table(result).splitlines()[0]


def test_power_is_pooled_over_what_is_compared_in_a_column() -> None:
    over = {row: [80.0, 82.0, 84.0, 82.0, 82.0] for row in paper.ROWS if ActivationSpec.parse(row).learns}
    line = power_table(experiments(make_column("kerasnet/cifar10", over))).splitlines()[-1].split(" | ")
    assert (line[0], line[2]) == ("| kerasnet/cifar10", "5")
    # hulls over fixed activations: the best, 8 over their bases, 1 over leaky_relu; other answers do not scatter
    squares = [1.0, *[2.0] * 9, 0.0, 0.0]
    degrees = [3, *[4] * 9, 3, 4]
    pooled = sum(s * d for s, d in zip(squares, degrees, strict=True)) / sum(degrees)
    assert float(line[1]) == pytest.approx(pooled**0.5, abs=0.006)
    assert float(line[3]) == pytest.approx(1.682 * float(line[1]), abs=0.02)
    assert float(line[4]) == pytest.approx(detectable_difference(float(line[1]), 10), abs=0.02)
