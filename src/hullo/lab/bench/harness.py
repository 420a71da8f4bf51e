"""The harness of all benchmarks: contenders that take turns, quantiles, peak memory, rows with their environment."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from hullo.lab.bench.clocks import Clock, Step, clock_for
from hullo.lab.spec.environment import Environment, environment

K = TypeVar("K")
T = TypeVar("T")


class Timing(NamedTuple):
    """The median, the 10th and the 90th percentile of the times of a contender, in seconds."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Summarize times.

        >>> Timing.of([3.0, 1.0, 2.0]).median
        2.0
        """
        shares = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)
        return cls(*torch.tensor(seconds, dtype=torch.float64).quantile(shares).tolist())


def take_turns(
    measurements: Mapping[K, Callable[[int], T]], rounds: int, on_round: Callable[[int], None] = lambda _: None
) -> dict[K, list[T]]:
    """Run every measurement once per round, in random order, so that disturbances affect all of them.

    Measurements, and `on_round` before them, get the number of the round.

    >>> take_turns({"a": lambda index: index, "b": lambda index: -index}, rounds=3)
    {'a': [0, 1, 2], 'b': [0, -1, -2]}
    """
    taken: dict[K, list[T]] = {name: [] for name in measurements}
    names, order = list(measurements), torch.Generator().manual_seed(0)
    for index in range(rounds):
        on_round(index)
        for position in torch.randperm(len(names), generator=order).tolist():
            taken[names[position]].append(measurements[names[position]](index))
    return taken


class Harness:
    """One run of a benchmark script: its clock, its options, and the rows that it prints and writes.

    Options that all scripts have are `--device` and `--csv FILE`; a script adds others to `parser`. `tiny` is true
    without a GPU: scripts then measure a few small steps, as a test.
    """

    def __init__(self, description: str | None, *, rounds: int = 9) -> None:
        form = argparse.RawDescriptionHelpFormatter
        self.parser = argparse.ArgumentParser(description=description, formatter_class=form)
        self.parser.add_argument("--device", help="cpu, cuda or cuda:N; a GPU if available")
        self.parser.add_argument("--csv", type=Path, help="file for the rows")
        self.parser.add_argument("--rounds", type=int, default=rounds, help="how often contenders take turns")
        self.rows: list[dict[str, Any]] = []

    def start(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse the options, print the environment, and return the options."""
        options = self.parser.parse_args(arguments)
        self.clock: Clock = clock_for(options.device)
        self.device, self.path, self.rounds = self.clock.device, options.csv, options.rounds
        self.tiny = self.device.type != "cuda"
        self.environment: Environment = environment(self.clock.device_name)
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
