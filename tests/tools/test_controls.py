"""Test the tables of controls: runs that differ from the table in one setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pages.controls import controls_part

from hullo.lab.analysis.experiments import experiments
from hullo.lab.analysis.statistics import Interval
from hullo.lab.spec.records import Record
from made_records import make_record

EPOCHS = 20


def runs(reached: dict[str, Sequence[float]], epochs: int = EPOCHS, **settings: Any) -> list[Record]:
    """Make runs that are best on held-out images in epoch 3 and reach ten points less in every other."""
    return [
        make_record(
            row,
            [value if epoch == 2 else value - 10.0 for epoch in range(epochs)],
            held_out=[90.0 if epoch == 2 else 50.0 for epoch in range(epochs)],
            seed=seed,
            **settings,
        )
        for row, values in reached.items()
        for seed, value in enumerate(values)
    ]


REACHED = {"relu": [79.0, 80.0, 81.0, 99.0], "tanh": [82.0, 83.0, 84.0, 99.0], "affine(identity,relu)": [85.0] * 4}
TABLE = runs(REACHED)
CONTROL = runs({"relu": [81.0, 82.0, 83.0], "affine(identity,relu)": [84.0, 85.0, 86.0]}, schedule="inverse:3e-5")


def lines(text: str) -> dict[str, list[str]]:
    """Return the figures of a table by activation."""
    cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|"))
    return {row: figures for row, *figures in cells}


def test_without_controls_the_section_is_empty() -> None:
    assert controls_part([]) == controls_part(experiments(TABLE)) == ""
    assert controls_part(experiments(TABLE + runs({"relu": [70.0]}, precision="bfloat16"))) == ""


def test_seeds_of_the_control_alone_count_only_for_activations_of_the_control_alone() -> None:
    more = runs({"relu": [81.0, 82.0, 83.0, 84.0, 99.0], "elu": [70.0] * 5}, schedule="inverse:3e-5")
    result = lines(controls_part(experiments(TABLE + more)).split("Chosen epoch.")[1].split("Last 10 epochs.")[0])
    assert result["relu"][0].startswith("82.50 ± ")
    assert (result["relu"][-1], result["elu"][-1]) == ("4", "5")


@pytest.mark.parametrize("longer", [0, 5])
def test_control_matches_a_manual_computation(longer: int) -> None:
    text = controls_part(experiments(runs(REACHED, EPOCHS + longer) + CONTROL))
    assert "### kerasnet/cifar10, schedule=inverse:3e-05 (default inverse:1e-06), 20 epochs\n" in text
    chosen, last10 = text.split("Chosen epoch.")[1].split("Last 10 epochs.")
    # tanh is in the table alone, and so is seed 3
    name = "kerasnet/cifar10, schedule=inverse:3e-05 (default inverse:1e-06), 20 epochs"
    reading, *gains = lines(text)[name]
    hull = "affine(identity,relu) over"
    in_table = Interval.of([85.0 - 83.0, 85.0 - 84.0, 85.0 - 99.0]).spell("+.2f")
    assert reading == "chosen epoch"
    assert gains == [f"{hull} relu<br>+3.00 ± 0.00", f"{hull} tanh<br>{in_table}"]
    for part, relu in ((chosen, 82.0), (last10, 72.0)):
        result = lines(part)
        assert result["relu"] == [f"{relu:.2f} ± 2.48", f"{relu - 2:.2f} ± 2.48", "+2.00 ± 0.00", "", "", "79.97", "3"]
        hull = [f"{relu + 3:.2f} ± 2.48", f"{relu + 3:.2f} ± 0.00", "+0.00 ± 2.48", "+3.00 ± 0.00", "+5.00 ± 2.48"]
        assert result["affine(identity,relu)"] == [*hull, "84.93", "3"]
        assert "tanh" not in result


def test_another_initialization_is_compared_with_the_same_network() -> None:
    table = runs(REACHED, column="resnet56/cifar10")
    he = runs({"relu": [81.0, 82.0, 83.0]}, column="resnet56_he/cifar10", weight_decay=2e-4)
    text = controls_part(experiments(TABLE + table + he))
    assert "### resnet56/cifar10, network=resnet56\\_he (default resnet56), weight\\_decay=0.0002 (default 0.0)" in text
    assert lines(text)["relu"][1:3] == ["70.00 ± 2.48", "+2.00 ± 0.00"]


def test_activations_and_seeds_missing_in_the_table_stand_alone() -> None:
    alone = [
        replace(record, spec=replace(record.spec, seed=7)) for record in runs({"tanh": [70.0]}, schedule="inverse:3e-5")
    ]
    result = lines(
        controls_part(experiments(TABLE + CONTROL[:3] + alone + runs({"gelu": [70.0]}, schedule="inverse:3e-5")))
    )
    assert result["gelu"] == ["60.00", "", "", "-11.00", "", "", "1"]
    assert result["tanh"] == ["60.00", "", "", "", "", "", "1"]
    result = lines(controls_part(experiments(TABLE + alone)))
    assert result["tanh"] == ["60.00", "", "", "", "", "", "1"]


def test_several_controls_of_an_experiment_are_distinguished() -> None:
    other = runs({"relu": [75.0] * 3}, schedule="inverse:3e-5", coefficient_lr_scale=30.0)
    text = controls_part(experiments(TABLE + CONTROL + other))
    _, first, second = text.split("### kerasnet/cifar10, ")
    both = "schedule=inverse:3e-05 (default inverse:1e-06), coefficient\\_lr\\_scale=30.0 (default 1.0), 20 epochs"
    assert sorted(part.splitlines()[0] for part in (first, second)) == sorted(
        ["schedule=inverse:3e-05 (default inverse:1e-06), 20 epochs", both]
    )


@pytest.mark.parametrize("table", [[], runs(REACHED, EPOCHS - 1), runs(REACHED, val_size=1000)])
def test_control_without_its_counterpart_stands_alone(table: list[Record]) -> None:
    result = lines(controls_part(experiments(table + CONTROL)))
    beside = lines(controls_part(experiments(TABLE + CONTROL)))
    for row in ("relu", "affine(identity,relu)"):
        assert (result[row][0], result[row][-1]) == (beside[row][0], beside[row][-1])
        assert result[row][1:3] == ["", ""]
