"""Does a learned activation fit images better? Networks of sines (SIREN) that map coordinates to pixels.

    python examples/studies/images.py FOLDER --seeds 8 --output runs/images.jsonl

Three hidden layers of 256 and omega 30. The first image of the folder chooses learning rates, the others are the test:
each is a "seed", fitted by a network of its own. The score is minus the peak signal-to-noise ratio in decibels.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from study import Candidate, Make, Run, Train, main, populate
from torch import Tensor, nn

from hullo import AffineHull, LinearHull
from hullo.population import Adam, capture
from hullo.population.schedules import cosine

OMEGA, RATES = 30.0, (1e-4, 3e-4, 1e-3)
CANDIDATES = {
    "sin": Candidate(lambda width: LinearHull("sin", init="sin").requires_grad_(False)),
    "relu": Candidate(lambda width: nn.ReLU()),
    "linear of two sines": Candidate(
        lambda width: LinearHull("sin", "sin(2)", init="sin", strict=False), is_learned=True
    ),
    "affine of two sines": Candidate(
        lambda width: AffineHull("sin", "sin(2)", init="sin", strict=False), is_learned=True
    ),
    "sin, learned frequency": Candidate(
        lambda width: LinearHull("sin", init="sin", inner_scale="hull"), is_learned=True
    ),
    "linear of sin and identity": Candidate(lambda width: LinearHull("identity", "sin", init="sin"), is_learned=True),
}


class Siren(nn.Module):
    def __init__(self, channels: int, make: Make, width: int = 256, layers: int = 3) -> None:
        super().__init__()
        sizes = [2, *[width] * layers]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.acts = nn.ModuleList(make(width) for _ in range(layers))
        self.out = nn.Linear(width, channels)
        for number, layer in enumerate([*self.layers, self.out]):
            bound = 1 / layer.in_features if number == 0 else math.sqrt(6 / layer.in_features) / OMEGA
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        for layer, act in zip(self.layers, self.acts, strict=True):
            x = act(OMEGA * layer(x))
        return self.out(x)


def train(
    runs: Sequence[Run], read_image: Callable[[int], Tensor], steps: int, device: torch.device
) -> list[dict[str, float]]:
    """Fit an image with each run; return minus the ratios in decibels."""
    start = time.perf_counter()
    targets = torch.stack([read_image(run.seed) for run in runs]).to(device)
    height, width, channels = targets.shape[1:]
    axes = [torch.linspace(-1, 1, size, device=device) for size in (height, width)]
    coordinates = torch.cartesian_prod(*axes)
    population, settings = populate(runs, CANDIDATES, lambda make: Siren(channels, make))
    optimizer = Adam(population.to(device), schedule=cosine(steps), **settings)

    def step() -> Tensor:
        optimizer.zero_grad()
        losses = (population(coordinates, in_dims=None) - targets.flatten(1, 2)).square().mean((1, 2))
        losses.sum().backward()
        optimizer.step()
        return losses.detach()

    take = capture(step, population, optimizer)
    for _ in range(steps):
        losses = take()
    scores = (10 * (losses / 4).log10()).tolist()  # pixels are numbers from -1 to 1
    seconds = (time.perf_counter() - start) / len(runs)
    return [{"val": score, "test": score, "seconds": seconds} for score in scores]


def open_train(given: argparse.Namespace, device: torch.device) -> Train:
    files = sorted(path for path in given.folder.iterdir() if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"))

    def read_image(seed: int) -> Tensor:
        """Return an image for a seed: the first of the folder for 0, the others for 100, 101 and so on."""
        with Image.open(files[0 if seed < 100 else seed - 99]) as image:
            small = image.convert("RGB").resize((given.size, given.size))
        return torch.from_numpy(np.array(small)).float() / 127.5 - 1

    return lambda runs: train(runs, read_image, given.steps, device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder with one image more than fresh seeds")
    parser.add_argument("--size", type=int, default=256, help="pixels of a side")
    parser.add_argument("--steps", type=int, default=1000)
    main(parser, CANDIDATES, RATES, open_train)
