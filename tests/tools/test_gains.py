"""Test the table of gains against its definition."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean, stdev

import pytest
from pages.columns import gains_table

from hullo.lab.analysis.experiments import experiments
from hullo.lab.analysis.power import seeds_needed
from hullo.lab.analysis.statistics import t_quantile
from made_records import make_records

FIXED = {"relu": [80.0, 81.0, 82.0], "tanh": [82.0, 80.5, 80.0]}
HULLS = {"affine(identity,relu)": [85.0, 86.0, 84.0], "convex(identity,relu)": [84.0, 84.5, 86.0]}
RIVALS = {"prelu": [84.0, 84.0, 83.0]}


def cells(text: str) -> list[list[str]]:
    plain = text.replace("\N{NO-BREAK SPACE}", " ").replace("<br>", " ")
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in plain.splitlines() if line.startswith("| ker")]


def test_line_matches_a_manual_computation() -> None:
    ((network, data, other, hull, gain, over_fixed, runs),) = cells(
        gains_table(experiments(make_records(FIXED | HULLS | RIVALS)))
    )
    assert (network, data, runs) == ("kerasnet", "cifar10", "1 epoch, 3 seeds, last epoch")
    assert other.startswith("prelu 83.7 ± ")
    assert hull.startswith("affine(identity,relu) 85.0 ± ")
    differences = [86.0 - 84.0, 84.0 - 83.0]  # the first seed chooses affine(identity,relu) and prelu
    half = t_quantile(1) * stdev(differences) * math.sqrt(1 / 2)
    assert gain.startswith(f"{mean(differences):+.1f} ± {half:.1f} undecided")
    assert over_fixed.startswith(f"over tanh {mean([86.0 - 80.5, 84.0 - 80.0]):+.1f} ± ")  # of the fixed ones


def test_an_undecided_gain_names_the_seeds_that_would_decide_it() -> None:
    ((*_, gain, _, _),) = cells(
        gains_table(experiments(make_records({"relu": [80.0] * 5, "affine(identity,relu)": [81, 79, 82, 80, 79.5]})))
    )
    assert gain.endswith(f" undecided: {seeds_needed(0.3, stdev([1, -1, 2, 0, -0.5]))} seeds")
    ((*_, gain, _, _),) = cells(
        gains_table(experiments(make_records({"relu": [80.0] * 3, "affine(identity,relu)": [83, 83.1, 83.2]})))
    )
    assert gain == "+3.1 ± 0.2"


def test_brief_table_ends_with_the_gain() -> None:
    runs = experiments(make_records(FIXED | HULLS | RIVALS))
    assert cells(gains_table(runs, brief=True)) == [line[:5] for line in cells(gains_table(runs))]


def test_partial_data_set_is_named_by_its_number_of_images() -> None:
    runs = [replace(record, images=[9025, 3929]) for record in make_records(FIXED | HULLS)]
    ((_, data, *_),) = cells(gains_table(experiments(runs)))
    assert data == "cifar10, 9,025 images"


def test_missing_activations_have_an_empty_cell() -> None:
    ((*_, gain, over_fixed, _),) = cells(gains_table(experiments(make_records(RIVALS | HULLS))))
    assert gain
    assert over_fixed == ""


def test_a_hull_that_fresh_seeds_confirm_is_named() -> None:
    """Where a chosen pair has fresh seeds, the gain over the fixed activation may be that of another hull."""
    runs = FIXED | RIVALS | {"affine(identity,relu)": [95.0, 70.0, 70.0]}
    runs |= {"convex(identity,relu)": [90.0] * 3 + [86.0, 86.5], "tanh": [82.0, 83.0, 83.0, 80.0, 80.1]}
    ((*_, hull, _, over_fixed, _),) = cells(gains_table(experiments(make_records(runs))))
    assert hull.startswith("affine(identity,relu)")
    assert over_fixed.startswith("convex(identity,relu) over tanh +6.2 ± ")


@pytest.mark.parametrize("reached", [FIXED, HULLS, RIVALS, {}])
def test_without_both_sides_there_is_no_table(reached: dict[str, list[float]]) -> None:
    assert gains_table(experiments(make_records(reached))) == ""
