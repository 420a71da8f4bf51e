"""Test the benchmark of unlike workloads on the CPU, with small networks."""

import csv
import importlib
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("population_work")


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()[1:]))


def run(bench, path, *options):
    bench.main(["--tiny", "--device", "cpu", "--rounds", "1", "--csv", str(path), *options])
    return rows_of(path)


@pytest.mark.parametrize("name", ["nanogpt", "unet", "lstm", "pinn", "vit", "convnext", "mobilenet", "vgg", "tabular"])
def test_loops_and_populations_take_a_step_of_every_workload(bench, tmp_path, name):
    rows = run(bench, tmp_path / "rows.csv", "--work", name, "--contenders", "graph", "streams, graph", "hullo")
    assert [(row["work"], row["contender"], row["note"]) for row in rows] == [
        (name, contender, "") for contender in ("graph", "streams, graph", "hullo")
    ]
    assert all(float(row["ms"]) > 0 for row in rows)


def test_rows_of_the_file_are_skipped_and_others_added(bench, tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(bench, "measure", lambda work, contender, *_: measured.append(contender) or (1.0, 2.0))
    path = tmp_path / "rows.csv"
    run(bench, path, "--work", "lstm", "--contenders", "graph")
    assert len(run(bench, path, "--work", "lstm", "--contenders", "graph", "hullo")) == 2
    assert measured == ["graph", "hullo"]


def test_a_file_of_another_environment_is_left_alone(bench, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("# another machine\n")
    with pytest.raises(SystemExit, match="another machine"):
        run(bench, path)
    assert path.read_text() == "# another machine\n"


def test_a_contender_that_fails_has_a_row_with_the_reason(bench, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory\nof this size")

    monkeypatch.setattr(bench, "measure", fail)
    (row,) = run(bench, tmp_path / "rows.csv", "--work", "lstm", "--contenders", "hullo")
    assert (row["ms"], row["note"]) == ("", "no memory")


def test_both_forms_of_the_equation_have_the_same_residuals(bench):
    works = importlib.import_module("work_networks")
    network = works.pinn(3, 8).double()
    x, y = torch.randn(6, 2, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)
    expected = works.burgers(network, x, y, 1)
    torch.testing.assert_close(works.burgers_by_func(network, x, y, 1), expected)
