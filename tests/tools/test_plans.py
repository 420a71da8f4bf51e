"""Test that planned runs are judged once all of them are there, on the fresh seeds alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from pages.plans import PLANS, Plan, is_equivalent, plans_part
from pages.verdicts import claims

from hullo.lab.analysis.experiments import Experiment, experiments
from hullo.lab.analysis.inference import choosing_seeds
from hullo.lab.analysis.statistics import Interval, p_value
from hullo.lab.spec.records import Record
from made_records import make_column, make_records

DIFFERENCE, EQUIVALENCE, _ = PLANS


def run(plan: Plan, gains: Sequence[float]) -> list[Record]:
    """Return the runs of a column, with those of the pair on so many fresh seeds."""
    draw = random.Random(0).gauss
    old = [draw(99.0, 0.1) for _ in range(plan.seeds.start)]  # both are the best of their side
    level = [draw(80.0, 0.5) for _ in gains]
    fresh = {plan.row: [one + gain for one, gain in zip(level, gains, strict=True)], plan.other: level}
    others = make_column(str(plan.column), {plan.row: [90.0] * 5, plan.other: [70.0] * 5})
    kept = [r for r in others if r.spec.activation not in fresh]
    return kept + make_records({row: old + fresh[row] for row in fresh}, column=str(plan.column))


def judge(plan: Plan, gains: Sequence[float]) -> tuple[str, Experiment]:
    (experiment,) = experiments(run(plan, gains))
    return plan.judge(experiment), experiment


def test_fresh_runs_confirm_what_the_others_chose() -> None:
    gains = [0.4 + 0.1 * (-1) ** i for i in range(20)]
    said, experiment = judge(DIFFERENCE, gains)
    assert said == f"{Interval.of(gains).spell('+.2f')}, p = {p_value(gains):.2g}: the hull gains"
    names = (
        [row for row in experiment.accuracies if "(" in row],
        [row for row in experiment.accuracies if "(" not in row],
    )
    assert choosing_seeds(experiment.accuracies, *names) == (0, 1, 2, 3, 4)
    (best,) = (c for c in claims([experiment]) if "best activation is a hull" in c.statement)
    assert best.verdict == "holds"
    assert said in plans_part([experiment])


def test_nothing_is_judged_before_all_runs_are_there() -> None:
    assert judge(DIFFERENCE, [5.0, 5.1, 5.2])[0] == "3 of 20 runs of each"
    assert "not run" in plans_part([])


@pytest.mark.parametrize(("gain", "verdict"), [(0.1, ": equivalent"), (0.35, "not shown to be equivalent")])
def test_equivalence_is_tested_within_the_margin(gain: float, verdict: str) -> None:
    assert judge(EQUIVALENCE, [gain + 0.1 * (-1) ** i for i in range(20)])[0].endswith(verdict)


def test_error_rate_of_equivalence_at_the_margin() -> None:
    draw, trials = random.Random(7).gauss, 2000
    found = sum(is_equivalent(Interval.of(draw(0.3, 0.3) for _ in range(20)), 0.3) for _ in range(trials))
    assert 0.035 <= found / trials <= 0.065


def test_the_pairs_are_those_with_the_best_means_and_the_commands_name_every_run() -> None:
    for plan in PLANS:
        assert f"--seeds {plan.seeds.stop} " in plan.command
        assert f'"{plan.row}"' in plan.command
