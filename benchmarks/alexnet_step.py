"""Measure a training step of AlexNet in a CUDA graph, and the cost of local response normalization.

    python benchmarks/alexnet_step.py [rows.csv]

Prints, for two activations and three normalizations: the median time of a step, images per second, and the peak
memory besides weights and data; with a file name, also writes them there. Batch 256 of 227x227 synthetic images on the
device, 1000 classes, images and copies of weights in bfloat16, channels last, SGD with momentum; the same weights and
data for all, interleaved. Without a GPU it takes a few steps of a tiny batch, as a test.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, fields
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from hullo.lab import networks
from hullo.lab.bench.clocks import clock_for
from hullo.lab.spec.environment import environment
from hullo.population import SGD, Population

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, SIDE, ROUNDS = (256, 227, 40) if DEVICE == "cuda" else (2, 39, 1)
WARM_UP = 3

ACTIVATIONS = ("relu", "affine(identity,relu,tanh)")


class PlainNorm(nn.LocalResponseNorm):
    """PyTorch's module under another class: a population computes it operation by operation."""


NORMS: dict[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "hullo": lambda: nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
    "torch": lambda: PlainNorm(5, alpha=1e-4, beta=0.75, k=1.0),
}


class Step(NamedTuple):
    run: Callable[[], None]
    peak_mib: float
    owned: object
    """Keeps the tensors of the graph alive."""


class Measured(NamedTuple):
    activation: str
    normalization: str
    batch: int
    median_ms: float
    p10_ms: float
    p90_ms: float
    images_per_second: float
    peak_mib: float


def prepare(activation: str, norm: Callable[[], nn.Module]) -> Step:
    """Return a training step as a CUDA graph; without a GPU, as it is."""
    network = networks.build("alexnet", activation=activation, image_size=SIDE, num_classes=1000)
    network.norm = norm()
    population = Population([network]).to(DEVICE)
    optimizer = SGD(population, lr=0.01, momentum=0.9, weight_decay=5e-4, copies=torch.bfloat16)
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = 60 * torch.randn(BATCH, 3, SIDE, SIDE, device=DEVICE, generator=generator)
    x = x.to(torch.bfloat16, memory_format=torch.channels_last)
    labels = torch.randint(1000, (BATCH,), device=DEVICE, generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = population(x, in_dims=None)[0]
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    if DEVICE == "cpu":
        return Step(step, float("nan"), None)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries choose and set up their kernels before a capture
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return Step(graph.replay, (torch.cuda.max_memory_allocated() - before) / 2**20, step)


def milliseconds(run: Callable[[], None]) -> float:
    if DEVICE == "cpu":
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def main() -> None:
    steps = {(row, name): prepare(row, norm) for row in ACTIVATIONS for name, norm in NORMS.items()}
    times: dict[tuple[str, str], list[float]] = {case: [] for case in steps}
    for _ in range(WARM_UP + ROUNDS):
        for case, step in steps.items():
            times[case].append(milliseconds(step.run))
    where = environment(clock_for(DEVICE).device_name)
    rows = []
    print(where)
    for case, values in times.items():
        ordered = sorted(values[WARM_UP:])
        median = statistics.median(ordered)
        p10, p90 = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
        speed, peak = 1e3 * BATCH / median, steps[case].peak_mib
        rows.append((*astuple(where), *Measured(*case, BATCH, median, p10, p90, speed, peak)))
        print(f"{case[0]:28s} {case[1]:6s} {median:8.3f} ms {speed:8.0f} images/s {peak:8.0f} MiB")
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*(field.name for field in fields(where)), *Measured._fields])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
