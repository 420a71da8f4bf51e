"""Measure layers of a population with the kernels of populations and without them, each in a CUDA graph.

    python benchmarks/population_kernels.py --csv rows.csv [--layers "kerasnet conv2" ...] [--members 60]

The layers are those of KerasNet, LeNet-5 and ResNet-56 on CIFAR-10, in bfloat16, and the attention of nanoGPT and BERT.
A row has the median time of a forward pass, or of both passes, in turns, beside its floor: the
fewest bytes that must move, over the bandwidth of a large copy. That is inputs, parameters and outputs once, and in the
backward pass these and their gradients. Tensors are reused at once, as in training, so small ones may be in the cache.
A layer that fails is reported, and the others continue. Without a GPU, there are no kernels: a test.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from unittest import mock

import torch
import torch.nn.functional as F
from harness import Harness, Step, Timing, capture_steps
from torch import Tensor, nn

from hullo import AffineHull
from hullo.population import SGD, AugmentedImages, Population, kernels

HALF = torch.bfloat16
hull = partial(AffineHull, "identity", "relu", "tanh")


class Norm(nn.Module):
    """A batch norm, a residual connection and a hull."""

    def __init__(self, channels: int, *, residual: bool) -> None:
        super().__init__()
        self.norm, self.act, self.residual = nn.BatchNorm2d(channels), hull(), residual

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.act(y + x if self.residual else y)


class Attention(nn.Module):
    """Attention with dropout; queries, keys and values are one tensor."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x.permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=self.is_causal)


def strided(inputs: int, outputs: int) -> nn.Module:
    """Return a convolution with zeros on one side, as in Keras."""
    return nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(inputs, outputs, 3, stride=2, bias=False))


def conv(inputs: int, outputs: int, side: int, padding: int = 0, stride: int = 1, bias: bool = False) -> nn.Module:
    return nn.Conv2d(inputs, outputs, side, stride, padding, bias=bias)


def pool(*after: nn.Module) -> nn.Module:
    return nn.Sequential(hull(), nn.MaxPool2d(2), *after)


