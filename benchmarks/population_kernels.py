"""Measure the fused kernels of a population beside the operations that they replace, on a GPU, each in a CUDA graph.

    python benchmarks/population_kernels.py --csv rows.csv

The layers are those of KerasNet, LeNet-5 and ResNet-56 on CIFAR-10, with 60 members at batch 32 in bfloat16, the crops
and the optimizer of one AlexNet at batch 256, and the attention of nanoGPT and BERT with 8 members. Every row has the
median time of a variant, in turns with others, beside its floor: the fewest bytes that must move, over the bandwidth of
a large copy. Tensors are reused at once, as in training, so small ones may be in the cache. A part that fails is
reported, and the others continue.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from clocks import Step, Timing, take_turns
from harness import Harness, capture_steps
from torch import Tensor

import hullo
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.lab import networks
from hullo.lab.data import ilsvrc2012
from hullo.lab.data.augment import draw_moves, draw_order
from hullo.parametrizations import get_parametrization
from hullo.population import SGD, Population, RMSprop, kernels
from hullo.population.images import move, scale
from hullo.population.kernels import act_pool_drop as pooled
from hullo.population.kernels import bn_act as norm
from hullo.population.kernels import dropout
from hullo.population.kernels import input_conv as first
from hullo.population.kernels.attention import attend
from hullo.population.kernels.convolution import convolve
from hullo.population.rules import Context
from hullo.population.rules.layers import drop
from hullo.population.values import Value

HALF = torch.bfloat16
LAST = torch.channels_last

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

        laps = take_turns({name: partial(once, steps) for name, steps in replays.items()}, self.rounds)
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


TRIO = tuple(hullo.get_base(name) for name in ("identity", "relu", "tanh"))


def passes(function: Callable[[], Tensor], leaves: list[Tensor]) -> dict[str, Step]:
    """Return a function, and the gradients of its result for the leaves."""
    outputs: list[Tensor] = []
    gradient = torch.randn_like(function().detach())

    def forward() -> None:
        outputs[:] = [function()]

    return {"forward": forward, "backward": lambda: torch.autograd.grad(outputs[0], leaves, gradient)}


def dropout_context(bench: Bench) -> Context:
    """Return the context of a dropout."""
    numbers = torch.arange(bench.members, device=bench.device)
    return Context(bench.members, numbers, numbers)


def plain_drop(state: Context, x: Tensor, rate: float, dim: int) -> Tensor:
    """Drop by plain operations."""
    with mock.patch.object(kernels, "support", return_value=False):
        dropped: Value = drop(state, Value(x, dim), rate, True)
    return dropped.tensor


# The parts, each a function of a layer's name.


OPTIMIZERS = {
    "kerasnet": partial(RMSprop, lr=1e-4),
    "lenet5": partial(RMSprop, lr=1e-4),
    "alexnet": partial(SGD, lr=1e-2, momentum=0.9, weight_decay=5e-4),
}
"""AlexNet is one network, the others are populations."""


def optimizer_step(bench: Bench, kind: str) -> None:
    alone = kind == "alexnet"
    sizes = {"image_size": 227, "num_classes": 1000} if alone else {}
    network = networks.build(kind, activation="affine(identity,relu,tanh)", **sizes)
    members = 1 if alone else bench.members

    def step(copies: torch.dtype | None, fused: bool) -> dict[str, Step]:
        population = Population([copy.deepcopy(network) for _ in range(members)]).to(bench.device)
        with mock.patch.object(kernels, "support", return_value=fused):
            optimizer = OPTIMIZERS[kind](population, copies=copies)
        for leaf in optimizer.leaves.values():
            leaf.grad = torch.randn_like(leaf)
        return {"step": optimizer.step}

    numbers = members * sum(parameter.numel() for parameter in network.parameters())
    makes = {
        "plain": lambda: step(None, False),
        "fused": lambda: step(None, True),
        "fused, bfloat16 gradients and copies": lambda: step(HALF, True),
    }
    bench.measure("optimizer", kind, makes, {"step": 20 * numbers})  # either way


def crops(bench: Bench, layer: str) -> None:
    count = 256
    images = torch.randint(256, (count, 256, 256, 3), dtype=torch.uint8, device=bench.device)
    mean = 255 * torch.rand(256, 256, 3, device=bench.device)
    seeds, numbers = torch.zeros(1, dtype=torch.int64, device=bench.device), torch.arange(count, device=bench.device)
    (how,) = ilsvrc2012.draw_crops(seeds, 0, numbers[None])

    def plain() -> Tensor:
        with mock.patch.object(kernels, "support", return_value=False):
            return ilsvrc2012.crop(images, how, mean, HALF)

    makes = {
        "plain": lambda: {"crop": plain},
        "fused": lambda: {"crop": lambda: ilsvrc2012.crop(images, how, mean, HALF)},
    }
    bench.measure("crop", layer, makes, {"crop": 3 * size(plain()) // 2})  # one byte read for two written


FIRST = {  # outputs, side, same
    "kerasnet conv1": (32, 3, True),
    "lenet5 conv1": (20, 5, False),
    "resnet56 conv": (16, 3, True),
}


def first_convolution(bench: Bench, layer: str) -> None:
    outputs, side, same = FIRST[layer]
    k, pad, seeds = bench.members, side // 2 if same else 0, torch.arange(bench.members, device=bench.device)
    images = torch.randint(256, (10_000, 3, 32, 32), dtype=torch.uint8, device=bench.device)
    order = draw_order(seeds, 0, len(images))[:, : bench.batch]
    given = images, order, draw_moves(seeds, 0, order, (32, 32))
    weight = torch.randn(k * outputs, 3, side, side, device=bench.device).to(HALF).requires_grad_()
    bias = torch.randn(k * outputs, device=bench.device).to(HALF).requires_grad_()

    def plain() -> Tensor:
        images = scale(move(*given).permute(1, 3, 4, 0, 2).flatten(3), HALF).permute(0, 3, 1, 2)
        return F.conv2d(images, weight, bias, padding=pad, groups=k)

    makes = {
        "move, scale, conv2d": lambda: passes(plain, [weight, bias]),
        "from bytes": lambda: passes(
            lambda: first.convolve(*given, weight, bias, same=same, dtype=HALF)[0], [weight, bias]
        ),
    }
    results = bench.batch * k * outputs * (32 + 2 * pad - side + 1) ** 2
    moved = HALF.itemsize * results + k * bench.batch * images[0].numel()
    least = {"forward": moved, "backward": moved}
    bench.measure("first", layer, makes, least, 2.0 * results * weight[0].numel())


POOLS = {  # channels, size, rate, flat
    "kerasnet pool1": (32, 30, 0.25, False),
    "kerasnet pool2": (64, 13, 0.25, True),
    "lenet5 pool1": (20, 28, 0.0, False),
    "lenet5 pool2": (50, 10, 0.0, True),
}


def pool(bench: Bench, layer: str) -> None:
    channels, side, rate, flat = POOLS[layer]
    k, spec = bench.members, CombineSpec(TRIO, get_parametrization("given"), 1)
    x = bench.halves(bench.batch, k * channels, side, side).requires_grad_()
    rows = torch.randn(k, 3, device=bench.device, requires_grad=True)
    bias = torch.randn(k * channels, device=bench.device).to(HALF).requires_grad_()
    state = dropout_context(bench)

    def three(x: Tensor) -> Tensor:
        y = F.max_pool2d(apply(x, rows, spec), 2)
        wide = torch.unflatten(y, 1, (k, channels))
        wide = plain_drop(state, wide, rate, 1) if rate else wide
        return wide.permute(1, 0, 3, 4, 2).flatten(2) if flat else wide.flatten(1, 2)

    def one(bias: Tensor | None) -> Tensor:
        drops = state.seeds, state.steps, 0, rate
        return pooled.combine_pool_drop(x, rows, TRIO, *drops, bias=bias, flat=flat)

    makes = {
        "combine, pool, drop": lambda: passes(lambda: three(x), [x, rows]),
        "fused": lambda: passes(lambda: one(None), [x, rows]),
        "bias, combine, pool, drop": lambda: passes(lambda: three(x + bias.view(-1, 1, 1)), [x, rows, bias]),
        "fused with bias": lambda: passes(lambda: one(bias), [x, rows, bias]),
    }
    least = {"forward": size(x) * 5 // 4, "backward": size(x) * 9 // 4}
    bench.measure("pool", layer, makes, least)


NORMS = {"resnet56 16": (16, 32), "resnet56 32": (32, 16), "resnet56 64": (64, 8)}  # channels, size


def normalization(bench: Bench, layer: str) -> None:
    channels, side = NORMS[layer]
    k, spec = bench.members, CombineSpec(TRIO, get_parametrization("given"), 1)
    x, residual = (bench.halves(bench.batch, k * channels, side, side).requires_grad_() for _ in range(2))
    rows = torch.randn(k, 3, device=bench.device, requires_grad=True)
    ones, zeros = (torch.full((k * channels,), value, device=bench.device) for value in (1.0, 0.0))
    running, affine = (zeros.clone(), ones.clone()), (ones.requires_grad_(), zeros.requires_grad_())
    constants = {"momentum": 0.01, "eps": 1e-3}

    def plain(other: Tensor | None) -> Tensor:
        y = F.batch_norm(x, *running, *affine, True, **constants)
        return apply(y if other is None else y + other, rows, spec)

    def fused(other: Tensor | None) -> Tensor:
        return norm.normalize_combine(x, *running, *affine, rows, TRIO, True, **constants, residual=other)[0]

    def compared(name: str, three: str, other: Tensor | None, times: tuple[int, int]) -> None:
        leaves = [x, *affine, rows, *([] if other is None else [other])]
        makes = {
            three: lambda: passes(lambda: plain(other), leaves),
            "fused": lambda: passes(lambda: fused(other), leaves),
        }
        least = {"forward": times[0] * size(x), "backward": times[1] * size(x)}
        bench.measure("norm", name, makes, least)

    # forward: x twice, the residual, y; backward: x twice, dy twice or dy, the residual, ds written and read, dx
    compared(layer, "batch_norm, combine", None, (3, 5))
    compared(f"{layer} + x", "batch_norm, add, combine", residual, (4, 7))


def features(bench: Bench, layer: str) -> None:
    x = torch.randn(bench.members, bench.batch, 512, device=bench.device).to(HALF).requires_grad_()
    state = dropout_context(bench)
    makes = {
        "drop": lambda: passes(lambda: plain_drop(state, x, 0.5, 0), [x]),
        "fused": lambda: passes(lambda: dropout.drop(x, state.seeds, state.steps, 2, 0.5), [x]),
    }
    least = dict.fromkeys(("forward", "backward"), 2 * size(x))
    bench.measure("dropout", layer, makes, least)


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int], groups: int
) -> Tensor:
    """Call PyTorch's convolution, which is cuDNN's; pad first where both sides need different padding."""
    before, after = padding
    if before != after:
        x, before = F.pad(x, (before, after) * 2), 0
    return F.conv2d(x, weight, bias, stride, before, groups=groups)


def ours(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int], groups: int) -> Tensor:
    """Call the population's convolution."""
    return convolve(x, weight, bias, members=groups, stride=stride, padding=padding)[0]


