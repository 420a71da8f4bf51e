"""Measure all contenders of a case in one process, interleaved, so that disturbances affect all of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hullo._compat import is_out_of_memory
from hullo.lab.bench.cases import CONTENDERS, Case
from hullo.lab.bench.clocks import Step, Timer, Timing, take_turns, wall_laps
from hullo.lab.bench.results import Measurement
from hullo.lab.progress import Progress
from hullo.lab.spec.environment import Environment

WARM_UP = 3
INPUTS = 128
"""The largest number of inputs to cycle through, so that no input is in the cache."""
CALLS = 100
"""Calls that are timed together if one is too short."""
TINY = Case((8,), "float32")
MOVED = {"forward": 2, "backward": 3, "both": 5}
"""The least memory traffic of a pass in inputs: x in, y out; then x and dy in, dx out."""

Inputs = Sequence[tuple[Tensor, Tensor]]  # x and the gradient of y
Laps = list[float]  # the seconds of the forward and of the backward pass


def passes(module: nn.Module, inputs: Inputs) -> tuple[Step, Step]:
    """Return two steps: the forward passes on all inputs, then their backward passes, with parameter gradients."""
    parameters = tuple(module.parameters())
    outputs: list[Tensor] = []

    def forward() -> None:
        outputs[:] = [module(x) for x, _ in inputs]

    def backward() -> Any:
        return [torch.autograd.grad(y, (x, *parameters), dy) for y, (x, dy) in zip(outputs, inputs, strict=True)]

    return forward, backward


def held_bytes(module: nn.Module, x: Tensor) -> int:
    """Return the memory saved for the backward pass, without the module's parameters."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = module(x)
    del y  # not earlier: a new tensor in memory that was just freed would hide another
    for parameter in module.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(kept.values())


@dataclass(frozen=True)
class Bench:
    """The settings of a session: what to measure, the clock, the repeats, and where progress is shown."""

    clock: Timer
    environment: Environment
    activations: Sequence[str]
    repeats: int
    progress: Progress

    def run(self, cases: Sequence[Case]) -> Iterator[list[Measurement]]:
        """Yield the rows of each case and of the overhead; what does not fit into memory is skipped with a note."""
        parts: dict[str, Callable[[], list[Measurement]]] = {
            str(case): functools.partial(self.eager, case) for case in cases
        }
        parts["overhead of a call"] = self.overhead
        for index, (name, measure) in enumerate(parts.items()):
            self.progress.start_step(name, index, len(parts))
            try:
                yield measure()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.progress.note(f"not enough memory; not measured: {name}")
            torch.cuda.empty_cache()

    def eager(self, case: Case) -> list[Measurement]:
        """Measure eager calls, and a large copy between them, whose bandwidth gives the floor."""
        clock = self.clock
        inputs = self._draw(case, min(INPUTS, math.ceil(2 * clock.cache_bytes / case.input_bytes)))
        modules = self._modules(case, inputs[:1])
        held = {name: held_bytes(module, inputs[0][0]) for name, module in modules.items()}
        source = torch.ones(max(case.input_bytes, clock.copy_bytes) // 4, device=clock.device)
        target = torch.ones_like(source)

        def once(name: str, index: int) -> Laps:
            return clock.laps(*passes(modules[name], [inputs[index % len(inputs)]]))

        measurements = {name: functools.partial(once, name) for name in modules}
        laps = self._interleave({**measurements, "copy": lambda _: clock.laps(lambda: target.copy_(source))})
        bandwidth = 2 * source.nbytes / Timing.of([seconds for (seconds,) in laps.pop("copy")]).median
        return [row for name in laps for row in self._rows("eager", case, name, laps[name], bandwidth, held[name])]

    def overhead(self) -> list[Measurement]:
        """Measure the Python overhead: the wall-clock time of calls on tiny inputs."""
        inputs = self._draw(TINY, CALLS)
        modules = self._modules(TINY, inputs[:1])

        def once(name: str, _: int) -> Laps:
            taken = wall_laps(*passes(modules[name], inputs))
            self.clock.wait()
            return [seconds / len(inputs) for seconds in taken]

        laps = self._interleave({name: functools.partial(once, name) for name in modules})
        return [row for name, taken in laps.items() for row in self._rows("overhead", TINY, name, taken)]

    def _draw(self, case: Case, count: int) -> Inputs:
        torch.manual_seed(0)
        device = self.clock.device
        return [(case.draw(device).requires_grad_(), case.draw(device)) for _ in range(count)]

    def _modules(self, case: Case, inputs: Inputs) -> dict[str, nn.Module]:
        """Build and warm up the contenders of a case; skip those that fail here, with a note."""
        torch.compiler.reset()  # else recompilations for other cases count towards the compiler's limit
        modules = {}
        for name in self.activations:
            contender = CONTENDERS[name]
            module = contender.build(case.groups, case.channels).to(self.clock.device, getattr(torch, case.dtype))
            try:
                for _ in range(WARM_UP):
                    for step in passes(module, inputs):
                        step()
                self.clock.wait()
            except Exception as error:
                if not (contender.needs_compiler or is_out_of_memory(error)):
                    raise
                reason = " ".join(f"{type(error).__name__}: {error}".split("\n\n")[0].split())
                self.progress.note(f"{name} is left out of {case}: {reason}")
            else:
                modules[name] = module
        return modules

    def _interleave(self, measurements: Mapping[str, Callable[[int], Laps]]) -> dict[str, list[Laps]]:
        return take_turns(measurements, self.repeats, lambda index: self.progress.update(index / self.repeats))

    def _rows(
        self,
        kind: str,
        case: Case,
        name: str,
        laps: Sequence[Laps],
        bandwidth: float | None = None,
        held: int | None = None,
    ) -> Iterator[Measurement]:
        forward, backward = zip(*laps, strict=True)
        both = [sum(pair) for pair in laps]
        for direction, seconds in (("forward", forward), ("backward", backward), ("both", both)):
            median, p10, p90 = (1e3 * value for value in Timing.of(seconds))
            moved = MOVED[direction] * case.input_bytes
            yield Measurement(
                **asdict(self.environment),
                kind=kind,
                shape="x".join(map(str, case.shape)),
                dtype=case.dtype,
                layout=case.layout,
                groups=case.groups,
                activation=name,
                direction=direction,
                median_ms=median,
                p10_ms=p10,
                p90_ms=p90,
                repeats=len(seconds),
                bytes_moved=moved if bandwidth else None,
                bandwidth_gb_s=bandwidth / 1e9 if bandwidth else None,
                floor_ms=moved / bandwidth * 1e3 if bandwidth else None,
                held_bytes=held,
            )
