"""Where does a population's step go, and what do the fused kernels save? On a GPU, each in a CUDA graph.

    python benchmarks/population_kernels.py --csv rows.csv
    python benchmarks/population_kernels.py --tune        # the kernels alone, at several sizes of their tiles

For layers of KerasNet, LeNet-5 and ResNet-56 on CIFAR-10, 60 members at batch 32 in bfloat16, prints the median time of
each kernel beside what it replaces, in turns in one process, and beside its floor: the fewest bytes that must move over
the bandwidth of a large copy. Tensors are used again at once, as in training, so a small one may be found in the cache.
A part that fails says so and the others go on; parts that would start after --seconds are left out.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import hullo
from hullo.coefficients import way
from hullo.functional import apply
from hullo.kernels import Plan
from hullo.lab.activations import Row
from hullo.lab.bench.clocks import Clock, clock_for
from hullo.lab.data.augment import draw_moves, draw_order, move, scale
from hullo.lab.kernels import columns, dropout, first, norm, pictures, pooled, rmsprop
from hullo.lab.networks import NETWORKS, Network, Task
from hullo.lab.networks.layers import flatten
from hullo.lab.recipes import RMSprop

TRIO = tuple(hullo.base(name) for name in ("identity", "relu", "tanh"))
HALF = torch.bfloat16
LAST = torch.channels_last

Step = Callable[[], Any]


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


@dataclass
class Variant:
    """Steps by direction, taken in this order; the fewest bytes each must move; what it computes."""

    steps: dict[str, Step]
    least: dict[str, int]
    flops: float = 0.0


class Bench:
    """Measures variants in turns, prints and keeps lines."""

    def __init__(self, clock: Clock, members: int, batch: int, seconds: float) -> None:
        self.clock, self.members, self.batch, self.end = clock, members, batch, time.monotonic() + seconds
        self.device = clock.device
        self.lines: list[Line] = []
        self.setting = ""  # said after the name of each variant
        source = torch.empty(clock.copy_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        laps = clock.laps(*[lambda: target.copy_(source)] * 9)
        self.bandwidth = 2 * source.numel() / statistics.median(laps)

    def measure(self, part: str, layer: str, variants: dict[str, Variant], rounds: int = 15) -> None:
        replays = {}
        for name, variant in variants.items():
            with self.guarded(f"{part}, {layer}, {name}"):
                replays[name] = self.clock.capture(*variant.steps.values())
        laps: dict[str, list[list[float]]] = {name: [] for name in replays}
        for _ in range(rounds):
            for name, steps in replays.items():
                laps[name].append(self.clock.laps(*steps))
        for name, taken in laps.items():
            variant = variants[name]
            medians = [statistics.median(times) for times in zip(*taken[rounds // 3 :], strict=True)]
            for direction, median in zip(variant.steps, medians, strict=True):
                least = variant.least[direction]
                computes = variant.flops and direction != "backward bias"
                tflops = variant.flops / median / 1e12 if computes else None
                numbers = 1e6 * median, least / 1e6, 1e6 * least / self.bandwidth, tflops
                self.lines.append(Line(part, layer, name + self.setting, direction, *numbers))
                print(spelled(self.lines[-1]), flush=True)

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """What fails is said in a line."""
        try:
            yield
        except Exception as error:
            print(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)

    # What parts are made of.

    def halves(self, *shape: int) -> Tensor:
        """Random pictures in bfloat16, channels last."""
        return torch.randn(shape, device=self.device).to(HALF).contiguous(memory_format=LAST)

    def numbers(self) -> Tensor:
        return torch.arange(self.members, device=self.device)

    def state(self) -> SimpleNamespace:
        """What a network's dropout reads of it."""
        numbers = self.numbers()
        return SimpleNamespace(training=True, seeds=numbers, steps=numbers, members=self.members, first=0)

    def made(
        self, layer: str, makes: dict[str, Callable[[], dict[str, Step]]], least: dict[str, int], flops: float = 0.0
    ) -> dict[str, Variant]:
        """Those variants that can be made."""
        variants = {}
        for name, make in makes.items():
            with self.guarded(f"{layer}, {name}"):
                variants[name] = Variant(make(), least, flops)
        return variants

    def batch_of_bytes(self, channels: int = 3, side: int = 32) -> tuple[Tensor, Tensor, Tensor]:
        """A data set of CIFAR-10's kind, and which of it is shown, and how."""
        images = torch.randint(256, (10_000, channels, side, side), dtype=torch.uint8, device=self.device)
        order = draw_order(self.numbers(), 0, len(images))[:, : self.batch]
        return images, order, draw_moves(self.numbers(), 0, order, (side, side))


