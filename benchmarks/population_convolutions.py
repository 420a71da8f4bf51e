"""Measure the convolutions of a population against the memory bandwidth, each in a CUDA graph.

    python benchmarks/population_convolutions.py --csv rows.csv

The convolutions of KerasNet, LeNet-5 and ResNet-56 on CIFAR-10; `population_kernels.py` measures the first from bytes:
60 members at batch 32 in bfloat16, with a bias if the layer adds it itself. `variants.py` has the method.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from variants import HALF, LAST, Bench, Step, size


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int], groups: int
) -> Tensor:
    """Call PyTorch's convolution, which is cuDNN's; pad first where both sides need different padding."""
    before, after = padding
    if before != after:
        x, before = F.pad(x, (before, after) * 2), 0
    return F.conv2d(x, weight, bias, stride, before, groups=groups)


def ours(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int], groups: int) -> Tensor:
    """Call the laboratory's convolution."""
    from hullo.population.kernels.convolution import convolve

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

    variants = {
        variant: functools.partial(steps, *how)
        for variant, how in VARIANTS.items()
        if not (bench.tiny and variant == "ours")
    }
    used = x if layer.side >= layer.stride else x[..., :: layer.stride, :: layer.stride]
    least = {
        "forward": size(used, weight, dy),
        "backward data": size(dy, weight, x),
        "backward weight": size(dy, used, weight),
    }
    bench.measure("convolution", name, variants, least, 2.0 * dy.numel() * weight[0].numel())


def main(arguments: list[str] | None = None) -> None:
    bench = Bench(__doc__)
    bench.start(arguments)
    bench.run([(convolution, LAYERS)])


if __name__ == "__main__":
    main()
