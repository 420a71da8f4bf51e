"""Test the benchmark of convolutions, and the code it shares with that of kernels, on the CPU with few members."""

import importlib
import math
from pathlib import Path

import pytest
import torch

from hullo.lab.bench.clocks import CpuClock

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DIRECTIONS = ("forward", "backward data", "backward weight")


@pytest.fixture
def convolutions(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("population_convolutions")


@pytest.fixture
def bench(convolutions):
    clock = CpuClock(torch.device("cpu"))
    clock.copy_bytes = 2**20
    return convolutions.Bench(clock, members=2, batch=1, seconds=math.inf)


def test_every_layer_is_measured_forward_and_backward(convolutions, bench, monkeypatch):
    plain = convolutions.VARIANTS["conv2d, weight contiguous"]
    monkeypatch.setattr(convolutions, "VARIANTS", {"plain": plain})
    bench.run([(convolutions.convolution, convolutions.LAYERS)])
    result = [(line.layer, line.variant, line.direction) for line in bench.lines]
    assert result == [(layer, "plain", direction) for layer in convolutions.LAYERS for direction in DIRECTIONS]


def test_failing_variant_is_reported_and_others_continue(bench, capsys):
    def broken():
        raise RuntimeError("no such\nkernel")

    bench.measure("part", "layer", {"a": broken, "b": lambda: {"step": lambda: None}}, {"step": 10**6})
    assert [line.variant for line in bench.lines] == ["b"]
    assert capsys.readouterr().out.splitlines() == [
        "part, layer, a: RuntimeError: no such kernel",
        *map(str, bench.lines),
    ]


def test_floor_is_bytes_over_bandwidth_and_rate_is_flops_over_time(bench):
    bench.setting = " tuned"
    steps = {"forward": lambda: None, "again": lambda: None, "backward": lambda: None}
    bench.measure("part", "layer", {"one": lambda: steps}, {"forward": 10**6, "backward": 3 * 10**6}, flops=1e9)
    assert [(line.variant, line.direction, line.megabytes) for line in bench.lines] == [
        ("one tuned", "forward", 1.0),
        ("one tuned", "backward", 3.0),
    ]
    for line in bench.lines:
        assert line.floor_microseconds == pytest.approx(1e12 * line.megabytes / bench.bandwidth)
        assert line.tflops == pytest.approx(1e9 / line.microseconds / 1e6)


def test_no_part_starts_after_the_deadline(bench, capsys):
    bench.end = -math.inf

    def part(*_):
        raise AssertionError

    bench.run([(part, ("a", "b"))])
    assert capsys.readouterr().out.splitlines() == ["no time for part, a", "no time for part, b"]
