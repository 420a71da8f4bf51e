"""Measurement of time and memory, with one clock for the CPU and one for CUDA devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from hullo.lab.spec.environment import choose_device, device_name

Step = Callable[[], Any]


class Clock:
    """Measures on a CPU, by wall-clock time; has the default sizes and dtypes of the device."""

    file_stem = "cpu"
    default_sizes = "2^24,2^18"
    default_dtypes = "float32"
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


class CudaClock(Clock):
    """Time between CUDA events.

    The device is kept busy while the first commands are queued: an interval then contains the work of the device, and
    no waiting for Python, whose overhead is measured separately.
    """

    file_stem = "gpu"
    default_sizes = "2^28,2^18,256x64x56x56/64,32x1920x32x32/60"
    default_dtypes = "float32,bfloat16,float16"
    copy_bytes = 2**28
    head_start = 2_000_000  # cycles, about a millisecond

    def __init__(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        super().__init__(device)
        self.cache_bytes = int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)

    def laps(self, *steps: Step) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]  # type: ignore[no-untyped-call]
        kept = []
        torch.cuda._sleep(self.head_start)  # type: ignore[no-untyped-call]
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


def clock_for(device: str | None) -> Clock:
    """Return the clock of a device, by default of a GPU if available."""
    chosen = choose_device(device)
    return (CudaClock if chosen.type == "cuda" else Clock)(chosen)