def spelled(line: Line) -> str:
    rate = f"{line.tflops:6.0f} TFLOP/s" if line.tflops else ""
    times = f"{line.microseconds:9.1f} us {line.megabytes:8.1f} MB {line.microseconds / line.floor_microseconds:6.2f} x"
    return f"{line.part:12s} {line.layer:18s} {line.variant:38s} {line.direction:16s} {times} {rate}"


def passes(function: Callable[[], Tensor], leaves: list[Tensor]) -> dict[str, Step]:
    """A function, and the gradients of its result for the leaves."""
    made: list[Tensor] = []
    gradient = torch.randn_like(function().detach())

    def forward() -> None:
        made[:] = [function()]

    return {"forward": forward, "backward": lambda: torch.autograd.grad(made[0], leaves, gradient)}


def size(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


# The parts, each a function of a layer's name.


def optimiser(bench: Bench, kind: str) -> None:
    rows = [Row.parse("affine(identity,relu,tanh)")] * bench.members
    network = NETWORKS[kind](rows, Task(3, 32, 10)).to(bench.device)
    parameters = list(network.parameters())
    for parameter in parameters:
        parameter.data.uniform_(-0.1, 0.1)
    recipe = RMSprop(network)
    gradients = [torch.randn_like(parameter) for parameter in parameters]
    halves = [gradient.to(HALF) for gradient in gradients]
    layout = rmsprop.Layout([parameter.detach() for parameter in parameters], bench.members)
    values, squares = (layout.buffer(torch.float32) for _ in range(2))
    scales = torch.ones(len(parameters), bench.members, device=bench.device)
    updates = torch.zeros((), dtype=torch.int64, device=bench.device)
    settings = {"rates": recipe.rates, "scales": scales, "updates": updates}
    settings |= {"decay": 1e-6, "rho": 0.9, "epsilon": 1e-7}

    @torch.no_grad()
    def plain() -> None:
        rates = recipe.current_rates()
        for name, gradient in zip(recipe.parameters, gradients, strict=True):
            recipe.move(name, gradient, rates)

    def fused(given: list[Tensor], copies: Tensor | None) -> Step:
        return lambda: rmsprop.move(layout, values, squares, given, **settings, copies=copies)

    least = {"step": 20 * sum(parameter.numel() for parameter in parameters)}  # either way
    variants = {
        "plain": Variant({"step": plain}, least),
        "fused": Variant({"step": fused(gradients, None)}, least),
        "fused, bfloat16 gradients and copies": Variant({"step": fused(halves, layout.buffer(HALF))}, least),
    }
    bench.measure("optimiser", kind, variants)


def batches(bench: Bench, name: str) -> None:
    given = bench.batch_of_bytes()
    shown = bench.members * bench.batch * given[0][0].numel()

    def plain() -> Tensor:
        return scale(move(*given).permute(1, 3, 4, 0, 2).flatten(3)).permute(0, 3, 1, 2)

    variants = {
        "move, scale": Variant({"float32": plain}, {"float32": 5 * shown}),
        "show": Variant({"float32": lambda: pictures.show(*given)}, {"float32": 5 * shown}),
        "show in bfloat16": Variant({"bfloat16": lambda: pictures.show(*given, HALF)}, {"bfloat16": 3 * shown}),
    }
    bench.measure("pictures", name, variants)


FIRST = {  # outputs, side, same
    "kerasnet conv1": (32, 3, True),
    "lenet5 conv1": (20, 5, False),
    "resnet56 conv": (16, 3, True),
}


def first_convolution(bench: Bench, layer: str) -> None:
    outputs, side, same = FIRST[layer]
    k, pad, given = bench.members, side // 2 if same else 0, bench.batch_of_bytes()
    weight = torch.randn(k * outputs, 3, side, side, device=bench.device).to(HALF).requires_grad_()
    bias = torch.randn(k * outputs, device=bench.device).to(HALF).requires_grad_()
    dy = bench.halves(bench.batch, k * outputs, *[32 + 2 * pad - side + 1] * 2)
    kept: dict[str, Tensor] = {}

    def shown(layout: torch.memory_format) -> dict[str, Step]:
        w = weight.detach().contiguous(memory_format=layout)

        def forward() -> None:
            kept["x"] = pictures.show(*given, HALF)
            F.conv2d(kept["x"], w, bias.detach(), padding=pad, groups=k)

        return {"forward": forward, "backward": lambda: pull(dy, kept["x"], w, pad, k, (False, True, True))}

    def cut() -> dict[str, Step]:
        numbers = pictures.patches(*given, side, same=same, dtype=HALF).shape[-1]
        w = torch.randn(k, numbers, outputs, device=bench.device).to(HALF)
        y, dy_by_member = (t.permute(0, 2, 3, 1).view(-1, k, outputs).transpose(0, 1) for t in (dy.clone(), dy))

        def forward() -> None:
            kept["cut"] = pictures.patches(*given, side, same=same, dtype=HALF)
            torch.bmm(kept["cut"], w, out=y)

        return {"forward": forward, "backward": lambda: torch.bmm(kept["cut"].transpose(1, 2), dy_by_member)}

    def from_bytes() -> dict[str, Step]:
        return passes(lambda: first.convolve(*given, weight, bias, same=same, dtype=HALF), [weight, bias])

    least = dict.fromkeys(("forward", "backward"), size(dy) + k * bench.batch * given[0][0].numel())
    makes = {
        "show, conv2d": lambda: shown(torch.contiguous_format),
        "show, conv2d, weight channels last": lambda: shown(LAST),
        "patches, bmm": cut,
        "from bytes": from_bytes,
    }
    flops = 2.0 * dy.numel() * weight[0].numel()
    bench.measure("first", layer, bench.made(layer, makes, least, flops))


def pull(dy: Tensor, x: Tensor, w: Tensor, pad: int, groups: int, wanted: tuple[bool, bool, bool]) -> Any:
    """The gradients of a convolution that are wanted: for pictures, weights, biases."""
    options = [len(w)], [1, 1], [pad, pad], [1, 1], False, [0, 0], groups, wanted
    return torch.ops.aten.convolution_backward(dy, x, w, *options)


CONVOLUTIONS = {  # inputs, outputs, side, size, same; some with more channels, which cuDNN may serve better
    "kerasnet conv2": (32, 32, 3, 32, False),
    "kerasnet conv3": (32, 64, 3, 15, True),
    "kerasnet conv3 64": (64, 64, 3, 15, True),
    "kerasnet conv4": (64, 64, 3, 15, False),
    "lenet5 conv2": (20, 50, 5, 14, False),
    "lenet5 conv2 32 64": (32, 64, 5, 14, False),
    "lenet5 conv2 64 64": (64, 64, 5, 14, False),
    "resnet56 16": (16, 16, 3, 32, True),
    "resnet56 32": (32, 32, 3, 16, True),
    "resnet56 64": (64, 64, 3, 8, True),
}


def convolution(bench: Bench, layer: str) -> None:
    inputs, outputs, side, pixels, same = CONVOLUTIONS[layer]
    k, pad = bench.members, side // 2 if same else 0
    x = bench.halves(bench.batch, k * inputs, pixels, pixels)
    dy = bench.halves(bench.batch, k * outputs, *[pixels + 2 * pad - side + 1] * 2)
    bias = torch.randn(k * outputs, device=bench.device).to(HALF)

    def steps(layout: torch.memory_format, benchmark: bool) -> dict[str, Step]:
        w = torch.randn(k * outputs, inputs, side, side, device=bench.device).to(HALF).contiguous(memory_format=layout)

        def chosen(step: Step) -> Step:
            def taken() -> Any:
                with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, allow_tf32=True):
                    return step()

            return taken

        every = {
            "forward": lambda: F.conv2d(x, w, padding=pad, groups=k),
            "forward, biased": lambda: F.conv2d(x, w, bias, padding=pad, groups=k),
            "backward data": lambda: pull(dy, x, w, pad, k, (True, False, False)),
            "backward weight": lambda: pull(dy, x, w, pad, k, (False, True, False)),
            "backward bias": lambda: pull(dy, x, w, pad, k, (False, False, True)),
        }
        return {name: chosen(step) for name, step in every.items()}

    makes = {
        "weight contiguous": lambda: steps(torch.contiguous_format, False),
        "weight channels last": lambda: steps(LAST, False),
        "weight channels last, best of cuDNN": lambda: steps(LAST, True),
    }
    both = ("forward", "forward, biased", "backward data", "backward weight")
    least = dict.fromkeys(both, size(x, dy)) | {"backward bias": size(dy)}
    bench.measure("convolution", layer, bench.made(layer, makes, least, 2.0 * dy.numel() * inputs * side**2), rounds=9)


