"""Measure one network's epoch in plain PyTorch on a GPU, as the baseline of populations.

    python benchmarks/plain_epoch.py [plain.csv]

One network with ReLU, written with torch.nn and RMSprop, in eager mode and float32 at batch 32, on random images of the
data set's size that are already on the GPU; no augmentation, no evaluation. The time of an epoch is extrapolated from
the median of three measurements of 100 steps.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from resnet56_step import resnet56
from torch import nn

from hullo.lab.spec.environment import environment
from hullo.lab.spec.paper import DATA_COLUMNS, Column

BATCH, STEPS, WARM_UP, TIMES = 32, 100, 20, 3
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


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "lenet5": lenet5,
    "kerasnet": kerasnet,
    "resnet56": lambda colors, side: resnet56(nn.ReLU),
}


def plain_epoch(column: Column) -> float:
    """Return the seconds of one network's epoch."""
    count, colors, side = SIZES[column.data]
    images = torch.rand(count, colors, side, side, device="cuda")
    labels = torch.randint(10, (count,), device="cuda")
    model = NETWORKS[column.network](colors, side).cuda()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)

    def train(steps: int) -> float:
        order = torch.randperm(count, device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        for indices in order[: steps * BATCH].split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(images[indices]), labels[indices]).backward()
            optimizer.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    train(WARM_UP)
    return statistics.median(train(STEPS) for _ in range(TIMES)) * count / BATCH


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU; PyTorch finds none")
    fields = vars(environment(torch.cuda.get_device_name()))
    rows = [
        {"column": str(column), "batch": BATCH, "epoch_s": round(plain_epoch(column), 4), **fields}
        for column in DATA_COLUMNS
    ]
    for row in rows:
        print(f"{row['column']}: {row['epoch_s']:.2f} s for one network's epoch")
    for path in map(Path, sys.argv[1:2]):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
