"""Measure one network's epoch in a population on a GPU, and the parts of its time.

    python benchmarks/population_step.py [--networks kerasnet] [--members 12 60] [--csv rows.csv] [--profile]

Random images of CIFAR-10's size and number, batch 32, bfloat16, the paper's twelve activations in turn. A population
trains by the laboratory's loop: augmentation, step, optimizer, and an evaluation on 10,000 images at the end of
the epoch, whose time is measured and added in proportion. Beside it, in the same run, plain PyTorch, as plain_epoch.py
measures it. `--profile` prints the kernels that take the most time.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from plain_epoch import NETWORKS, plain_epoch

import hullo
from hullo.lab.data import Dataset
from hullo.lab.run.loaders import InMemoryLoader
from hullo.lab.run.training import Training
from hullo.lab.spec import paper
from hullo.lab.spec.environment import environment
from hullo.lab.spec.paper import Column
from hullo.lab.spec.run_spec import Spec

TRAIN, TEST = 50_000, 10_000


def images() -> Dataset:
    generator = torch.Generator("cuda").manual_seed(0)
    parts = []
    for count in (TRAIN, TEST):
        parts.append(torch.randint(256, (count, 3, 32, 32), device="cuda", dtype=torch.uint8, generator=generator))
        parts.append(torch.randint(10, (count,), device="cuda", generator=generator))
    return Dataset("random", tuple("0123456789"), *parts)


def population_epoch(network: str, members: int, data: Dataset, seconds: float, profile: bool) -> dict[str, float]:
    """Return the time of one network's epoch in a population, and its parts, from about `seconds` of training."""
    specs = [
        Spec(network, "cifar10", paper.ROWS[k % len(paper.ROWS)], seed=k // len(paper.ROWS), precision="bfloat16")
        for k in range(members)
    ]
    torch.cuda.reset_peak_memory_stats()
    training = Training(specs, InMemoryLoader(data))
    steps_of = training.advance()
    start = time.perf_counter()
    for _ in range(5):
        next(steps_of)
    torch.cuda.synchronize()
    capture = time.perf_counter() - start
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds and training.step < training.steps - 30:
        for _ in range(20):
            next(steps_of)
        torch.cuda.synchronize()
        steps += 20
    step = (time.perf_counter() - start) / steps
    if profile:
        show_profile(lambda: [next(steps_of) for _ in range(5)], 5)
    training.population.eval()
    times = []
    for _ in range(2):
        start = time.perf_counter()
        training._end_epoch()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    evaluation = min(times)
    return {
        "epoch_s": (step * training.steps + evaluation) / members,
        "step_ms": 1e3 * step,
        "evaluation_s": evaluation,
        "capture_s": capture,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def show_profile(run: Callable[[], object], count: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
    total = sum(event.device_time_total for event in events)
    print(f"kernels of a step: {total / count / 1e3:.3f} ms in {sum(e.count for e in events) // count} launches")
    for event in events[:40]:
        share = event.device_time_total / total
        print(
            f"  {event.device_time_total / count:9.1f} us {share:6.1%} {event.count / count:6.1f} x  {event.key[:100]}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["kerasnet", "lenet5", "resnet56"], choices=NETWORKS)
    parser.add_argument("--members", nargs="+", type=int, default=[60])
    parser.add_argument("--seconds", type=float, default=5.0, help="of training for each population")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU; PyTorch finds none")
    data, rows = images(), []
    fields = vars(environment(torch.cuda.get_device_name()))
    print(f"{fields['device']}, torch {fields['torch']}, hullo {hullo.__version__} ({fields['commit']})")
    for network in arguments.networks:
        plain = plain_epoch(Column(network, "cifar10"))
        print(f"{network}: plain PyTorch {plain:.2f} s for one network's epoch")
        for members in arguments.members:
            result = population_epoch(network, members, data, arguments.seconds, arguments.profile)
            torch.cuda.empty_cache()
            values = ", ".join(f"{name} {value:.3f}" for name, value in result.items())
            print(
                f"{network} x {members}: {values}; {plain / result['epoch_s']:.0f} times as fast as plain PyTorch",
                flush=True,
            )
            rows.append({"network": network, "members": members, "plain_epoch_s": plain, **result, **fields})
            if arguments.csv:
                with arguments.csv.open("w", newline="") as file:
                    writer = csv.DictWriter(file, list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