POOLS = {  # channels, size, rate, flat
    "kerasnet pool1": (32, 30, 0.25, False),
    "kerasnet pool2": (64, 13, 0.25, True),
    "lenet5 pool1": (20, 28, 0.0, False),
    "lenet5 pool2": (50, 10, 0.0, True),
}


def pool(bench: Bench, layer: str) -> None:
    channels, side, rate, flat = POOLS[layer]
    k, plan = bench.members, Plan(TRIO, way("given"), 1)
    x = bench.halves(bench.batch, k * channels, side, side).requires_grad_()
    rows = torch.randn(k, 3, device=bench.device, requires_grad=True)
    bias = torch.randn(k * channels, device=bench.device).to(HALF).requires_grad_()
    state = bench.state()

    def three(x: Tensor) -> Tensor:
        y = F.max_pool2d(apply(x, rows, plan), 2)
        y = Network.drop(state, y, rate, 0) if rate else y  # type: ignore[arg-type]
        return flatten(y, k) if flat else y

    def one(bias: Tensor | None) -> Tensor:
        drops = state.seeds, state.steps, 0, rate, True
        return pooled.combine_pool_drop(x, rows, TRIO, *drops, bias=bias, flat=flat)

    makes = {
        "combine, pool, drop": lambda: passes(lambda: three(x), [x, rows]),
        "fused": lambda: passes(lambda: one(None), [x, rows]),
        "bias, combine, pool, drop": lambda: passes(lambda: three(x + bias.view(-1, 1, 1)), [x, rows, bias]),
        "fused with bias": lambda: passes(lambda: one(bias), [x, rows, bias]),
    }
    least = {"forward": size(x) * 5 // 4, "backward": size(x) * 9 // 4}
    bench.measure("pool", layer, bench.made(layer, makes, least))


NORMS = {"resnet56 16": (16, 32), "resnet56 32": (32, 16), "resnet56 64": (64, 8)}  # channels, size


def normalisation(bench: Bench, layer: str) -> None:
    channels, side = NORMS[layer]
    k, plan = bench.members, Plan(TRIO, way("given"), 1)
    x, residual = (bench.halves(bench.batch, k * channels, side, side).requires_grad_() for _ in range(2))
    rows = torch.randn(k, 3, device=bench.device, requires_grad=True)
    ones, zeros = (torch.full((k * channels,), value, device=bench.device) for value in (1.0, 0.0))
    running, affine = (zeros.clone(), ones.clone()), (ones.requires_grad_(), zeros.requires_grad_())
    constants = {"momentum": 0.01, "eps": 1e-3}

    def plain(other: Tensor | None) -> Tensor:
        y = F.batch_norm(x, *running, *affine, True, **constants)
        return apply(y if other is None else y + other, rows, plan)

    def fused(other: Tensor | None) -> Tensor:
        return norm.normalise_combine(x, *running, *affine, rows, TRIO, True, **constants, residual=other)

    def compared(name: str, three: str, other: Tensor | None, times: tuple[int, int]) -> None:
        leaves = [x, *affine, rows, *([] if other is None else [other])]
        makes = {
            three: lambda: passes(lambda: plain(other), leaves),
            "fused": lambda: passes(lambda: fused(other), leaves),
        }
        least = {"forward": times[0] * size(x), "backward": times[1] * size(x)}
        bench.measure("norm", name, bench.made(name, makes, least))

    # there: x twice, the residual, y; back: x twice, dy twice or dy, the residual and ds there and back, dx
    compared(layer, "batch_norm, combine", None, (3, 5))
    compared(f"{layer} + x", "batch_norm, add, combine", residual, (4, 7))


def features(bench: Bench, layer: str) -> None:
    x = torch.randn(bench.members, bench.batch, 512, device=bench.device).to(HALF).requires_grad_()
    state = bench.state()
    makes = {
        "drop": lambda: passes(lambda: Network.drop(state, x, 0.5, 2), [x]),  # type: ignore[arg-type]
        "fused": lambda: passes(lambda: dropout.drop(x, state.seeds, state.steps, 2, 0.5), [x]),
    }
    least = dict.fromkeys(("forward", "backward"), 2 * size(x))
    bench.measure("dropout", layer, bench.made(layer, makes, least))


Parts = list[tuple[Callable[[Bench, str], None], Iterable[str]]]

PARTS: Parts = [
    (optimiser, ("kerasnet", "lenet5")),
    (pool, POOLS),
    (normalisation, NORMS),
    (first_convolution, FIRST),
    (features, ("kerasnet linear1",)),
    (batches, ("cifar10",)),
    (convolution, CONVOLUTIONS),
]


def run(bench: Bench, parts: Parts) -> None:
    for part, layers in parts:
        for layer in layers:
            if time.monotonic() > bench.end:
                print(f"no time for {part.__name__}, {layer}")
                continue
            with bench.guarded(f"{part.__name__}, {layer}"):
                part(bench, layer)


NORM_TILES = {  # times, warps, programs
    "measure": ((2, 4, 8), (4, 4, 4), (8, 4, 4), (4, 8, 4)),
    "apply": ((1, 4, 8), (4, 4, 8), (2, 4, 16), (2, 8, 4)),
    "collect": ((1, 4, 5), (1, 4, 4), (2, 4, 3), (4, 4, 3), (2, 8, 2)),
    "pull": ((1, 4, 8), (4, 4, 4), (2, 4, 16), (2, 8, 4)),
}


def tune(bench: Bench) -> None:
    """The kernels at several sizes of their tiles; what stands in the modules comes first."""
    for tile in (pooled.FORWARD[2], (512, 4), (2048, 4), (2048, 8)):
        for programs in (pooled.PROGRAMS, 16):
            pooled.FORWARD[2] = pooled.BACKWARD[2] = tile
            pooled.PROGRAMS = programs
            bench.setting = f" {tile} {programs}"
            run(bench, [(pool, ("kerasnet pool1", "lenet5 pool1"))])
    for kernel, tiles in NORM_TILES.items():
        stands = columns.TILES[kernel]
        for tile in (stands, *tiles):
            columns.TILES[kernel] = columns.Tile(*tile)
            bench.setting = f" {kernel} {tuple(tile)}"
            run(bench, [(normalisation, NORMS)])
        columns.TILES[kernel] = stands
    for block, warps in ((rmsprop.BLOCK, rmsprop.WARPS), (1024, 4), (2048, 8), (4096, 8)):
        rmsprop.BLOCK, rmsprop.WARPS = block, warps
        bench.setting = f" {block} {warps}"
        run(bench, [(optimiser, ("kerasnet",))])
    for positions, warps in ((first.POSITIONS, first.WARPS), (64, 2), (64, 4), (256, 8)):
        first.POSITIONS, first.WARPS = positions, warps
        bench.setting = f" {positions} {warps}"
        run(bench, [(first_convolution, FIRST)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", type=Path, help="where to write the lines")
    parser.add_argument("--members", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=80.0, help="no part starts later")
    parser.add_argument("--tune", action="store_true", help="measure the kernels at several sizes of their tiles")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "population_kernels measures CUDA devices, and this PyTorch sees none\n")
    start = time.monotonic()
    bench = Bench(clock_for("cuda"), options.members, options.batch, options.seconds)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bench.bandwidth / 1e12:.2f} TB/s")
    print("time, fewest bytes, time over floor, and the rate of what computes")
    if options.tune:
        tune(bench)
    else:
        run(bench, PARTS)
    print(f"{time.monotonic() - start:.0f} s")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Line)])
            writer.writeheader()
            writer.writerows(map(asdict, bench.lines))


if __name__ == "__main__":
    main()
