"""Measure one network's epoch in plain PyTorch, as the baseline of populations.

    python benchmarks/plain_epoch.py [--csv plain.csv]

One network with ReLU and RMSprop, in eager mode and float32 at batch 32, on random images of the data set's size that
are already on the device; no augmentation, no evaluation. The time of an epoch is extrapolated from the median of three
measurements of 100 steps; without a GPU, of one step, as a test.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from harness import Harness

from hullo.lab import networks
from hullo.lab.spec.paper import DATA_COLUMNS, Column

BATCH = 32
SIZES = {"fashion-mnist": (60_000, 1, 28), "cifar10": (50_000, 3, 32)}
"""For each data set: the number of training images, the channels, and the image size in pixels."""


def plain_epoch(harness: Harness, column: Column) -> float:
    """Return the seconds of one network's epoch."""
    count, colors, side = SIZES[column.data]
    steps = 1 if harness.tiny else 100
    images = torch.rand(BATCH if harness.tiny else count, colors, side, side, device=harness.device)
    labels = torch.randint(10, (len(images),), device=harness.device)
    model = networks.build(column.network, activation="relu", in_channels=colors, image_size=side).to(harness.device)
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
