"""The document holds what records hold, in few characters, and says what is still missing."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import make_records
from safetensors.torch import save_file

from hullo.lab.analysis.readings import READINGS
from hullo.lab.analysis.report import gather
from hullo.lab.analysis.report.gather import MOST_CHANNELS, SCALE, encode
from hullo.lab.run.checkpoints import VERSION
from hullo.lab.spec.paper import COLUMNS
from hullo.lab.spec.paper import ROWS as PAPER_ROWS
from hullo.lab.spec.records import Record, Records
from hullo.lab.spec.run_spec import Spec, identify

ROWS = ("relu", "convex(identity,relu)", "affine(identity,relu,tanh)")
RUNS = make_records(COLUMNS[:1], ROWS, seeds=2, epochs=3)


def parametrization(folder: Path, records: list[Record]) -> Path:
    Records(folder / "records.jsonl").add(records)
    return folder


def begin(folder: Path, specs: list[Spec]) -> None:
    """Write what an unfinished population leaves in its directory, without weights."""
    (folder / "checkpoints").mkdir(parents=True)
    about = {"version": VERSION, "specs": json.dumps([str(spec) for spec in specs])}
    save_file({}, folder / "checkpoints" / f"{identify(specs)}.safetensors", about)


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=30))
def test_steps_add_up_to_the_numbers(values: list[float | None]) -> None:
    steps = encode(values)
    assert [step is None for step in steps] == [value is None for value in values]
    sums = accumulate(step for step in steps if step is not None)
    for total, value in zip(sums, (value for value in values if value is not None), strict=True):
        assert abs(total / SCALE - value) <= 0.5 / SCALE + 1e-9


def test_numbers_that_would_not_add_up_exactly_are_left_out() -> None:
    assert encode([0.25, 1e30, 0.5]) == [25000, None, 25000]


def test_cells_hold_the_tables_statistics(tmp_path: Path) -> None:
    (column,) = gather([parametrization(tmp_path, RUNS)])["columns"]
    assert [row["name"] for row in column["rows"]] == list(ROWS)
    relu, convex, _ = column["rows"]
    own = [record.accuracy for record in RUNS if record.spec.activation == ROWS[1]]
    base = [record.accuracy for record in RUNS if record.spec.activation == "relu"]
    assert (column["reading"], column["readings"]) == ("last", ["last", "best"])
    assert convex["accuracy"]["last"][0] == pytest.approx(sum(own) / 2, abs=1e-3)
    assert convex["difference"]["last"][0] == pytest.approx(sum(own) / 2 - sum(base) / 2, abs=1e-3)
    assert convex["difference"]["last"][1] == pytest.approx(
        12.7062 * abs((own[0] - base[0]) - (own[1] - base[1])) / 2, rel=1e-4
    )
    assert relu["difference"] == {"last": None, "best": None}


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_there_is_a_quantile_for_every_number_of_common_seeds(tmp_path: Path, seeds: int) -> None:
    document = gather([parametrization(tmp_path, make_records(COLUMNS[:1], ROWS, seeds, 1))])
    assert document["quantiles"] == pytest.approx([12.706205, 4.302653, 3.182446][: seeds - 1])


def test_cells_have_all_digits_since_they_are_rounded_when_they_are_shown(tmp_path: Path) -> None:
    reached = {0: 92.0652, 1: 92.0652, 2: 92.06521}
    made = [replace(r, test_accuracy=[reached[r.spec.seed]] * 3) for r in make_records(COLUMNS[:1], ["relu"], 3, 3)]
    (column,) = gather([parametrization(tmp_path, made)])["columns"]
    assert column["rows"][0]["accuracy"]["last"][0] == pytest.approx(sum(reached.values()) / 3, abs=1e-12)
    assert [run["accuracy"]["last"] for run in column["runs"]] == list(reached.values())


def test_the_headline_has_the_findings_of_comparisons_on_the_page_and_of_no_others(tmp_path: Path) -> None:
    parametrization(tmp_path / "runs", RUNS)
    alone = gather([tmp_path])["finding"]
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "comparison.json").write_text(json.dumps({"finding": f"gelu wins {name} records."}))
    assert gather([tmp_path])["finding"] == alone != ""
    own = {"network": "net", "data": "table", "settings": "lr=tuned"}
    compared = [replace(record, spec=replace(record.spec, **own)) for record in RUNS]
    parametrization(tmp_path / "with", compared)
    assert gather([tmp_path])["finding"] == f"{alone}\nnet on table: gelu wins with records."
    document = gather([tmp_path / "with"])
    assert document["finding"] == gather([tmp_path / "with" / "records.jsonl"])["finding"] == "gelu wins with records."
    assert document["columns"][0]["gain"] is None


def test_every_reading_has_its_figures_and_each_run_its_epoch(tmp_path: Path) -> None:
    curves = {"val_accuracy": [1.0, 3.0, 2.0], "val_loss": [1.0] * 3, "test_accuracy": [70.0, 60.0, 50.0]}
    record = replace(RUNS[0], spec=replace(RUNS[0].spec, val_size=500), **curves)
    document = gather([parametrization(tmp_path, [record])])
    (column,) = document["columns"]
    assert (column["reading"], column["readings"]) == ("chosen", ["last", "chosen", "best"])
    assert column["rows"][0]["accuracy"] == {"last": [50.0, None], "chosen": [60.0, None], "best": [70.0, None]}
    (run,) = column["runs"]
    assert (run["accuracy"], run["read"]) == (
        {"last": 50.0, "chosen": 60.0, "best": 70.0},
        {"last": 3, "chosen": 2, "best": 1},
    )
    assert document["readings"]["best"] == asdict(READINGS["best"])


def test_a_column_holds_all_that_the_paper_reports_of_it_also_of_what_was_not_run(tmp_path: Path) -> None:
    alexnet = replace(RUNS[0], spec=Spec("alexnet", "ilsvrc2012", "relu", epochs=3))
    lenet5, other = (column["paper"] for column in gather([parametrization(tmp_path, [*RUNS, alexnet])])["columns"])
    assert list(lenet5) == list(PAPER_ROWS)
    assert lenet5["relu"] == [91.06, None]
    assert lenet5["convex(identity,relu)"] == [91.87, 0.81]
    assert lenet5["affine(relu,tanh)"] == [93.02, 1.96]
    assert "identity" not in other
    assert other["affine(relu,tanh)"] == [60.04, 3.29]


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_from_the_epoch_on_in_which_a_run_diverged_nothing_is_known_but_how_it_ended(
    epoch: int, tmp_path: Path
) -> None:
    specs = [replace(r.spec, activation="affine(identity,relu,tanh,per=channel)", val_size=10) for r in RUNS[4:]]
    curves = {"val_loss": [1.0] * 3, "val_accuracy": [50.0] * 3, "channels": [[[0.2, 0.3, 0.5]]] * 3}
    record, other = (replace(run, spec=spec, **curves) for run, spec in zip(RUNS[4:], specs, strict=True))
    record = replace(record, ended=f"diverged in epoch {epoch}")
    (column,) = gather([parametrization(tmp_path, [record, other])])["columns"]
    lost, sound = column["runs"]
    assert (lost["lost"], sound["lost"]) == (epoch, None)
    assert (lost["accuracy"]["last"], lost["ended"], lost["channels"]) == (record.accuracy, record.ended, [])
    for name in ("test_accuracy", "test_loss", "train_loss", "val_accuracy"):
        assert [value is None for value in lost[name]] == [e >= epoch for e in (1, 2, 3)]
        assert None not in sound[name]
    for path in (path for layer in lost["coefficients"] for path in layer):
        assert [step is None for step in path] == [e >= epoch for e in (0, 1, 2, 3)]


def test_runs_hold_all_that_their_records_say(tmp_path: Path) -> None:
    document = gather([parametrization(tmp_path, RUNS)])
    runs = {run["id"]: run for run in document["columns"][0]["runs"]}
    assert runs.keys() == {record.spec.id for record in RUNS}
    for record in RUNS:
        run = runs[record.spec.id]
        assert run["test_accuracy"] == record.test_accuracy
        assert document["environments"][run["environment"]]["device"] == record.environment.device
        for name in ("ended", "members", "seconds", "bases"):
            assert run[name] == getattr(record, name)
        layers = [[[*accumulate(path)] for path in layer] for layer in run["coefficients"]]
        for epoch, point in enumerate(record.coefficients):
            for layer, numbers in enumerate(point):
                assert [path[epoch] / SCALE for path in layers[layer]] == pytest.approx(numbers, abs=1e-5)


def test_several_directories_make_one_document(tmp_path: Path) -> None:
    longer = [replace(record, spec=replace(record.spec, batch_size=64)) for record in RUNS]
    document = gather(
        [parametrization(tmp_path / "one", RUNS[:4]), parametrization(tmp_path / "two", RUNS[2:] + longer)]
    )
    names = ["lenet5/fashion-mnist batch_size=32", "lenet5/fashion-mnist batch_size=64"]
    assert [column["name"] for column in document["columns"]] == names
    assert [len(column["runs"]) for column in document["columns"]] == [len(RUNS), len(RUNS)]


def test_runs_under_way_are_counted_until_they_are_recorded(tmp_path: Path) -> None:
    begin(tmp_path, [record.spec for record in RUNS])
    document = gather([tmp_path])
    assert (document["columns"], document["waiting"]) == ([], [("LeNet-5 on Fashion-MNIST", 6)])
    assert gather([tmp_path / "records.jsonl"]) == document
    parametrization(tmp_path, RUNS[:4])
    document = gather([tmp_path])
    assert len(document["columns"][0]["runs"]) == 4
    assert document["waiting"] == [("LeNet-5 on Fashion-MNIST", 2)]
    assert gather([tmp_path / "records.jsonl"])["waiting"] == document["waiting"]


def test_a_checkpoint_that_cannot_be_read_hides_nothing_if_somebody_is_told(tmp_path: Path) -> None:
    parametrization(tmp_path, RUNS)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "abc.safetensors").write_bytes(b"nonsense")
    told: list[str] = []
    (column,) = gather([tmp_path], told.append)["columns"]
    assert len(column["runs"]) == len(RUNS)
    assert ["abc.safetensors" in line for line in told] == [True]
    with pytest.raises(ValueError, match=r"abc.safetensors"):
        gather([tmp_path])


def test_an_empty_report_says_that_nothing_was_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no records in"):
        gather([tmp_path])
    with pytest.raises(ValueError, match=r"nowhere does not exist"):
        gather([tmp_path / "nowhere"])


def test_of_many_channels_some_are_kept(tmp_path: Path) -> None:
    rows = [[i / 50, 1 - i / 50] for i in range(50)]
    spec = replace(RUNS[2].spec, activation="convex(identity,relu,per=channel)")
    record = replace(RUNS[2], spec=spec, channels=[rows, rows[:1], rows[:3]])
    (column,) = gather([parametrization(tmp_path, [record])])["columns"]
    kept = column["runs"][0]["channels"]
    assert [len(layer) for layer in kept] == [MOST_CHANNELS, 1, 3]
    assert kept[0][0] == rows[0]
    assert kept[0][-1] == pytest.approx(rows[46])
