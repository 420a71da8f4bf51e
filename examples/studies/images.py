"""Does a learned activation fit images better? Networks of sines (SIREN) that map coordinates to pixels.

    python examples/studies/images.py FOLDER --seeds 8 --output runs/images.jsonl

Four layers of 256 and omega 30, as in SIREN, whose sine is the fixed activation; FINER's is another one, here without
its initial biases. Images stand for seeds: the first of the folder choose learning rates, the last are the test, each
fitted by a network of its own. The score is minus the peak signal-to-noise ratio in decibels.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from own_bases import OMEGA
from PIL import Image, ImageOps
from study import FRESH, Candidate, Make, Run, Scores, Train, UserError, at_rates, fixed, main, populate, results
from torch import Tensor, nn

import hullo
from hullo.population import Adam, capture
from hullo.population.schedules import cosine

RATES = (1e-4, 3e-4, 1e-3)


def linear(*bases: str, **options: Any) -> Make:
    return lambda width: hullo.LinearHull(*bases, init=bases[0], strict=False, **options)


CANDIDATES = {
    **fixed("sin", "finer", "relu"),
    "sin, control": Candidate(linear("sin", "constant")),
    "sin, learned frequency": Candidate(linear("sin", inner_scale="hull")),
    "linear of sin and cosine": Candidate(linear("sin", "cosine")),
    **at_rates("linear of two sines", linear("sin", "sin(2)"), 10),
    "linear of two sines per channel": Candidate(
        lambda width: linear("sin", "sin(2)", groups=width, channel_dim=-1)(width)
    ),
    "linear of three sines": Candidate(linear("sin", "sin(0.5)", "sin(2)")),
    "linear of two sines, learned frequencies": Candidate(linear("sin", "sin(2)", inner_scale="base")),
    "affine of two sines": Candidate(lambda width: hullo.AffineHull("sin", "sin(2)", init="sin", strict=False)),
    "linear of sin and identity": Candidate(linear("sin", "identity")),
    "linear of finer and sin": Candidate(linear("finer", "sin")),
}


class Siren(nn.Module):
    def __init__(self, channels: int, make: Make, width: int, layers: int) -> None:
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
    runs: Sequence[Run],
    read_image: Callable[[int], Tensor],
    network: Callable[[Make], nn.Module],
    steps: int,
    device: torch.device,
) -> list[Scores]:
    """Fit an image with each run; return minus the ratios in decibels."""
    start = time.perf_counter()
    targets = torch.stack([read_image(run.seed) for run in runs]).to(device)
    height, width = targets.shape[1:3]
    axes = [torch.linspace(-1, 1, size, device=device) for size in (height, width)]
    coordinates = torch.cartesian_prod(*axes)
    population, settings = populate(runs, CANDIDATES, network, device)
    optimizer = Adam(population, schedule=cosine(steps), **settings)

    def losses() -> Tensor:
        return (population(coordinates, in_dims=None) - targets.flatten(1, 2)).square().mean((1, 2))

    def step() -> None:
        optimizer.zero_grad()
        losses().sum().backward()
        optimizer.step()

    take = capture(step, population, optimizer)
    for _ in range(steps):
        take()
    with torch.no_grad():
        scores = 10 * (losses() / 4).log10()  # pixels are numbers from -1 to 1
    return results(population, torch.stack([scores, scores], 1), start)


def open_train(given: argparse.Namespace, device: torch.device) -> Train:
    files = sorted(path for path in given.folder.iterdir() if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"))
    fresh = given.first_seed + given.seeds - FRESH
    if given.choosing + fresh > len(files):
        raise UserError(f"{given.choosing} images to choose and {fresh} fresh ones are more than {len(files)}")

    def file_of(seed: int) -> Path:
        """Return the image of a seed: 0, 1, ... count from the start of the folder, fresh ones from its end."""
        return files[seed if seed < FRESH else FRESH - 1 - seed]

    def read_image(seed: int) -> Tensor:
        with Image.open(file_of(seed)) as image:
            small = ImageOps.fit(image.convert("RGB"), (given.size, given.size), Image.Resampling.LANCZOS)
        return torch.from_numpy(np.array(small)).float() / 127.5 - 1

    def network(make: Make) -> nn.Module:
        return Siren(3, make, given.width, given.layers)

    def train_runs(runs: Sequence[Run]) -> list[Scores]:
        found = train(runs, read_image, network, given.steps, device)
        return [{**scores, "image": file_of(run.seed).name} for run, scores in zip(runs, found, strict=True)]

    return train_runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder of images")
    parser.add_argument("--size", type=int, default=256, help="pixels of a side")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4, help="layers of sines")
    parser.add_argument("--steps", type=int, default=1000)
    main(parser, CANDIDATES, RATES, open_train)
