"""Measure one network's epoch in a population on a GPU, and the parts of its time.

    python benchmarks/population_step.py [--networks kerasnet] [--members 12 60] [--csv rows.csv] [--profile]

Random images of CIFAR-10's size and number, batch 32, bfloat16, the paper's twelve activations in turn. A population
trains by the laboratory's loop: augmentation, step, optimizer, and an evaluation on 10,000 images at the end of
the epoch, whose time is measured and added in proportion. Beside it, in the same run, plain PyTorch, as plain_epoch.py
measures it. `--profile` prints the kernels that take the most time. Without a GPU, a few steps, as a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from plain_epoch import NETWORKS, plain_epoch

from hullo.lab.bench.harness import Harness
from hullo.lab.data import Dataset
from hullo.lab.run.loaders import InMemoryLoader
from hullo.lab.run.training import Training
from hullo.lab.spec import paper
from hullo.lab.spec.paper import Column
from hullo.lab.spec.run_spec import Spec


def images(harness: Harness) -> Dataset:
    generator = torch.Generator(harness.device).manual_seed(0)
    options = {"device": harness.device, "generator": generator}
    parts = []
    for count in (2048, 64) if harness.tiny else (50_000, 10_000):
        parts.append(torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, **options))
        parts.append(torch.randint(10, (count,), **options))
    return Dataset("random", tuple("0123456789"), *parts)


def population_epoch(
    harness: Harness, network: str, members: int, data: Dataset, seconds: float, profile: bool
) -> dict[str, float]:
    """Return the time of one network's epoch in a population, and its parts, from about `seconds` of training."""
    specs = [
        Spec(network, "cifar10", paper.ROWS[k % len(paper.ROWS)], seed=k // len(paper.ROWS), precision="bfloat16")
        for k in range(members)
    ]
    training = Training(specs, InMemoryLoader(data))
    steps_of = training.advance()

    def take(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            next(steps_of)
        harness.clock.wait()
        return time.perf_counter() - start

    chunk = 1 if harness.tiny else 20
    capture, taken, steps = take(5), 0.0, 0
    while (taken < seconds or not steps) and training.step < training.steps - 30:
        taken, steps = taken + take(chunk), steps + chunk
    if profile:
        show_profile(lambda: take(5), 5)
    peak = harness.peak_mib(lambda: next(steps_of))
    training.population.eval()
    evaluation = min(harness.clock.laps(training._end_epoch, training._end_epoch))
    step = taken / steps
    return {
        "epoch_s": (step * training.steps + evaluation) / members,
        "step_ms": 1e3 * step,
        "evaluation_s": evaluation,
        "capture_s": capture,
        "step_peak_mib": peak,
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


def main(arguments: list[str] | None = None) -> None:
    harness = Harness(__doc__, rounds=3)
    harness.parser.add_argument("--networks", nargs="+", default=["kerasnet", "lenet5", "resnet56"], choices=NETWORKS)
    harness.parser.add_argument("--members", nargs="+", type=int, default=[60])
    harness.parser.add_argument("--seconds", type=float, default=5.0, help="of training for each population")
    harness.parser.add_argument("--profile", action="store_true")
    options = harness.start(arguments)
    data = images(harness)
    for network in options.networks:
        plain = plain_epoch(harness, Column(network, "cifar10"))
        for members in options.members:
            result = population_epoch(harness, network, members, data, options.seconds, options.profile)
            torch.cuda.empty_cache()
            ratio = plain / result["epoch_s"]
            harness.add(network=network, members=members, plain_epoch_s=plain, **result, plain_over_population=ratio)


if __name__ == "__main__":
    main()
