"""The table says what was reached, beside what the paper reports; nothing is averaged that is not alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hullo.lab.analysis.experiments import Experiment, experiments
from hullo.lab.analysis.sources import longest_of_columns, read_records
from hullo.lab.analysis.statistics import Interval
from hullo.lab.analysis.tables.csv import csv_table
from hullo.lab.analysis.tables.markdown import markdown_table
from hullo.lab.cli import app
from hullo.lab.spec import paper
from hullo.lab.spec.records import Records
from hullo.lab.spec.run_spec import Spec
from made_records import make_record, make_records

REACHED = {"relu": [79.0, 80.0, 81.0], "affine(identity,relu)": [84.5, 85.5, 86.5], "gelu": [84.0, 84.0, 87.0]}


def only(found: list[Experiment]) -> Experiment:
    (experiment,) = found
    return experiment


def test_a_cell_by_hand() -> None:
    cells = only(experiments(make_records(REACHED))).cells
    cell = cells["affine(identity,relu)"]
    assert cell.accuracy.mean == 85.5
    assert cell.accuracy.half == pytest.approx(0.95 * (2 / (1 - 0.95**2)) ** 0.5 / 3**0.5, rel=1e-12)
    assert cell.over_reference == Interval(5.5, 0.0, 3)  # on every seed the same, however far seeds are apart
    assert cell.published == 84.93
    assert cell.over_published == pytest.approx(0.57)
    assert (cell.best, cell.diverged) == (True, 0)
    assert cells["relu"].over_reference is None
    assert cells["gelu"].over_reference == Interval.of([5.0, 4.0, 6.0])
    assert (cells["gelu"].published, cells["gelu"].over_published) == (None, None)


def test_differences_are_taken_on_the_seeds_that_both_have() -> None:
    runs = [make_record("relu", [80.0], seed=seed) for seed in (1, 2)]
    runs += [make_record("tanh", [reached], seed=seed) for seed, reached in ((0, 10.0), (1, 81.0), (2, 83.0))]
    runs += [make_record("identity", [70.0], seed=7)]
    cells = only(experiments(runs)).cells
    assert cells["tanh"].over_reference == Interval.of([1.0, 3.0])
    assert cells["tanh"].accuracy.count == 3
    assert cells["identity"].over_reference is None


def test_rows_and_columns_are_in_the_papers_order_then_others_but_kerasnet_on_cifar10_is_first() -> None:
    rows = [*paper.ROWS, "gelu", "affine(identity,gelu)", "leaky_relu(0.2)"]
    columns = [*map(str, paper.COLUMNS[:5]), "resnet56/fashion-mnist", "kerasnet/fashion-mnist-sample"]
    runs = [make_record(row, [50.0], column=column) for column in columns for row in rows]
    random.Random(1).shuffle(runs)
    found = experiments(runs)
    first = "kerasnet/cifar10"
    assert [e.name for e in found] == [first, *(c for c in columns[:5] if c != first), *sorted(columns[5:])]
    for experiment in found:
        assert list(experiment.cells) == [*paper.ROWS, "gelu", "leaky_relu(0.2)", "affine(identity,gelu)"]


@given(st.randoms(use_true_random=False))
def test_the_order_of_records_changes_nothing(shuffler: random.Random) -> None:
    runs = make_records(REACHED) + make_records(REACHED, column="lenet5/cifar10") + make_records(REACHED, batch_size=64)
    shuffled = shuffler.sample(runs, len(runs))
    for form in (markdown_table, csv_table):
        assert form(experiments(shuffled)) == form(experiments(runs))


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_any_epoch_can_be_asked_for(epoch: int) -> None:
    runs = [make_record("relu", [10.0, 20.0, 30.0]), make_record("relu", [11.0, 22.0, 33.0], seed=1)]
    found = only(experiments(runs, epoch=epoch))
    assert found.cells["relu"].accuracy.mean == 10.5 * epoch
    assert found.time == ("3 epochs" if epoch == 3 else f"{epoch} of 3 epochs")
    assert only(experiments(runs)).cells == only(experiments(runs, epoch=3)).cells


@pytest.mark.parametrize("epoch", [-1, 0, 4])
def test_an_epoch_that_is_not_there_is_refused_with_what_there_is(epoch: int) -> None:
    runs = [make_record("relu", [10.0] * 3), make_record("relu", [10.0] * 2, column="lenet5/cifar10")]
    with pytest.raises(ValueError, match=rf"no epoch {epoch}: .*lenet5/cifar10 has epochs 1 to 2.*--experiment"):
        experiments(runs, epoch=epoch)


def test_what_ended_before_the_epoch_is_left_out() -> None:
    runs = [make_record("relu", [10.0] * 3), make_record("relu", [10.0] * 2, column="lenet5/cifar10")]
    (found,) = experiments(runs, epoch=3)
    assert (found.name, found.epoch) == ("kerasnet/cifar10", 3)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("batch_size", 64),
        ("lr", 1e-3),
        ("schedule", "constant"),
        ("coefficient_lr_scale", 10.0),
        ("precision", "bfloat16"),
        ("val_size", 500),
    ],
)
def test_runs_with_other_settings_are_never_averaged(setting: str, value: Any) -> None:
    runs = make_records({"relu": [70.0, 72.0]}) + make_records({"relu": [90.0, 92.0]}, **{setting: value})
    found = {experiment.name: experiment for experiment in experiments(runs)}
    assert {e.cells["relu"].accuracy.mean for e in found.values()} == {71.0, 91.0}
    name = f"kerasnet/cifar10 {setting}={value}"
    assert found[name].cells["relu"].accuracy.mean == 91.0
    assert only(experiments(runs, columns=[name])).name == name
    assert len(experiments(runs, columns=["kerasnet/cifar10"])) == 2


def test_names_have_hashes_where_there_are_several_versions() -> None:
    names = [f"net:Net@0000000{i}/images@12345678" for i in range(2)]
    runs = [make_record("relu", [80.0], column=name) for name in (*names, "net:Net@00000000/other@12345678")]
    assert {e.name for e in experiments(runs)} == {*names, "net:Net/other"}  # of which there is one version
    assert [e.name for e in experiments(runs, columns=["net:Net/images"])] == names
    assert only(experiments(runs, columns=names[1:])).name == names[1]


def test_runs_of_other_lengths_are_never_averaged() -> None:
    runs = [make_record("relu", [10.0, 20.0]), make_record("relu", [11.0, 21.0, 31.0], seed=1)]
    assert [e.name for e in experiments(runs)] == ["kerasnet/cifar10 epochs=3", "kerasnet/cifar10 epochs=2"]
    assert [e.cells["relu"].accuracy for e in experiments(runs, epoch=2)] == [Interval.of([21.0]), Interval.of([20.0])]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("lenet5/cifar10", "no records of 'lenet5/cifar10'; available: kerasnet/cifar10$"),
        ("kerasnet/cifar10 batch_size=64", "no records of 'kerasnet/cifar10 batch_size=64'"),
        ("kerasnet", "invalid column 'kerasnet'"),
        ("kerasnet/cifar10 color=red", "no records of 'kerasnet/cifar10 color=red'; available: kerasnet/cifar10$"),
        ("kerasnet/mnist", "no records of 'kerasnet/mnist'; available: kerasnet/cifar10$"),
    ],
)
def test_a_column_that_is_not_there_is_refused_with_what_there_is(columns: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        experiments(make_records(REACHED), columns=[columns])


def test_validation_is_never_shown_as_test_accuracy_nor_beside_the_papers() -> None:
    experiment = only(experiments(make_records(REACHED, val_size=5000)))
    assert experiment.name == "kerasnet/cifar10 val_size=5000"
    assert all(cell.published is None for cell in experiment.cells.values())
    table = markdown_table([experiment])
    assert "held-out images, last epoch" in table.replace("<br>", ", ")
    assert "test" not in table
    assert "84.9" not in table
    assert all(",held-out," in line and ",test," not in line for line in csv_table([experiment]).splitlines()[1:])


def test_test_accuracies_are_shown_where_held_out_images_were_evaluated_beside() -> None:
    held_out = make_records(REACHED, val_size=5000)
    both = [replace(record, test_accuracy=[record.accuracy - 1]) for record in held_out]
    experiment = only(experiments(both))
    assert experiment.name == "kerasnet/cifar10"
    assert experiment.published["relu"] == paper.accuracy("relu", paper.Column("kerasnet", "cifar10"))
    plain = only(experiments(make_records(REACHED)))
    for row, cell in plain.cells.items():
        assert experiment.cells[row].accuracy.mean == pytest.approx(cell.accuracy.mean - 1)
    assert "val_size=5000" in " ".join(experiment.remarks)
    assert only(experiments([held_out[0], *both[1:]])).images == "held-out"


def test_runs_that_diverged_count_as_they_ended_and_are_marked_from_then_on() -> None:
    runs = [make_record("relu", [50.0, 80.0]), make_record("relu", [50.0, 10.0], seed=1, ended="diverged in epoch 2")]
    cell = only(experiments(runs)).cells["relu"]
    assert (cell.accuracy.mean, cell.diverged) == (45.0, 1)
    assert only(experiments(runs, epoch=1)).cells["relu"].diverged == 0
    assert "1 diverged" in markdown_table(experiments(runs))
    assert "†" in markdown_table(experiments(runs))
    assert "†" not in markdown_table(experiments(runs, epoch=1))


def test_all_that_share_the_best_mean_are_marked() -> None:
    cells = only(experiments(make_records({"relu": [80.0], "tanh": [82.0], "identity": [82.0]}))).cells
    assert {row for row, cell in cells.items() if cell.best} == {"tanh", "identity"}


def test_activation_of_which_all_runs_diverged_is_not_the_best() -> None:
    runs = make_records({"relu": [90.0, 90.0], "tanh": [95.0, 50.0], "identity": [60.0, 60.0]})
    lost = [replace(r, ended="diverged in epoch 1") if r.spec.activation == "relu" else r for r in runs]
    some = [replace(r, ended="diverged in epoch 1") if r.spec.seed else r for r in runs]
    best = [{row for row, cell in only(experiments(r)).cells.items() if cell.best} for r in (runs, lost, some)]
    assert best == [{"relu"}, {"tanh"}, {"relu"}]
    alone = only(experiments(lost[:2])).cells["relu"]
    assert (alone.is_lost, alone.best) == (True, False)


def test_settings_that_differ_from_the_paper_are_stated() -> None:
    sample = only(experiments(make_records(REACHED, column="lenet5/fashion-mnist-sample", coefficient_lr_scale=10.0)))
    assert sample.remarks == [
        "A sample of fashion-mnist: not to be compared with the paper.",
        "Non-default settings: coefficient_lr_scale=10.0.",
    ]
    assert sample.cells["relu"].published is None
    assert only(experiments(make_records(REACHED))).remarks == []


def test_runs_on_a_part_of_a_data_set_say_so_and_are_not_set_beside_the_papers() -> None:
    runs = [replace(record, images=[1200, 50]) for record in make_records(REACHED, column="alexnet/ilsvrc2012")]
    experiment = only(experiments(runs))
    assert "Trained with 1,200 and evaluated on 50 images, not on all of the data set." in experiment.remarks
    assert all(cell.published is None for cell in experiment.cells.values())
    assert "1,200" in markdown_table([experiment])


def test_recorded_runs_are_not_set_beside_the_papers_whatever_their_name() -> None:
    (run,) = make_records({"relu": [80.0]})
    assert only(experiments([run])).published["relu"] == 79.97
    spec = Spec("kerasnet", "cifar10", "relu", epochs=1, settings="width=64")
    assert only(experiments([replace(run, spec=spec)])).published == {}


def test_runs_on_different_parts_of_a_data_set_are_refused() -> None:
    one, other = make_records({"relu": [80.0, 81.0]}, column="alexnet/ilsvrc2012")
    for images in ([1200, 50], [1200, 60]):
        with pytest.raises(ValueError, match=r"relu.* saw all images; .* saw 1200 \+ [56]0 images; choose one kind"):
            experiments([one, replace(other, images=images)])
    with pytest.raises(ValueError, match=r"saw 1200 \+ 50 images; .* saw 1200 \+ 60 images"):
        experiments([replace(one, images=[1200, 50]), replace(other, images=[1200, 60])])


def test_numbers_of_seeds_are_stated() -> None:
    def seeds(*counts: int) -> str:
        rows = dict(zip(("relu", "tanh", "identity"), ([50.0] * count for count in counts), strict=False))
        return only(experiments(make_records(rows))).seeds

    assert (seeds(1), seeds(5, 5), seeds(2, 5, 3)) == ("1 seed", "5 seeds", "2 to 5 seeds")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Records(tmp_path / "a" / "records.jsonl").add(make_records(REACHED))
    Records(tmp_path / "b" / "deep" / "records.jsonl").add(make_records(REACHED, column="lenet5/cifar10"))
    return tmp_path


def test_records_are_found_in_files_and_at_any_depth_of_directories_once_each(folder: Path) -> None:
    everything = make_records(REACHED) + make_records(REACHED, column="lenet5/cifar10")
    assert read_records([folder]) == everything
    assert read_records([folder / "a", folder / "b" / "deep" / "records.jsonl", folder]) == everything
    assert read_records([folder / "a"]) == make_records(REACHED)


def test_of_an_error_the_smallest_is_the_best() -> None:
    made = make_records({"relu": [3.0, 5.0], "tanh": [2.0, 4.0], "gelu": [9.0, 9.0]})
    lower = {"metric": "rmse", "lower_is_better": True, "test_accuracy": []}
    (one,) = experiments(replace(record, **lower, test_metric=record.test_accuracy) for record in made)
    assert [row for row, cell in one.cells.items() if cell.best] == ["tanh"]
    assert one.scores["tanh"] == {0: -2.0, 1: -4.0}
    assert one.cells["tanh"].over_reference == Interval.of([-1.0, -1.0])


def test_two_different_records_of_one_run_are_refused(folder: Path) -> None:
    Records(folder / "c" / "records.jsonl").add(make_records({"relu": [50.0, 51.0]}))
    with pytest.raises(
        ValueError, match=r"a/records.jsonl and .*c/records.jsonl have different .* kerasnet/cifar10 relu"
    ):
        read_records([folder])
    warnings: list[str] = []
    assert read_records([folder], warnings.append)[:3] == make_records(REACHED)[:3]
    assert ["the same runs, such as kerasnet/cifar10 relu" in line for line in warnings] == [True]


def test_a_run_on_two_machines_is_read_once(folder: Path) -> None:
    again = [replace(record, seconds=9.0, members=1) for record in make_records(REACHED)]
    Records(folder / "c" / "records.jsonl").add(again)
    assert read_records([folder / "a", folder / "c"]) == make_records(REACHED)


def test_runs_on_different_samples_are_not_compared() -> None:
    relu, tanh = (
        replace(record, spec=replace(record.spec, settings="lr=1"))
        for record in make_records({"relu": [50.0], "tanh": [60.0]})
    )
    only_val = replace(tanh, test_accuracy=[], val_accuracy=tanh.test_accuracy)
    with pytest.raises(ValueError, match=r"tanh.* has only val_accuracy, and .*relu.* only test_accuracy"):
        experiments([relu, only_val])


def test_runs_that_cannot_be_compared_are_left_out_with_a_warning(tmp_path: Path) -> None:
    sound = make_records(REACHED, column="lenet5/cifar10")
    one, other = make_records({"relu": [80.0, 81.0]}, column="alexnet/ilsvrc2012")
    Records(tmp_path / "runs" / "records.jsonl").add([*sound, one, replace(other, images=[1200, 50])])
    said: list[str] = []
    runs = read_records([tmp_path])
    assert [e.name for e in experiments(runs, warn=said.append)] == ["lenet5/cifar10"]
    assert len(said) == 1
    assert said[0].endswith("choose one kind; alexnet/ilsvrc2012 is left out")
    assert [e.name for e in experiments(runs, columns=["lenet5/cifar10"])] == ["lenet5/cifar10"]
    with pytest.raises(ValueError, match="different parts"):
        experiments(runs, columns=["alexnet/ilsvrc2012"], warn=said.append)
    for words in (["table"], ["report", "--output", "page.html"], ["figures", "--only", "accuracy", "--output", "out"]):
        command, *options = [str(tmp_path / word) if word in ("page.html", "out") else word for word in words]
        result = CliRunner().invoke(app, [command, str(tmp_path / "runs"), *options])
        assert (result.exit_code, result.stderr) == (0, f"warning: {said[0]}\n")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda path: None, "new does not exist; make records first"),
        (lambda path: path.mkdir(), "no records in .*new"),
        (lambda path: path.write_text(""), "no records in .*new"),
        (lambda path: path.write_text("a,b\n1,2\n"), "new, line 1"),
        (lambda path: path.write_bytes(b"\xff\xfe\n"), "new, line 1"),
    ],
)
def test_a_path_without_records_is_refused(prepare: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    prepare(tmp_path / "new")
    with pytest.raises(ValueError, match=said):
        read_records([tmp_path / "new"])


def test_the_longest_runs_with_enough_seeds_stand_for_a_column() -> None:
    old = [make_record("relu", [70.0] * 2, seed=seed) for seed in range(5)]
    new = [make_record(row, [80.0] * 3, seed=seed, val_size=500) for seed in range(3) for row in ("relu", "tanh")]
    other = [make_record("tanh", [60.0] * epochs, column="lenet5/cifar10") for epochs in (1, 2)]
    assert longest_of_columns([*old, *other, *new]) == [other[1], *new]
    assert longest_of_columns([*old, *other, *new[:4]]) == [*old, other[1]]
    assert longest_of_columns([*old, *new[:5]]) == old  # relu has three seeds, tanh has two
    assert longest_of_columns([*old, *new, make_record("elu", [80.0] * 3, val_size=500)])[:5] == new[:5]
    assert longest_of_columns(old[:2] + new[:4]) == new[:4]
    assert longest_of_columns([]) == []


RISING = [float(epoch) for epoch in range(1, 31)]
BOTH = [make_record("relu", RISING, seed=seed, held_out=[*RISING[:-3], 99.0, 0.0, 0.0]) for seed in (0, 1)]
PLAIN = [make_record("relu", RISING, column="lenet5/cifar10"), make_record("relu", [9.0], column="resnet56/cifar10")]


def test_each_experiment_has_its_fairest_reading_by_default() -> None:
    read = {e.name: (e.reading.name, e.cells["relu"].accuracy.mean) for e in experiments(BOTH + PLAIN)}
    assert read == {
        "kerasnet/cifar10": ("chosen", 28.0),
        "lenet5/cifar10": ("last10", 25.5),
        "resnet56/cifar10": ("last", 9.0),
    }


def test_experiments_without_a_reading_are_left_out() -> None:
    assert [e.name for e in experiments(BOTH + PLAIN, reading="chosen")] == ["kerasnet/cifar10"]
    assert [e.cells["relu"].accuracy.mean for e in experiments(BOTH + PLAIN, reading="best")] == [30.0, 30.0, 9.0]
    with pytest.raises(ValueError, match=r"'chosen': lenet5/cifar10 has last, last10, best; resnet56.*--reading"):
        experiments(PLAIN, reading="chosen")
    with pytest.raises(ValueError, match="unknown reading 'final'; available: last, last10, chosen, best"):
        experiments(PLAIN, reading="final")


def test_a_reading_of_fewer_epochs_knows_nothing_of_later_ones() -> None:
    assert [e.cells["relu"].accuracy.mean for e in experiments(BOTH, epoch=26)] == [26.0]
    assert [e.cells["relu"].accuracy.mean for e in experiments(BOTH, epoch=26, reading="last10")] == [21.5]


def test_every_format_names_the_reading() -> None:
    for name, short in (("chosen", "chosen epoch"), ("best", "best test epoch (not a result)")):
        (experiment,) = experiments(BOTH, reading=name)
        assert short in markdown_table([experiment])
        assert f"Reading {name}: {experiment.reading.meaning}" in markdown_table([experiment])
        assert all(f",{name}," in line for line in csv_table([experiment]).splitlines()[1:])
