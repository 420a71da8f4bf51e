"""Shared code of kernel benchmarks: variants of one computation, interleaved, in one process, each in a CUDA graph.

Every line has the median time of a variant beside its floor: the fewest bytes that must move, over the bandwidth of a
large copy. Tensors are reused at once, as in training, so small ones may be in the cache. A part that fails is
reported and the others continue; parts that would start after --seconds are skipped.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hullo.lab.bench.clocks import Clock, clock_for

HALF = torch.bfloat16
LAST = torch.channels_last

Step = Callable[[], Any]
Make = Callable[[], dict[str, Step]]  # steps by direction, taken in this order


@dataclass(frozen=True)
class Line:
    """One measured pass of one variant."""

    part: str
    layer: str
    variant: str
    direction: str
    microseconds: float
    megabytes: float
    floor_microseconds: float
    tflops: float | None

    def __str__(self) -> str:
        time_over_floor = self.microseconds / self.floor_microseconds
        rate = f"{self.tflops:6.0f} TFLOP/s" if self.tflops else ""
        times = f"{self.microseconds:9.1f} us {self.megabytes:8.1f} MB {time_over_floor:6.2f} x"
        return f"{self.part:12s} {self.layer:21s} {self.variant:36s} {self.direction:16s} {times} {rate}"


class Bench:
    """Measures variants in turns, prints and keeps lines."""

    def __init__(self, clock: Clock, members: int, batch: int, seconds: float) -> None:
        self.clock, self.members, self.batch, self.end = clock, members, batch, time.monotonic() + seconds
        self.device = clock.device
        self.lines: list[Line] = []
        self.setting = ""  # printed after the name of each variant
        source = torch.empty(clock.copy_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        laps = clock.laps(*[lambda: target.copy_(source)] * 9)
        self.bandwidth = 2 * source.numel() / statistics.median(laps)

    def run(self, parts: list[Part]) -> None:
        for part, layers in parts:
            for layer in layers:
                if time.monotonic() > self.end:
                    print(f"no time for {part.__name__}, {layer}")
                    continue
                with self.guarded(f"{part.__name__}, {layer}"):
                    part(self, layer)

    def measure(
        self,
        part: str,
        layer: str,
        makes: Mapping[str, Make],
        least: Mapping[str, int],
        flops: float = 0.0,
        rounds: int = 15,
    ) -> None:
        """Print a line for each variant and direction.

        Args:
            part, layer: what is measured.
            makes: the variants.
            least: the fewest bytes that each direction must move; a step that is not here only prepares the next.
            flops: of each direction, where it computes.
            rounds: how often the variants take turns; the first third warms up.
        """
        steps_of: dict[str, dict[str, Step]] = {}  # keeps the tensors of the graphs alive
        replays: dict[str, list[Step]] = {}
        for name, make in makes.items():
            with self.guarded(f"{part}, {layer}, {name}"):
                steps_of[name] = make()
                replays[name] = self.clock.capture(*steps_of[name].values())
        laps: dict[str, list[list[float]]] = {name: [] for name in replays}
        for _ in range(rounds):
            for name, steps in replays.items():
                laps[name].append(self.clock.laps(*steps))
        for name, taken in laps.items():
            medians = [statistics.median(times) for times in zip(*taken[rounds // 3 :], strict=True)]
            for direction, median in zip(steps_of[name], medians, strict=True):
                if (moved := least.get(direction)) is not None:
                    tflops = flops / median / 1e12 if flops else None
                    numbers = 1e6 * median, moved / 1e6, 1e6 * moved / self.bandwidth, tflops
                    self.lines.append(Line(part, layer, name + self.setting, direction, *numbers))
                    print(self.lines[-1], flush=True)

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Print one line if the block fails."""
        try:
            yield
        except Exception as error:
            print(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)

    def halves(self, *shape: int) -> Tensor:
        """Return random images in bfloat16, channels last."""
        return torch.randn(shape, device=self.device).to(HALF).contiguous(memory_format=LAST)


Part = tuple[Callable[[Bench, str], None], Iterable[str]]  # what is measured, in which layers


def size(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that these benchmarks share."""
    options = argparse.ArgumentParser(description=description.partition("\n")[0])
    options.add_argument("--csv", type=Path, help="file for the lines")
    options.add_argument("--members", type=int, default=60)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--seconds", type=float, default=80.0, help="no part starts later")
    return options


def measure_on_gpu(options: argparse.Namespace, run: Callable[[Bench], None]) -> None:
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU; PyTorch finds none")
    start = time.monotonic()
    bench = Bench(clock_for("cuda"), options.members, options.batch_size, options.seconds)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bench.bandwidth / 1e12:.2f} TB/s")
    print("time, fewest bytes, time over floor, and the rate of what computes")
    run(bench)
    print(f"{time.monotonic() - start:.0f} s")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Line)])
            writer.writeheader()
            writer.writerows(map(asdict, bench.lines))
