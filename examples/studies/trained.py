"""Does a swap help a residual network that is trained already? ResNet-20 with ReLU on CIFAR-10, trained on.

    python examples/studies/trained.py --before 100 --epochs 20 --seeds 5 --output runs/trained.jsonl

For every seed, a network with ReLU is trained by the recipe of convolutions.py. Each candidate then starts with its
weights, computes what it computes, and trains on for another cycle of fewer epochs. So does the network as it is, and
one with a hull that is frozen, the control. "not trained on" is the network as it was. Errors in percent of the images.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import torch
from convolutions import CANDIDATES as BEFORE
from convolutions import add_arguments, load_images
from convolutions import train as train_networks
from study import Candidate, Run, Train, main
from torch import Tensor, nn

from hullo import AffineHull
from hullo.lab.data.dataset import Dataset
from hullo.lab.files import atomic_write

RATES = (0.005, 0.02, 0.08)
HULL = partial(AffineHull, "identity", "relu", "tanh", init="relu")
CANDIDATES = {
    "relu": Candidate(lambda width: nn.ReLU()),
    "frozen hull": Candidate(lambda width: HULL().requires_grad_(False)),
    "not trained on": Candidate(lambda width: nn.ReLU(), is_learned=True),
    "prelu from relu": Candidate(lambda width: nn.PReLU(init=0.0), is_learned=True),
    "affine from relu": Candidate(lambda width: HULL(), is_learned=True),
    "affine from relu, rate x10": Candidate(lambda width: HULL(), 10.0, is_learned=True),
    "affine from relu, rate x30": Candidate(lambda width: HULL(), 30.0, is_learned=True),
    "affine from relu per channel": Candidate(lambda width: HULL(groups=width, channel_dim=1), is_learned=True),
}


class Before:
    """Networks with ReLU by seed, trained when they are first asked for, and kept beside the file of runs."""

    def __init__(self, given: argparse.Namespace, images: Dataset) -> None:
        self.given, self.images, self.path = given, images, given.output.with_suffix(".pt")
        self.states: dict[int, dict[str, Tensor]] = torch.load(self.path) if self.path.exists() else {}

    def train(self, seeds: Sequence[int]) -> dict[int, dict[str, Tensor]]:
        """Return the weights of some seeds."""
        if missing := [seed for seed in seeds if seed not in self.states]:
            runs = [Run("relu", self.given.before_lr, seed) for seed in missing]
            population, _ = train_networks(runs, self.images, self.given.depth, self.given.before, BEFORE)
            self.states |= {seed: population[k].state_dict() for k, seed in enumerate(missing)}
            with atomic_write(self.path) as file:
                torch.save(self.states, file)
        return self.states


def open_train(given: argparse.Namespace, device: torch.device) -> Train:
    images = load_images(given, device)
    before = Before(given, images)

    def train(runs: Sequence[Run]) -> list[dict[str, float]]:
        states = before.train(sorted({run.seed for run in runs}))
        scores: dict[Run, dict[str, float]] = {}
        for is_still in (False, True):
            some = [run for run in runs if (run.candidate == "not trained on") == is_still]
            epochs = 0 if is_still else given.epochs
            found = train_networks(some, images, given.depth, epochs, CANDIDATES, states)[1] if some else []
            scores |= dict(zip(some, found, strict=True))
        return [scores[run] for run in runs]

    return train


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--before", type=int, default=100, help="epochs before the swap")
    parser.add_argument("--before-lr", type=float, default=0.1, help="the learning rate of these")
    parser.add_argument("--epochs", type=int, default=20, help="epochs after it")
    main(parser, CANDIDATES, RATES, open_train)
