"""The harness of all scripts: options, clocks, contenders that take turns, CUDA graphs, rows with their environment."""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from hullo.lab.spec.environment import Environment, choose_device, device_name, environment
from hullo.population.graphs import pause_collection

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


class Harness:
    """One run of a benchmark script: its clock, its options, and the rows that it prints and writes.

    Options that all scripts have are `--device`, `--csv FILE` and `--commit`; a script adds others to `parser`. `tiny`
    is true without a GPU: scripts then measure a few small steps, as a test.
    """

    def __init__(self, description: str | None, *, rounds: int = 9) -> None:
        form = argparse.RawDescriptionHelpFormatter
        self.parser = argparse.ArgumentParser(description=description, formatter_class=form)
        self.parser.add_argument("--device", help="cpu, cuda or cuda:N; a GPU if available")
        self.parser.add_argument("--csv", type=Path, help="file for the rows")
        self.parser.add_argument("--rounds", type=int, default=rounds, help="how often contenders take turns")
        self.parser.add_argument("--commit", help="the commit to record, where this is no checkout")
        self.rows: list[dict[str, Any]] = []

    def start(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse the options, print the environment, and return the options."""
        options = self.parser.parse_args(arguments)
        self.clock: Timer = clock_for(options.device)
        self.device, self.path, self.rounds = self.clock.device, options.csv, options.rounds
        self.tiny = self.device.type != "cuda"
        self.environment: Environment = environment(self.clock.device_name, options.commit)
        print(self.environment, flush=True)
        return options

    def compare(self, steps: Mapping[K, Step], *, warm_up: int = 3, calls: int = 1) -> dict[K, Timing]:
        """Return the times of steps that take turns, each measured over several calls."""

        def once(step: Step) -> Callable[[int], float]:
            return lambda _: sum(self.clock.laps(*[step] * calls)) / calls

        for step in steps.values():
            for _ in range(warm_up):
                step()
        self.clock.wait()
        taken = take_turns({name: once(step) for name, step in steps.items()}, self.rounds)
        return {name: Timing.of(seconds) for name, seconds in taken.items()}

    def peak_mib(self, *steps: Step) -> float:
        """Return the peak memory of steps in MiB beyond what was allocated before; NaN if unknown."""
        peak = self.clock.peak_bytes(*steps)
        return float("nan") if peak is None else peak / 2**20

    def add(self, **row: Any) -> None:
        """Print a row; write all rows if there is a file."""
        self.rows.append(row)
        print("  ".join(f"{name} {_spell(value)}" for name, value in row.items()), flush=True)
        if self.path:
            with self.path.open("w", newline="") as file:
                writer = csv.DictWriter(file, [*vars(self.environment), *self.rows[0]], lineterminator="\n")
                writer.writeheader()
                writer.writerows(vars(self.environment) | row for row in self.rows)

    @contextmanager
    def report_failure(self, what: str) -> Iterator[None]:
        """Print one line if the block fails, and go on: one contender should not cost the others."""
        try:
            yield
        except Exception as error:
            print(f"{what} left out: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
            self.clock.wait()


def ratios(timings: Mapping[K, Timing], baseline: K) -> dict[K, float]:
    """Return the medians over that of a baseline."""
    return {name: timing.median / timings[baseline].median for name, timing in timings.items()}


def _spell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def capture_steps(device: torch.device, *steps: Step) -> list[Step]:
    """Capture steps as CUDA graphs, in one memory pool: a step reads what an earlier one has written.

    Calling one replays it. Without a GPU, they are returned as they are.
    """
    if device.type != "cuda":
        return list(steps)
    # All on one stream: autograd accumulates gradients on the stream where their tensor was first used in a graph
    # that is still alive, from a warm-up or from an earlier capture with the same inputs.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # one-time work such as compiling a kernel cannot be captured
        for _ in range(3):
            for step in steps:
                step()
    graphs: list[torch.cuda.CUDAGraph] = []
    with pause_collection():
        for step in steps:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None, stream=stream):
                step()
            graphs.append(graph)
    return [graph.replay for graph in graphs]
