"""Test the benchmark of unlike workloads on the CPU, with small networks."""

import copy
import csv
import importlib
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("population_work")


def run(bench, path, *options):
    bench.main(["--tiny", "--device", "cpu", "--rounds", "1", "--csv", str(path), *options])
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


NOT_VMAPPED = ("lstm", "gru")  # torch.func has no rule for recurrent layers


WORKS = [
    *("mobilenet", "resnet20_batch128", "tabular", "lstm", "llama", "mixer", "densenet", "autoencoder", "vae", "gru"),
    *("wavenet", "siren", "pointnet", "graph", "unet", "vit", "convnext", "vgg", "pinn", "bert", "nanogpt", "lenet5"),
    *("resnet20", "mlp", "gpt"),
]


def test_tiny_workloads_are_the_full_ones(bench):
    tiny, full = bench.workloads(tiny=True), bench.workloads()
    assert list(tiny) == list(full) == WORKS
    for name, work in tiny.items():
        settings = ("classes", "loss", "compiled_loss", "half")
        assert [getattr(work, item) for item in settings] == [getattr(full[name], item) for item in settings]
        assert (work.tokens > 0) == (full[name].tokens > 0)
        assert [len(shape) for shape in work.batch] == [len(shape) for shape in full[name].batch]


@pytest.mark.parametrize("name", WORKS)
def test_full_workloads_fit_their_data(bench, name):
    if name == "bert":
        pytest.importorskip("transformers")
    work = bench.workloads()[name]
    with FakeTensorMode():  # shapes without numbers
        x, y = work.data(1, torch.device("cpu"))
        assert work.loss(work.make(0), x[0], y[0], 1).shape == (1,)


@pytest.fixture
def alike(bench):
    """Return a workload whose networks have the same weights at every call, and no dropout."""

    def alike(name):
        if name == "bert":
            pytest.importorskip("transformers")
        torch.manual_seed(0)
        work = bench.workloads(tiny=True)[name]
        made = [work.make(k).eval() for k in range(work.members)]
        return replace(work, make=lambda k: copy.deepcopy(made[k])), made

    return alike


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention by torch.func.vmap on a CPU
@pytest.mark.parametrize("name", WORKS)
def test_contenders_train_on_the_same_losses(bench, alike, name, monkeypatch):
    work, _ = alike(name)
    x, y = work.data(work.members, torch.device("cpu"))
    losses = {}

    def keep(name):
        def training_step(work, loss, *_):
            losses[name] = loss
            return lambda *given: None

        return training_step

    monkeypatch.setattr(bench, "training_step", keep("single"))
    alone = []
    for k in range(work.members):
        bench.single(work, torch.device("cpu"), k)
        alone.append(losses["single"](x[k], y[k]))
    monkeypatch.setattr(bench, "training_step", keep("hullo"))
    bench.population(work, torch.device("cpu"), is_captured=False)
    torch.testing.assert_close(losses["hullo"](x, y), sum(alone), rtol=2e-4, atol=2e-5)
    if name not in NOT_VMAPPED:
        monkeypatch.setattr(bench, "training_step", keep("vmap"))
        bench.vmapped(work, torch.device("cpu"), is_compiled=False)
        torch.testing.assert_close(losses["vmap"](x, y), sum(alone), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", WORKS)
def test_populations_of_every_workload_pass_their_check(bench, alike, name):
    _, made = alike(name)
    population = bench.Population([network.train() for network in made])
    work = bench.workloads(tiny=True)[name]
    population.check(work.data(work.members, torch.device("cpu"))[0])


@pytest.mark.parametrize("contender", ["graph", "graph, side by side", "vmap", "hullo, graph"])
@pytest.mark.parametrize("name", ["tabular", "pinn"])
def test_a_step_updates_all_networks(bench, alike, monkeypatch, name, contender):
    work, _ = alike(name)
    updated = []
    for optimizer in (torch.optim.SGD, bench.SGD):
        step = optimizer.step
        monkeypatch.setattr(optimizer, "step", lambda self, step=step: (updated.append(1), step(self))[1])
    x, y = work.data(work.members, torch.device("cpu"))
    is_alone = contender in bench.ALONE
    bench.CONTENDERS[contender](work, x, y)(*((x[0], y[0]) if is_alone else (x, y)))
    assert len(updated) == (work.members if contender == "graph, side by side" else 1)


def test_every_contender_takes_a_step(bench, tmp_path):
    chosen = [name for name in bench.CONTENDERS if "compile" not in name]  # which takes minutes
    rows = run(bench, tmp_path / "rows.csv", "--work", "lenet5", "--members", "2", "--contenders", *chosen)
    assert sorted((row["contender"], row["note"]) for row in rows) == sorted((name, "") for name in chosen)


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
    rows = run(bench, path, "--work", "lstm", "gru", "--contenders", "graph", "--members", "2", "3")
    assert [(row["network"], row["members"]) for row in rows[2:]] == [("lstm", "3"), ("gru", "2"), ("gru", "3")]


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


def test_a_contender_that_takes_too_long_has_a_row_and_the_rest_goes_on(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda work, *_: time.sleep(9 if work.name == "mlp" else 0) or (1.0, 2.0))
    path = tmp_path / "rows.csv"
    rows = run(bench, path, "--work", "mlp", "lstm", "--contenders", "hullo", "--limit", "0.1")
    assert [(row["network"], row["note"]) for row in rows] == [("mlp", "not ready within 0.1 seconds"), ("lstm", "")]


def test_the_time_of_a_portion_cuts_a_contender_off_which_the_next_call_measures(bench, tmp_path, monkeypatch):
    naps = {"hullo": 0, "graph": 9}
    monkeypatch.setattr(bench, "measure", lambda work, contender, *_: time.sleep(naps[contender]) or (1.0, 2.0))
    path, given = tmp_path / "rows.csv", ("--work", "mlp", "lstm", "--contenders", "graph", "hullo")
    rows = run(bench, path, "--work", "mlp", "--contenders", "hullo", "graph", "--minutes", "0.01")
    assert [row["contender"] for row in rows] == ["hullo"]
    naps["graph"] = 0
    assert len(run(bench, path, *given)) == 4


def test_hullo_and_one_compiled_network_are_measured_for_all_workloads_first(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda *_: (1.0, 2.0))
    rows = run(bench, tmp_path / "rows.csv", "--commit", "abc")
    assert {row["commit"] for row in rows} == {"abc"}
    order = [row["contender"] for row in rows]
    count = len(WORKS) - len(bench.TUNED)
    assert set(order[: 2 * count]) == {"hullo, graph", "compile, graph"}
    assert set(order[2 * count :]) == {"graph", "graph, side by side", "vmap, compile, graph"}
    assert [row["network"] for row in rows[: 2 * count : 2]] == [name for name in WORKS if name not in bench.TUNED]
