"""The first screen's sentence, and the names of experiments, settings and layers, follow from the records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_records import make_records
from torch import nn

from hullo.lab import networks
from hullo.lab.analysis.names import layer_names, titles
from hullo.lab.analysis.report import gather
from hullo.lab.analysis.statistics import Interval
from hullo.lab.spec.paper import COLUMNS, Column
from hullo.lab.spec.records import Record, Records

HULL = "affine(identity,relu)"


def runs(column: Column, reached: dict[str, list[float]]) -> list[Record]:
    made = make_records([column], [*reached], seeds=len(next(iter(reached.values()))), epochs=2)
    return [replace(r, test_accuracy=[50.0, reached[r.spec.activation][r.spec.seed]]) for r in made]


def found(folder: Path, *records: list[Record]) -> dict:
    Records(folder / "records.jsonl").add([record for some in records for record in some])
    return gather([folder])


def test_one_experiment_says_what_the_best_hull_gains_over_all_others(tmp_path: Path) -> None:
    document = found(tmp_path, runs(COLUMNS[3], {"relu": [70, 71, 72], "prelu": [79, 81, 80], HULL: [84, 87, 85.9]}))
    gain = Interval.of([87 - 81, 85.9 - 80])  # seed 0 chooses prelu
    assert document["columns"][0]["gain"] == pytest.approx([gain.mean, gain.half], rel=1e-4)
    assert document["columns"][0]["undecided"] == ""
    said = document["finding"]
    assert said.startswith(
        f"KerasNet on CIFAR-10: {HULL} gains {gain.spell()} points over prelu on seeds 1 and 2; seed 0"
    )


@pytest.mark.parametrize(
    ("reached", "said"),
    [
        ({"relu": [84, 85, 86.3], HULL: [80, 81, 82]}, "loses 4.10"),
        ({"relu": [84.1, 85.3, 86.7], HULL: [80.2, 81.4, 82.8]}, "differ by 3.90 points on each of seeds 0 to 2"),
        ({"relu": [80.1, 81.2], HULL: [80.1, 81.2]}, "are equal on each"),
        ({"relu": [80, 81, 82], HULL: [84, 70, 95]}, "undecided"),
        ({"relu": [80], HULL: [84]}, "one seed gives no interval"),
        ({"relu": [80, 81], "tanh": [82, 83]}, "nothing to compare"),
        ({HULL: [80]}, "nothing to compare"),
    ],
    ids=["worse", "alike", "equal", "undecided", "one seed", "no hull", "one run"],
)
def test_the_finding_claims_no_more_than_the_runs_show(reached: dict, said: str, tmp_path: Path) -> None:
    assert said in found(tmp_path, runs(COLUMNS[3], reached))["finding"]


def test_the_finding_names_what_is_compared(tmp_path: Path) -> None:
    made = runs(COLUMNS[3], {"relu": [70, 71, 72], HULL: [74, 75, 77], "convex(identity,relu)": [90, 0, 0]})
    few = [r for r in made if r.spec.activation != "convex(identity,relu)" or r.spec.seed == 0]
    said = found(tmp_path, few)["finding"]
    assert f"{HULL} and relu differ by 4.50" in said
    assert said.endswith(" Not compared, with too few seeds: convex(identity,relu).")


def test_a_hull_with_other_seeds_is_left_out_of_the_finding(tmp_path: Path) -> None:
    reached = {"relu": [70, 71, 72], HULL: [74, 75, 77], "convex(identity,relu)": [90, 91, 92]}
    made = [
        replace(r, spec=replace(r.spec, seed=r.spec.seed + 5)) if r.spec.activation.startswith("convex") else r
        for r in runs(COLUMNS[3], reached)
    ]
    alone, beside = (found(tmp_path / str(len(some)), some) for some in (made[:6], made))
    assert f"{HULL} gains 4.33 ± 1.43 points over relu" in alone["finding"]
    assert f"{HULL} and relu differ by 4.50" in beside["finding"]
    assert beside["finding"].endswith(" Not compared, with too few seeds: convex(identity,relu).")


def test_the_gain_without_a_choice_has_the_interval_of_the_table(tmp_path: Path) -> None:
    document = found(tmp_path, runs(COLUMNS[3], {"relu": [70, 71, 72], HULL: [74, 75, 77]}))
    (column,) = document["columns"]
    assert column["gain"] == next(row for row in column["rows"] if row["name"] == HULL)["difference"]["last"]


def test_what_diverged_is_neither_the_best_hull_nor_the_best_other_activation(tmp_path: Path) -> None:
    made = runs(COLUMNS[3], {"relu": [70, 71, 72], "tanh": [90, 90, 90], HULL: [74, 75, 77]})
    lost = [replace(r, ended="diverged in epoch 1") if r.spec.activation == "tanh" else r for r in made]
    assert "points over relu" in found(tmp_path / "some", lost)["finding"]
    all_lost = [replace(r, ended="diverged in epoch 1") for r in made]
    assert found(tmp_path / "all", all_lost)["finding"].endswith(": all runs diverged.")


def test_experiments_with_equal_differences_are_undecided(tmp_path: Path) -> None:
    alike = {"relu": [80.1, 81.4, 82.8], HULL: [80.2, 81.5, 82.9]}
    document = found(tmp_path, *(runs(column, alike) for column in COLUMNS[:2]))
    assert "in 0 of 2 experiments; 2 are undecided" in document["finding"]


def test_several_experiments_are_counted_and_the_decided_ones_named(tmp_path: Path) -> None:
    better, worse = {"relu": [80, 81, 82], HULL: [84, 85, 86.1]}, {"relu": [84, 85, 86.1], HULL: [80, 81, 82]}
    even = {"relu": [80, 81, 82], HULL: [84, 70, 95]}
    document = found(tmp_path, *(runs(c, r) for c, r in zip(COLUMNS[:3], (worse, even, better), strict=True)))
    assert "in 1 of 3 experiments: LeNet-5 on CIFAR-10 (by 4.03" in document["finding"]
    assert "loses in 1: LeNet-5 on Fashion-MNIST (by 4.03" in document["finding"]
    assert "1 is undecided" in document["finding"]


def with_setting(records: list[Record], val: float | None, **setting: Any) -> list[Record]:
    """Return records with another setting, and with validation accuracies if `val` is given."""
    return [
        replace(
            r,
            spec=replace(r.spec, **setting),
            **({} if val is None else {"val_accuracy": [val - 1, val], "val_loss": [1.0, 1.0]}),
        )
        for r in records
    ]


def test_each_activation_is_at_the_setting_that_is_best_on_validation_data(tmp_path: Path) -> None:
    slow = runs(COLUMNS[3], {"relu": [70, 71, 72, 73], HULL: [80, 80.1, 80.5, 80.6]})
    fast = runs(COLUMNS[3], {"relu": [95, 78, 79, 80], HULL: [95, 99, 99, 99]})
    found_by = {}
    for name, relu_val, hull_val in (("relu", 90.0, 60.0), ("both", 90.0, 90.0), ("none", 60.0, 60.0)):
        settings = {"val_size": 100, "lr": 0.001}
        made = [
            *with_setting(slow, 70.0, val_size=100, lr=0.01),
            *with_setting([r for r in fast if r.spec.activation == "relu"], relu_val, **settings),
            *with_setting([r for r in fast if r.spec.activation != "relu"], hull_val, **settings),
        ]
        found_by[name] = found(tmp_path / name, made)["finding"]
    assert f"{HULL} (optimizer rmsprop, lr 0.01) and relu (optimizer rmsprop, lr 0.001) differ by" in found_by["relu"]
    assert f"{HULL} gains 20.00" in found_by["both"]
    assert "Setting: optimizer rmsprop, lr 0.001." in found_by["both"]
    assert f"{HULL} gains 8.40" in found_by["none"]
    assert "on seeds 1 to 3; seed 0 chose" in found_by["none"]
    assert "Setting: optimizer rmsprop, lr 0.01." in found_by["none"]


def test_seeds_that_confirm_choose_no_setting(tmp_path: Path) -> None:
    reached = runs(COLUMNS[3], {"relu": [70, 71, 72, 73], HULL: [80, 80.1, 80.5, 80.6]})
    slow = with_setting(reached, 70.0, val_size=100, lr=0.01)
    fast = [  # worse on the seed that chooses, and better on all others
        replace(record, val_accuracy=[60.0 if record.spec.seed == 0 else 99.0] * 2)
        for record in with_setting(reached, 99.0, val_size=100, lr=0.001)
    ]
    assert found(tmp_path, slow, fast)["finding"].endswith("Setting: optimizer rmsprop, lr 0.01.")


def test_a_setting_without_seeds_to_confirm_on_is_not_chosen(tmp_path: Path) -> None:
    main = with_setting(runs(COLUMNS[3], {"relu": [70, 71, 72], HULL: [74, 75, 77]}), 70.0, val_size=100, lr=0.01)
    tried = with_setting(runs(COLUMNS[3], {"relu": [90]}), 90.0, val_size=100, lr=0.1)
    said = found(tmp_path, main, tried)["finding"]
    assert f"{HULL} and relu differ by 4.50" in said
    assert said.endswith("Setting: optimizer rmsprop, lr 0.01.")


def test_runs_of_another_length_or_with_other_data_are_no_settings_to_choose_from(tmp_path: Path) -> None:
    main = with_setting(runs(COLUMNS[3], {"relu": [70, 71, 72], HULL: [74, 75, 77]}), 70.0, val_size=100)
    better = runs(COLUMNS[3], {"relu": [90, 91, 92]})
    other = [*with_setting(better, 90.0, val_size=200), *with_setting(better, None, lr=0.1)]
    assert f"{HULL} gains 4.33 ± 1.43 points over relu" in found(tmp_path, main, other)["finding"]


def test_runs_that_are_read_otherwise_are_no_settings_to_choose_from(tmp_path: Path) -> None:
    def logged(reached: dict, settings: str, val_accuracy: list[float]) -> list[Record]:
        spec = {"network": "net", "data": "table", "settings": settings}
        made = runs(COLUMNS[3], reached)
        return [replace(r, spec=replace(r.spec, **spec), val_accuracy=val_accuracy) for r in made]

    main = logged({"relu": [70, 71, 72], HULL: [74, 75, 77]}, "lr=0.1", [70.0, 71.0])
    last = logged({"relu": [90, 91, 92]}, "lr=0.2", [])
    assert f"{HULL} gains 4.33 ± 1.43 points over relu" in found(tmp_path, main, last)["finding"]


def test_a_smaller_error_is_a_gain(tmp_path: Path) -> None:
    made = [
        replace(
            record,
            spec=replace(record.spec, network="net", data="table", settings="lr=0.1"),
            metric="rmse",
            lower_is_better=True,
            test_accuracy=[],
            test_metric=[9.0, 100 - record.test_accuracy[-1]],
        )
        for record in runs(COLUMNS[3], {"relu": [70, 71, 72], "tanh": [60, 90, 90], HULL: [74, 75, 77]})
    ]
    said = found(tmp_path, made)["finding"]
    assert said.startswith(f"net on table: {HULL} and relu differ by 4.5 ± 6.4 on")  # seed 0 chooses relu
    assert said.endswith("Setting: lr 0.1.")


def test_several_experiments_name_their_settings(tmp_path: Path) -> None:
    better = {"relu": [80, 81, 82], HULL: [84, 85, 86.1]}
    first, second = (runs(column, better) for column in COLUMNS[:2])
    assert found(tmp_path / "same", first, second)["finding"].endswith(" Setting: optimizer rmsprop, lr 0.0001.")
    said = found(tmp_path / "apart", with_setting(first, None, lr=0.1), second)["finding"]
    assert f"{HULL} against relu, optimizer rmsprop, lr 0.1)" in said
    assert f"{HULL} against relu, optimizer rmsprop, lr 0.0001)" in said


def test_what_is_clear_alone_may_be_undecided_among_several(tmp_path: Path) -> None:
    near = {"relu": [80, 80, 80, 80], "tanh": [70, 70, 70, 70], HULL: [81.0, 81.1, 80.8, 80.5]}
    alone = found(tmp_path / "one", runs(COLUMNS[0], near))
    assert f"{HULL} gains 0.80" in alone["finding"]
    several = found(tmp_path / "many", *(runs(column, near) for column in COLUMNS[:3]))
    assert "in 0 of 3 experiments; 3 are undecided" in several["finding"]


def test_the_experiment_with_most_seeds_and_runs_is_the_main_one_and_studies_say_what_differs(tmp_path: Path) -> None:
    main = runs(COLUMNS[3], {"relu": [80, 81, 82], HULL: [84, 85, 86]})
    other = [replace(r, spec=replace(r.spec, batch_size=128, coefficient_lr_scale=30.0)) for r in main[:3]]
    long = [replace(r, spec=replace(r.spec, epochs=9)) for r in make_records([COLUMNS[3]], ["relu"], 1, 9)]
    columns = found(tmp_path, main, other, long)["columns"]
    assert {tuple(column["settings"]): column["study"] for column in columns} == {
        (): False,
        ("batch size 128", "coefficient lr \N{MULTIPLICATION SIGN} 30"): True,
        ("9 epochs",): True,
    }
    assert {column["title"] for column in columns} == {"KerasNet on CIFAR-10"}


def test_whole_data_and_default_settings_represent_a_column(tmp_path: Path) -> None:
    few = {"relu": [70.0, 71.0, 72.0], HULL: [84.0, 87.0, 84.0]}
    more = few | {"tanh": [70.0, 71.0, 72.0]}
    part = [replace(record, images=[1200, 50]) for record in with_setting(runs(COLUMNS[0], more), None, lr=0.1)]
    usual = runs(COLUMNS[0], few)
    unusual = with_setting(usual, None, batch_size=128)
    columns = found(tmp_path, unusual, part, usual)["columns"]
    main = [set(column["settings"]) for column in columns if not column["study"]]
    assert main == [set()]
    assert [run["spec"]["batch_size"] for column in columns if not column["study"] for run in column["runs"]] == [
        32
    ] * 6
    assert [column["study"] for column in columns].count(True) == 2


def test_an_experiment_with_one_seed_to_confirm_on_is_not_counted(tmp_path: Path) -> None:
    clear = {"relu": [70, 71, 72, 71.5], "tanh": [60, 61, 62, 61.5], HULL: [84, 85, 87, 84]}
    one_left = {"relu": [70, 71], "tanh": [60, 61], HULL: [84, 87]}
    columns = [runs(COLUMNS[3], clear), runs(COLUMNS[0], clear), runs(COLUMNS[1], one_left)]
    assert "2 of 2 experiments" in found(tmp_path, *columns)["finding"]


def test_own_networks_of_the_same_name_stay_apart() -> None:
    old, new, other = (Column(f"net:{name}@{digit * 8}", "images@00000000") for name, digit in ("A1", "A2", "B1"))
    assert list(titles([old, other]).values()) == ["A on images", "B on images"]
    assert len({*titles([old, new, other]).values()}) == 3


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_layers_are_named_as_the_networks_have_them(name: str) -> None:
    network = networks.build(name, activation="relu", image_size=64)
    layers: list[nn.Module] = []
    expected = []
    for path, module in network.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and "shortcut" not in path:
            layers.append(module)
        if isinstance(module, nn.ReLU):
            before = layers[-1]
            kind, unit = ("linear", "units") if isinstance(before, nn.Linear) else ("conv", "channels")
            expected.append((kind, before.weight.shape[0], unit))
    said = [text.split() for text in layer_names(name, len(expected))]
    assert [
        (text[-4] if text[-4] in ("conv", "linear") else text[0], int(text[-2]), text[-1]) for text in said
    ] == expected
    assert layer_names(name, len(expected) + 1)[-1] == f"layer {len(expected) + 1}"


def test_a_part_of_a_data_set_represents_its_column_beside_whole_ones(tmp_path: Path) -> None:
    reached = {"relu": [70.0, 71.0, 72.0], HULL: [84.0, 87.0, 84.0]}
    part = [replace(record, images=[1200, 50]) for record in runs(COLUMNS[0], reached)]
    document = found(tmp_path, part, runs(COLUMNS[3], reached))
    assert [bool(column["study"]) for column in document["columns"]] == [False, False]
    assert "2 of 2 experiments" in document["finding"]
