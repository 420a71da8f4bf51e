"""Clocks for the CPU and for CUDA devices, and contenders that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch

from hullo.lab.spec.environment import choose_device, device_name

Step = Callable[[], Any]
K = TypeVar("K")
T = TypeVar("T")


class Timer:
    """Measures on a CPU, by wall-clock time."""

    cache_bytes = 2**26
    """Inputs of more than twice this size in total do not stay in a cache."""
    copy_bytes = 2**26
    """Copies of at least this size measure the memory bandwidth."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.device_name = device_name(device)

    def laps(self, *steps: Step) -> list[float]:
        """Return the seconds of each step, run in sequence; free their results after all steps."""
        return wall_laps(*steps)

    def wait(self) -> None:
        """Wait until the device has finished all work."""

    def peak_bytes(self, *_: Step) -> int | None:
        """Return the peak memory of the steps beyond what was allocated before, if known."""
        return None


class CudaTimer(Timer):
    """Time between CUDA events.

    The device is kept busy while the first commands are queued: an interval then contains the work of the device, and
    no waiting for Python, whose overhead is measured separately.
    """

    copy_bytes = 2**28
    head_start = 2_000_000  # cycles, about a millisecond

    def __init__(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        super().__init__(device)
        self.cache_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size

    def laps(self, *steps: Step) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
        kept = []
        torch.cuda._sleep(self.head_start)
        marks[0].record()
        for step, mark in zip(steps, marks[1:], strict=True):
            kept.append(step())
            mark.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairwise(marks)]

    def wait(self) -> None:
        torch.cuda.synchronize()

    def peak_bytes(self, *steps: Step) -> int | None:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for step in steps:
            step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def wall_laps(*steps: Step) -> list[float]:
    """Return the wall-clock seconds of each step; free their results after all steps."""
    marks, kept = [time.perf_counter()], []
    for step in steps:
        kept.append(step())
        marks.append(time.perf_counter())
    return [end - start for start, end in pairwise(marks)]


class Timing(NamedTuple):
    """The median, the 10th and the 90th percentile of the times of a contender, in seconds."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Summarize times."""
        shares = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)
        return cls(*torch.tensor(seconds, dtype=torch.float64).quantile(shares).tolist())


def take_turns(measurements: Mapping[K, Callable[[int], T]], rounds: int) -> dict[K, list[T]]:
    """Run every measurement once per round, in random order, so that disturbances affect all of them.

    Measurements get the number of the round.
    """
    taken: dict[K, list[T]] = {name: [] for name in measurements}
    names, order = list(measurements), torch.Generator().manual_seed(0)
    for index in range(rounds):
        for position in torch.randperm(len(names), generator=order).tolist():
            taken[names[position]].append(measurements[names[position]](index))
    return taken


def clock_for(device: str | None) -> Timer:
    """Return the clock of a device, by default of a GPU if available."""
    chosen = choose_device(device)
    return (CudaTimer if chosen.type == "cuda" else Timer)(chosen)
