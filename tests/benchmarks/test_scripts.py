"""Every benchmark runs in a tiny setting, without a GPU, from its options to its rows."""

import csv
import importlib
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
from harness import Harness, Timing, ratios, take_turns  # noqa: E402

SCRIPTS = {
    "activations": ("--sizes", "64", "--activations", "relu", "hullo", "--kinds", "overhead"),
    "gated": (),
    "network_step": ("resnet56", "gpt2", "nanogpt", "siren"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_measures_and_saves_rows(name, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    try:
        script = importlib.import_module(name)
        options = ["--device", "cpu", "--rounds", "1", "--commit", "abc", "--csv", str(tmp_path / "rows.csv")]
        script.main([*SCRIPTS[name], *options])
    finally:
        for module in set(sys.modules) - before:  # a script may change the constants of another
            if Path(getattr(sys.modules[module], "__file__", None) or "").parent == BENCHMARKS:
                del sys.modules[module]
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert {(row["torch"], row["commit"]) for row in rows} == {(torch.__version__, "abc")}
    assert len(capsys.readouterr().out.splitlines()) > len(rows)  # the environment, then the rows


@pytest.fixture
def harness(tmp_path):
    harness = Harness("A test.", rounds=5)
    harness.start(["--device", "cpu", "--csv", str(tmp_path / "rows.csv")])
    return harness


def test_contenders_take_turns_in_changing_order():
    order = []
    taken = take_turns({name: lambda index, name=name: order.append((index, name)) for name in "abc"}, rounds=20)
    assert all(len(times) == 20 for times in taken.values())
    assert [index for index, _ in order] == [index for index in range(20) for _ in "abc"]
    assert len({tuple(order[start : start + 3]) for start in range(0, 60, 3)} - {None}) == 20
    assert len({"".join(name for _, name in order[start : start + 3]) for start in range(0, 60, 3)}) > 1


def test_comparison_counts_calls_and_gives_ratios_of_medians(harness):
    calls = {"a": 0, "b": 0}

    def step(name):
        calls[name] += 1

    times = harness.compare({name: lambda name=name: step(name) for name in calls}, warm_up=2, calls=3)
    assert calls == {"a": 2 + 5 * 3, "b": 2 + 5 * 3}
    assert ratios(times, "a")["b"] == times["b"].median / times["a"].median
    assert Timing.of([5.0, 1.0, 2.0, 4.0, 3.0]) == pytest.approx((3.0, 1.4, 4.6))


def test_rows_are_saved_with_their_environment_and_failures_do_not_stop_others(harness, capsys):
    harness.add(name="a", seconds=1.5)
    with harness.report_failure("b"):
        raise RuntimeError("no such\nkernel")
    harness.add(name="c", seconds=2.5)
    with harness.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["seconds"]) for row in rows] == [("a", "1.5"), ("c", "2.5")]
    assert rows[0]["commit"] == harness.environment.commit
    assert "b left out: RuntimeError: no such kernel" in capsys.readouterr().out


def test_floor_is_the_bytes_that_must_move_over_the_bandwidth(monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    bench = importlib.import_module("population_kernels")
    moved = {}
    monkeypatch.setattr(bench.Harness, "add", lambda _, **row: moved.update({(row["layer"], row["passes"]): row}))
    bench.main(["--device", "cpu", "--rounds", "1"])
    assert "left out" not in capsys.readouterr().out
    assert {layer for layer, _ in moved} == {*bench.LAYERS}
    x = 2 * 2 * 512 * 2  # two members, two samples, bfloat16
    assert [1e6 * moved["kerasnet dropout", name]["megabytes"] for name in ("forward", "both")] == [2 * x, 5 * x]
    x, y, weights = 4 * 20 * 14 * 14 * 2, 4 * 50 * 10 * 10 * 2, 2 * 50 * 20 * 25 * 4
    both = 1e6 * moved["lenet5 conv2", "both"]["megabytes"]
    assert both == pytest.approx((x + weights + y) + (x + weights + y) + (x + weights))
    floors = {row["microseconds"] / row["over_floor"] / row["megabytes"] for row in moved.values()}
    assert max(floors) == pytest.approx(min(floors))
