"""Shared code of kernel benchmarks: variants of one computation, in turns, each in a CUDA graph.

Every row has the median time of a variant beside its floor: the fewest bytes that must move, over the bandwidth of a
large copy. Tensors are reused at once, as in training, so small ones may be in the cache. A part that fails is
reported and the others continue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from captured import capture_steps
from torch import Tensor

from hullo.lab.bench.harness import Harness, Timing, take_turns

HALF = torch.bfloat16
LAST = torch.channels_last

Step = Callable[[], Any]
Make = Callable[[], dict[str, Step]]  # steps by direction, taken in this order


class Bench(Harness):
    """Measures variants in turns."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description, rounds=15)
        self.parser.add_argument("--members", type=int, default=60)
        self.parser.add_argument("--batch-size", type=int, default=32)

    def start(self, arguments: list[str] | None = None) -> Any:
        options = super().start(arguments)
        self.members, self.batch = options.members, options.batch_size
        source = torch.empty(self.clock.copy_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.bandwidth = 2 * source.numel() / Timing.of(self.clock.laps(*[lambda: target.copy_(source)] * 9)).median
        print(f"copy {self.bandwidth / 1e12:.2f} TB/s", flush=True)
        return options

    def run(self, parts: list[Part]) -> None:
        for part, layers in parts:
            for layer in layers:
                with self.report_failure(f"{part.__name__}, {layer}"):
                    part(self, layer)

    def measure(
        self, part: str, layer: str, makes: Mapping[str, Make], least: Mapping[str, int], flops: float = 0.0
    ) -> None:
        """Add a row for each variant and direction.

        Args:
            part, layer: what is measured.
            makes: the variants.
            least: the fewest bytes that each direction must move; a step that is not here only prepares the next.
            flops: of each direction, where it computes.
        """
        steps_of: dict[str, dict[str, Step]] = {}  # keeps the tensors of the graphs alive
        replays: dict[str, list[Step]] = {}
        for name, make in makes.items():
            with self.report_failure(f"{part}, {layer}, {name}"):
                steps_of[name] = make()
                replays[name] = capture_steps(self.device, *steps_of[name].values())

        def once(steps: list[Step], _: int) -> list[float]:
            return self.clock.laps(*steps)

        laps = take_turns({name: functools.partial(once, steps) for name, steps in replays.items()}, self.rounds)
        for name, taken in laps.items():
            times = [Timing.of(seconds).median for seconds in zip(*taken[self.rounds // 3 :], strict=True)]
            for direction, seconds in zip(steps_of[name], times, strict=True):
                if (moved := least.get(direction)) is not None:
                    floor = moved / self.bandwidth
                    self.add(
                        part=part,
                        layer=layer,
                        variant=name,
                        direction=direction,
                        microseconds=1e6 * seconds,
                        megabytes=moved / 1e6,
                        floor_microseconds=1e6 * floor,
                        over_floor=seconds / floor,
                        tflops=flops / seconds / 1e12 if flops else "",
                    )

    def halves(self, *shape: int) -> Tensor:
        """Return random images in bfloat16, channels last."""
        return torch.randn(shape, device=self.device).to(HALF).contiguous(memory_format=LAST)


Part = tuple[Callable[[Bench, str], None], Iterable[str]]  # what is measured, in which layers


def size(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)
