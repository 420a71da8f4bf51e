"""Measure one network's epoch in plain PyTorch, as the baseline of populations.

    python benchmarks/plain_epoch.py [--csv plain.csv]

One network with ReLU, written with torch.nn and RMSprop, in eager mode and float32 at batch 32, on random images of the
data set's size that are already on the device; no augmentation, no evaluation. The time of an epoch is extrapolated
from the median of three measurements of 100 steps; without a GPU, of one step, as a test.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo.lab.bench.harness import Harness
from hullo.lab.spec.paper import DATA_COLUMNS, Column

BATCH = 32
SIZES = {"fashion-mnist": (60_000, 1, 28), "cifar10": (50_000, 3, 32)}
"""For each data set: the number of training images, the channels, and the image size in pixels."""


def lenet5(colors: int, side: int) -> nn.Module:
    remaining = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        *(nn.Conv2d(colors, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(50 * remaining**2, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def kerasnet(colors: int, side: int) -> nn.Module:
    remaining = ((side - 2) // 2 - 2) // 2
    return nn.Sequential(
        *(nn.Conv2d(colors, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(64 * remaining**2, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10)),
    )


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


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "lenet5": lenet5,
    "kerasnet": kerasnet,
    "resnet56": lambda colors, side: resnet56(nn.ReLU),
}


def plain_epoch(harness: Harness, column: Column) -> float:
    """Return the seconds of one network's epoch."""
    count, colors, side = SIZES[column.data]
    steps = 1 if harness.tiny else 100
    images = torch.rand(BATCH if harness.tiny else count, colors, side, side, device=harness.device)
    labels = torch.randint(10, (len(images),), device=harness.device)
    model = NETWORKS[column.network](colors, side).to(harness.device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)

    def train() -> None:
        for indices in torch.randperm(len(images), device=harness.device)[: steps * BATCH].split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(images[indices]), labels[indices]).backward()
            optimizer.step()

    return harness.compare({"plain": train}, warm_up=1)["plain"].median / steps * count / BATCH


def main(arguments: list[str] | None = None) -> None:
    harness = Harness(__doc__, rounds=3)
    harness.start(arguments)
    for column in DATA_COLUMNS:
        harness.add(column=str(column), batch=BATCH, epoch_s=round(plain_epoch(harness, column), 4))


if __name__ == "__main__":
    main()
