"""Measure what a hull costs in a real network: a training step of ResNet-56, on a GPU, in a CUDA graph.

    python benchmarks/resnet56_step.py

Prints, for each activation: the median time of a step, its ratio to ReLU's, and the peak memory. Batch 128 of 32x32
images, bfloat16 autocast, channels last, SGD with momentum; the same weights and data for all, measured in turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "prelu": nn.PReLU,
    "affine(identity,relu,tanh)": lambda: hullo.AffineHull("identity", "relu", "tanh"),
    "convex(identity,relu,tanh)": lambda: hullo.ConvexHull("identity", "relu", "tanh"),
}


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.activations = nn.ModuleList([activation(), activation()])
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.activations[0](self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return self.activations[1](y + self.shortcut(x))


def resnet56(activation: Callable[[], nn.Module]) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), activation()]
    inputs = 16
    for outputs in (16, 32, 64):
        for depth in range(9):
            layers.append(Block(inputs, outputs, 2 if depth == 0 and outputs > 16 else 1, activation))
            inputs = outputs
    return nn.Sequential(*layers, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10))


def captured_step(activation: Callable[[], nn.Module]) -> tuple[torch.cuda.CUDAGraph, float, Callable[[], None]]:
    """Return a training step as a CUDA graph, its peak memory in MiB, and the step, which owns what the graph reads."""
    torch.manual_seed(0)
    model = resnet56(activation).cuda().to(memory_format=torch.channels_last)
    groups = hullo.parameter_groups(model, lr=1e-4)
    optimizer = torch.optim.SGD(groups, momentum=0.9, foreach=True)
    x = torch.randn(128, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(10, (128,), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = F.cross_entropy(model(x).float(), labels)
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph, (torch.cuda.max_memory_allocated() - before) / 2**20, step


def main() -> None:
    graphs = {name: captured_step(activation) for name, activation in ACTIVATIONS.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(60):
        for name, (graph, _, _) in graphs.items():
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    medians = {name: statistics.median(values[10:]) for name, values in times.items()}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, hullo {hullo.__version__}")
    for name, median in medians.items():
        print(f"{name:28s} {median:7.3f} ms {median / medians['relu']:6.3f} x relu {graphs[name][1]:8.0f} MiB")


if __name__ == "__main__":
    main()