Convolution = Callable[[Tensor, Tensor, Tensor | None, int, tuple[int, int], int], Tensor]

VARIANTS: dict[str, tuple[Convolution, torch.memory_format]] = {  # the function, and the memory format of its weights
    "conv2d, weight contiguous": (conv2d, torch.contiguous_format),
    "conv2d, weight channels last": (conv2d, LAST),
    "ours": (ours, LAST),
}


class Layer(NamedTuple):
    inputs: int
    outputs: int
    side: int
    pixels: int  # along each side of the images
    stride: int = 1
    padding: tuple[int, int] = (0, 0)  # zeros before and after
    biased: bool = False


LAYERS = {
    "lenet5 conv1": Layer(3, 20, 5, 32),
    "resnet56 conv1": Layer(3, 16, 3, 32, padding=(1, 1)),
    "kerasnet conv2": Layer(32, 32, 3, 32),
    "kerasnet conv3": Layer(32, 64, 3, 15, padding=(1, 1), biased=True),
    "kerasnet conv4": Layer(64, 64, 3, 15),
    "lenet5 conv2": Layer(20, 50, 5, 14),
    "resnet56 16": Layer(16, 16, 3, 32, padding=(1, 1)),
    "resnet56 16 to 32": Layer(16, 32, 3, 32, stride=2, padding=(0, 1)),
    "resnet56 shortcut 32": Layer(16, 32, 1, 32, stride=2, biased=True),
    "resnet56 32": Layer(32, 32, 3, 16, padding=(1, 1)),
    "resnet56 32 to 64": Layer(32, 64, 3, 16, stride=2, padding=(0, 1)),
    "resnet56 shortcut 64": Layer(32, 64, 1, 16, stride=2, biased=True),
    "resnet56 64": Layer(64, 64, 3, 8, padding=(1, 1)),
}


