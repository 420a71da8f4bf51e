"""Measure what activations cost: time, memory traffic and memory held for the backward pass.

    python benchmarks/activations.py                                     # the defaults of this device
    python benchmarks/activations.py --sizes 2^28 256x64x56x56/64 --dtypes float32 bfloat16 --csv rows.csv
    python benchmarks/activations.py --kinds overhead

Every figure is read against two others of the same run: GELU's time, and the bandwidth floor, the time that the fewest
bytes that must move (forward: x read, y written; backward: x and dy read, dx written) take at the speed of a copy.
README.md describes the columns; tools/blocks.py makes tables of the rows in benchmarks/results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from activation_rows import LABELS, ActivationRow, Case, cost, groups, overhead
from harness import Harness, Step, Timing, take_turns, wall_laps
from torch import Tensor, nn

from hullo.lab.analysis.tables.markdown import grid
from hullo.modules import AffineHull

THREE = ("identity", "relu", "tanh")
SIX = (*THREE, "hardtanh", "unit_gelu", "unit_silu")
KINDS = ("eager", "overhead")
SIZES = {"cpu": ("2^24", "2^18"), "cuda": ("2^28", "256x64x56x56/64", "32x1920x32x32/60")}
DTYPES = {"cpu": ("float32",), "cuda": ("float32", "bfloat16", "float16")}
INPUTS = 128
"""The largest number of inputs to cycle through, so that no input is in the cache."""
CALLS = 100
"""Calls that are timed together if one is too short."""
TINY = Case((8,), "float32")
MOVED = {"forward": 2, "backward": 3, "both": 5}
"""The least memory traffic of a pass in inputs."""

Inputs = Sequence[tuple[Tensor, Tensor]]  # x and the gradient of y
Laps = list[float]  # the seconds of the forward and of the backward pass


def size(text: str) -> tuple[tuple[int, ...], int]:
    """Parse a shape and its groups: 1000, 2^18 or 32x60x8x8/60."""
    shape, _, groups = text.partition("/")
    powers = (part.partition("^") for part in shape.split("x"))
    numbers = tuple(int(base) ** (int(exponent) if caret else 1) for base, caret, exponent in powers)
    count = int(groups or 1)
    if min(numbers) < 1 or count < 1 or (count > 1 and (len(numbers) < 2 or numbers[1] % count)):
        raise ValueError
    return numbers, count


def make_cases(sizes: Sequence[str], dtypes: Sequence[str]) -> list[Case]:
    """Return every size in every dtype; four-dimensional ones in both memory formats."""
    return [
        Case(shape, dtype, layout, groups)
        for shape, groups in map(size, sizes)
        for dtype in dtypes
        for layout in (("contiguous", "channels_last") if len(shape) == 4 else ("contiguous",))
    ]


def plain(x: Tensor, coefficients: Tensor) -> Tensor:
    """Compute the hull directly: c1 x + c2 relu(x) + c3 tanh(x)."""
    c1, c2, c3 = _columns(coefficients, x)
    return c1 * x + c2 * torch.relu(x) + c3 * torch.tanh(x)


def _columns(coefficients: Tensor, x: Tensor) -> Sequence[Tensor]:
    """Return the coefficients of each base in a shape that broadcasts with x; channels are dimension 1."""
    rows = coefficients.to(x.dtype)
    if rows.dim() == 1:
        return rows.unbind()
    channels = rows.repeat_interleave(x.shape[1] // len(rows), dim=0)
    return [c.reshape(-1, *[1] * (x.dim() - 2)) for c in channels.unbind(-1)]


class Formula(nn.Module):
    """A module that applies a function of x and of coefficients over {identity, relu, tanh}."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], groups: int) -> None:
        super().__init__()
        self.function = function
        self.coefficients = nn.Parameter(torch.full((3,) if groups == 1 else (groups, 3), 1 / 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.coefficients)


def build(name: str, case: Case) -> nn.Module:
    """Build a contender for a case."""
    groups = case.groups
    if name in ("relu", "gelu"):
        return {"relu": nn.ReLU, "gelu": nn.GELU}[name]()
    if name == "prelu":
        return nn.PReLU(1 if groups == 1 else case.shape[1])
    if name in ("hullo", "hullo6"):
        return AffineHull(*(THREE if name == "hullo" else SIX), groups=groups)
    if name == "compiled":
        torch.compiler.reset()  # else recompilations for other cases count towards the compiler's limit
        return Formula(torch.compile(plain, fullgraph=True, dynamic=False), groups)
    return Formula(plain, groups)


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


class Bench(Harness):
    """Measures all activations of a case in turns, in one process, so that disturbances affect all of them."""

    def __init__(self) -> None:
        super().__init__(__doc__, rounds=30)
        self.parser.add_argument("--sizes", nargs="+", help="elements, or shapes/groups, as in 2^24 32x60x8x8/60")
        self.parser.add_argument("--dtypes", nargs="+", choices=DTYPES["cuda"] + ("float64",))
        self.parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
        self.parser.add_argument("--activations", nargs="+", choices=LABELS, default=list(LABELS))

    def run(self, arguments: Sequence[str] | None = None) -> None:
        options = self.start(arguments)
        self.names, kind = options.activations, self.device.type
        cases = make_cases(options.sizes or SIZES[kind], options.dtypes or DTYPES[kind])
        for name in options.kinds:
            for case in [TINY] if name == "overhead" else cases:
                with self.report_failure(f"{name}, {case}"):
                    getattr(self, name)(case)
        rows = [ActivationRow(**vars(self.environment), **row) for row in self.rows]
        for table in (cost, groups, overhead):
            head, *lines = table(rows)
            if lines:
                print("", grid(head, lines), sep="\n")

    def eager(self, case: Case) -> None:
        """Measure eager calls, and a large copy between them, whose bandwidth gives the floor."""
        inputs = self._draw(case, min(INPUTS, math.ceil(2 * self.clock.cache_bytes / case.input_bytes)))
        modules = self._modules(case, inputs[:1])
        held = {name: held_bytes(module, inputs[0][0]) for name, module in modules.items()}
        source = torch.ones(max(case.input_bytes, self.clock.copy_bytes) // 4, device=self.device)
        target = torch.ones_like(source)

        def once(name: str, index: int) -> Laps:
            return self.clock.laps(*passes(modules[name], [inputs[index % len(inputs)]]))

        measurements = {name: partial(once, name) for name in modules}
        copy = {"copy": lambda _: self.clock.laps(lambda: target.copy_(source))}
        laps = take_turns(measurements | copy, self.rounds)
        bandwidth = 2 * source.nbytes / Timing.of([seconds for (seconds,) in laps.pop("copy")]).median
        for name, taken in laps.items():
            self._add("eager", case, name, taken, bandwidth=bandwidth, held=held[name])

    def overhead(self, case: Case) -> None:
        """Measure the Python overhead: the wall-clock time of calls on tiny inputs."""
        inputs = self._draw(case, CALLS)
        modules = self._modules(case, inputs[:1])

        def once(name: str, _: int) -> Laps:
            taken = wall_laps(*passes(modules[name], inputs))
            self.clock.wait()
            return [seconds / len(inputs) for seconds in taken]

        for name, taken in take_turns({name: partial(once, name) for name in modules}, self.rounds).items():
            self._add("overhead", case, name, taken)

    def _draw(self, case: Case, count: int) -> Inputs:
        torch.manual_seed(0)

        def draw() -> Tensor:
            x = torch.randn(case.shape, device=self.device, dtype=getattr(torch, case.dtype))
            return x.to(memory_format=torch.channels_last) if case.layout == "channels_last" else x

        return [(draw().requires_grad_(), draw()) for _ in range(count)]

    def _modules(self, case: Case, inputs: Inputs) -> dict[str, nn.Module]:
        """Build and warm up the contenders of a case; report those that fail, such as without a compiler."""
        modules = {}
        for name in self.names:
            with self.report_failure(f"{name} of {case}"):
                module = build(name, case).to(self.device, getattr(torch, case.dtype))
                for step in 3 * passes(module, inputs):
                    step()
                self.clock.wait()
                modules[name] = module
        return modules

    def _add(self, kind: str, case: Case, name: str, laps: Sequence[Laps], **more: Any) -> None:
        forward, backward = zip(*laps, strict=True)
        bandwidth = more.get("bandwidth")
        for direction, seconds in (("forward", forward), ("backward", backward), ("both", list(map(sum, laps)))):
            moved = MOVED[direction] * case.input_bytes
            self.add(
                kind=kind,
                shape="x".join(map(str, case.shape)),
                dtype=case.dtype,
                layout=case.layout,
                groups=case.groups,
                activation=name,
                direction=direction,
                **{f"{name}_ms": 1e3 * value for name, value in Timing.of(seconds)._asdict().items()},
                repeats=len(seconds),
                bytes_moved=moved if bandwidth else None,
                bandwidth_gb_s=bandwidth / 1e9 if bandwidth else None,
                floor_ms=1e3 * moved / bandwidth if bandwidth else None,
                held_bytes=more.get("held"),
            )


def main(arguments: Sequence[str] | None = None) -> None:
    Bench().run(arguments)


if __name__ == "__main__":
    main()
