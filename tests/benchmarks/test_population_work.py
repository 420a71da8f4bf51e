"""Test the benchmark of unlike workloads on the CPU, with small networks."""

import csv
import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("population_work")


def run(bench, path, *options):
    bench.main(["--tiny", "--device", "cpu", "--rounds", "1", "--csv", str(path), *options])
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


LIST = ["lenet5", "resnet20", "mlp", "gpt", "nanogpt", "unet", "lstm", "pinn", "vit", "convnext", "mobilenet", "vgg"]


@pytest.mark.parametrize("name", [*LIST, "tabular"])
def test_loops_and_populations_take_a_step_of_every_workload(bench, tmp_path, name):
    chosen = ("graph", "graph, side by side", "hullo, graph")
    rows = run(bench, tmp_path / "rows.csv", "--work", name, "--contenders", *chosen)
    assert [(row["network"], row["contender"], row["note"]) for row in rows] == [(name, own, "") for own in chosen]
    assert all(float(row["ms"]) > 0 for row in rows)


def test_every_contender_takes_a_step(bench, tmp_path):
    skipped = [name for name in bench.CONTENDERS if "compile" in name or "HFTA" in name]  # minutes, not installed
    chosen = [name for name in bench.CONTENDERS if name not in skipped]
    rows = run(bench, tmp_path / "rows.csv", "--work", "lenet5", "--members", "2", "--contenders", *chosen)
    assert [(row["contender"], row["note"]) for row in rows] == [(name, "") for name in chosen]


def test_times_are_per_network_and_medians_of_rounds(bench, monkeypatch):
    taken = iter([0.1, 6.0, 1.0, 2.0] * 2)  # the first finds the number of steps
    monkeypatch.setattr(bench, "_time", lambda *_: next(taken))
    monkeypatch.setattr(bench, "CONTENDERS", dict.fromkeys(bench.CONTENDERS, lambda *_: lambda x, y: None))
    work = replace(bench.workloads(tiny=True)["mlp"], members=4)
    measured = [bench.measure(work, name, torch.device("cpu"), 3, 0.2)[0] for name in ("hullo, graph", "graph")]
    assert measured == [2000 / 4, 2000]


def test_rows_of_the_file_are_skipped_and_others_added(bench, tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(bench, "measure", lambda work, contender, *_: measured.append(contender) or (1.0, 2.0))
    path = tmp_path / "rows.csv"
    run(bench, path, "--work", "lstm", "--contenders", "graph")
    assert len(run(bench, path, "--work", "lstm", "--contenders", "graph", "hullo")) == 2
    assert measured == ["graph", "hullo"]


def test_a_contender_that_fails_has_a_row_with_the_reason_and_is_in_no_table(bench, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory\nof this size")

    monkeypatch.setattr(bench, "measure", fail)
    path = tmp_path / "rows.csv"
    (row,) = run(bench, path, "--work", "lstm", "--contenders", "hullo")
    assert (row["ms"], row["note"]) == ("nan", "no memory")
    assert importlib.import_module("peer_rows").read_measured(path) == []


def test_both_forms_of_the_equation_have_the_same_residuals(bench):
    works = importlib.import_module("work_networks")
    network = works.pinn(3, 8).double()
    x, y = torch.randn(6, 2, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)
    expected = works.burgers(network, x, y, 1)
    torch.testing.assert_close(works.burgers_by_func(network, x, y, 1), expected)