ATTENTIONS = {"nanogpt": (8, 64, 6, 256, True), "bert": (8, 32, 4, 128, False)}
"""Members, batch, heads, positions, and whether attention is causal, with queries, keys and values in one tensor."""


def attention(bench: Bench, layer: str) -> None:
    members, batch, heads, positions, is_causal = ATTENTIONS[layer]
    whole = torch.randn(members, batch, positions, 3, heads, 64, device=bench.device).to(HALF)
    parts = [leaf(item) for item in whole.permute(3, 0, 1, 4, 2, 5)]
    numbers = torch.arange(members, device=bench.device)

    def plain() -> Tensor:
        inputs = (item.flatten(0, 1) for item in parts)
        return F.scaled_dot_product_attention(*inputs, dropout_p=0.2, is_causal=is_causal)

    makes = {
        "scaled_dot_product_attention": lambda: passes(plain, parts),
        "fused": lambda: passes(
            lambda: attend(*parts, None, numbers, numbers, 2, 0.2, is_causal=is_causal),
            parts,
        ),
    }
    least = {"forward": 4 * size(parts[0]), "backward": 8 * size(parts[0])}
    bench.measure("attention with dropout", layer, makes, least)


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def convolution(bench: Bench, name: str) -> None:
    layer, k = LAYERS[name], bench.members
    x = bench.halves(bench.batch, k * layer.inputs, layer.pixels, layer.pixels)
    results = (layer.pixels + sum(layer.padding) - layer.side) // layer.stride + 1
    dy = bench.halves(bench.batch, k * layer.outputs, results, results)
    weight = torch.randn(k * layer.outputs, layer.inputs, layer.side, layer.side, device=bench.device).to(HALF)
    bias = torch.randn(k * layer.outputs, device=bench.device).to(HALF) if layer.biased else None

    def steps(convolve: Convolution, layout: torch.memory_format) -> dict[str, Step]:
        w = weight.contiguous(memory_format=layout)
        images, learned = leaf(x), (leaf(w), None if bias is None else leaf(bias))
        outputs: list[Tensor] = []

        def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
            outputs[:] = [convolve(x, weight, bias, layer.stride, layer.padding, k)]

        def backward(*leaves: Tensor | None) -> tuple[Tensor, ...]:
            return torch.autograd.grad(outputs[0], [wanted for wanted in leaves if wanted is not None], dy)

        return {
            "forward": lambda: forward(images, w, bias),
            "backward data": lambda: backward(images),
            "forward again": lambda: forward(x, *learned),
            "backward weight": lambda: backward(*learned),
        }

    variants = {variant: partial(steps, *how) for variant, how in VARIANTS.items()}
    used = x if layer.side >= layer.stride else x[..., :: layer.stride, :: layer.stride]
    least = {
        "forward": size(used, weight, dy),
        "backward data": size(dy, weight, x),
        "backward weight": size(dy, used, weight),
    }
    bench.measure("convolution", name, variants, least, 2.0 * dy.numel() * weight[0].numel())


PARTS: list[Part] = [
    (optimizer_step, OPTIMIZERS),
    (crops, ("alexnet",)),
    (pool, POOLS),
    (normalization, NORMS),
    (first_convolution, FIRST),
    (convolution, LAYERS),
    (features, ("kerasnet linear1",)),
    (attention, ATTENTIONS),
]


def main(arguments: list[str] | None = None) -> None:
    bench = Bench(__doc__)
    bench.start(arguments)
    if bench.tiny:
        raise SystemExit("this benchmark needs a GPU; PyTorch finds none")
    bench.run(PARTS)


if __name__ == "__main__":
    main()