FIRST = {  # these read bytes of images, flipped and shifted
    "kerasnet conv1": (lambda: conv(3, 32, 3, padding=1, bias=True), (3, 32, 32)),
    "lenet5 conv1": (lambda: conv(3, 20, 5, bias=True), (3, 32, 32)),
    "resnet56 conv1": (lambda: conv(3, 16, 3, padding=1), (3, 32, 32)),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = FIRST | {
    "kerasnet conv2": (lambda: conv(32, 32, 3), (32, 32, 32)),
    "kerasnet conv3": (lambda: conv(32, 64, 3, padding=1, bias=True), (32, 15, 15)),
    "kerasnet conv4": (lambda: conv(64, 64, 3), (64, 15, 15)),
    "lenet5 conv2": (lambda: conv(20, 50, 5), (20, 14, 14)),
    "resnet56 16": (lambda: conv(16, 16, 3, padding=1), (16, 32, 32)),
    "resnet56 16 to 32": (lambda: strided(16, 32), (16, 32, 32)),
    "resnet56 shortcut 32": (lambda: conv(16, 32, 1, stride=2, bias=True), (16, 32, 32)),
    "resnet56 32": (lambda: conv(32, 32, 3, padding=1), (32, 16, 16)),
    "resnet56 32 to 64": (lambda: strided(32, 64), (32, 16, 16)),
    "resnet56 shortcut 64": (lambda: conv(32, 64, 1, stride=2, bias=True), (32, 16, 16)),
    "resnet56 64": (lambda: conv(64, 64, 3, padding=1), (64, 8, 8)),
    "kerasnet pool1": (lambda: pool(nn.Dropout(0.25)), (32, 30, 30)),
    "kerasnet pool2": (lambda: pool(nn.Dropout(0.25), nn.Flatten()), (64, 13, 13)),
    "lenet5 pool1": (lambda: pool(), (20, 28, 28)),
    "lenet5 pool2": (lambda: pool(nn.Flatten()), (50, 10, 10)),
    "resnet56 norm 16": (lambda: Norm(16, residual=False), (16, 32, 32)),
    "resnet56 norm 32": (lambda: Norm(32, residual=False), (32, 16, 16)),
    "resnet56 norm 64": (lambda: Norm(64, residual=False), (64, 8, 8)),
    "resnet56 norm 64 + x": (lambda: Norm(64, residual=True), (64, 8, 8)),
    "kerasnet dropout": (lambda: nn.Dropout(0.5), (512,)),
    "nanogpt attention": (lambda: Attention(is_causal=True), (256, 3, 6, 64)),
    "bert attention": (lambda: Attention(is_causal=False), (128, 3, 4, 64)),
}
Passes = dict[str, tuple[Step, int]]
"""Steps by name, each with the bytes that it must move."""


def size(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def draw(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return inputs (members, batch, ...); images are in channels-last order, with the members side by side."""
    x = torch.randn(shape, device=device).to(HALF)
    if len(shape) == 5:
        members, _, channels, *_ = shape
        wide = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
        x = wide.unflatten(1, (members, channels)).transpose(0, 1)
    return x.requires_grad_()


def draw_images(members: int, batch: int, device: torch.device) -> AugmentedImages:
    images = torch.randint(256, (10_000, 3, 32, 32), dtype=torch.uint8, device=device)
    index = torch.randint(len(images), (members, batch), device=device)
    return AugmentedImages(images, index, torch.randint(2, (members, batch, 3), device=device))


def layer_passes(name: str, members: int, batch: int, device: torch.device) -> Passes:
    """Return the passes of a layer."""
    make, shape = LAYERS[name]
    population = Population([make() for _ in range(members)]).to(device)
    leaves: list[Tensor] = []
    if [*make().parameters()]:  # an optimizer makes the copies in bfloat16 that a step reads
        leaves += SGD(population, lr=0.0, copies=HALF if device.type == "cuda" else None).leaves.values()
    x = draw_images(members, batch, device) if name in FIRST else draw((members, batch, *shape), device)

    def forward() -> Tensor:
        with torch.autocast(device.type, HALF):
            return population(x)

    y = forward()
    slope = torch.randn_like(y)
    learned = leaves if name in FIRST else [*leaves, x]

    def both() -> None:
        for tensor in learned:
            tensor.grad = None
        forward().backward(slope)

    read = batch * members * 3 * 32 * 32 if name in FIRST else size(x)
    moved = read + size(*leaves, y)
    return {"forward": (forward, moved), "both": (both, 2 * moved + size(*learned))}


def main(arguments: list[str] | None = None) -> None:
    harness = Harness(__doc__, rounds=15)
    harness.parser.add_argument("--layers", nargs="+", choices=LAYERS, help="all by default")
    harness.parser.add_argument("--members", type=int, default=60)
    harness.parser.add_argument("--batch-size", type=int, default=32)
    options = harness.start(arguments)
    clock, device = harness.clock, harness.device
    source = torch.empty(clock.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / Timing.of(clock.laps(*[lambda: target.copy_(source)] * 9)).median
    print(f"copy {bandwidth / 1e12:.2f} TB/s", flush=True)
    counts = (2, 2) if harness.tiny else (options.members, options.batch_size)
    for layer in options.layers or LAYERS:
        with harness.report_failure(layer):
            measure(harness, layer, *counts, bandwidth)


def measure(harness: Harness, layer: str, members: int, batch: int, bandwidth: float) -> None:
    """Add a row for each variant and pass of a layer."""
    steps, moved, owners = {}, {}, []  # a graph replays what its steps own
    for variant in ("plain", "kernels"):
        plainly = mock.patch.object(kernels, "support", return_value=False)
        with plainly if variant == "plain" else nullcontext():
            passes = layer_passes(layer, members, batch, harness.device)
            owners.append(passes)
            for name, (step, moved[name]) in passes.items():
                (steps[variant, name],) = capture_steps(harness.device, step)
    times = harness.compare(steps)
    for name, variant in product(moved, ("plain", "kernels")):
        seconds, floor = times[variant, name].median, moved[name] / bandwidth
        row = {"microseconds": 1e6 * seconds, "megabytes": moved[name] / 1e6, "over_floor": seconds / floor}
        harness.add(layer=layer, variant=variant, passes=name, **row)


if __name__ == "__main__":
    main()
