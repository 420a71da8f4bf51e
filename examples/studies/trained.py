"""Does a swap help a residual network that is trained already? ResNet-20 with ReLU on CIFAR-10, trained on.

    python examples/studies/trained.py --before 100 --epochs 20 --seeds 5 --output runs/trained.jsonl

For every seed, a network with ReLU is trained by the recipe of convolutions.py. Each candidate then starts with its
weights, computes what it computes, and trains on for another cycle of fewer epochs. So does the network as it is, and
one with a hull that is frozen, the control. "not trained on" is the network as it was. Errors in percent of the images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from convolutions import CANDIDATES as BEFORE
from convolutions import add_image_arguments, load_images
from convolutions import train as train_networks
from study import Candidate, Run, Scores, Train, at_rates, fixed, in_groups, main
from torch import Tensor, nn

from hullo import AffineHull, LinearHull
from hullo.lab.files import atomic_write
from hullo.population import Population

RATES = (0.005, 0.02, 0.08)
HULL = partial(AffineHull, "identity", "relu", "tanh", init="relu")
STILL = "not trained on"
CANDIDATES = {
    **fixed("relu"),
    "frozen hull": Candidate(lambda width: HULL().requires_grad_(False), is_fixed=True),
    STILL: Candidate(lambda width: nn.ReLU()),
    "prelu from relu": Candidate(lambda width: nn.PReLU(init=0.0)),
    "control": Candidate(lambda width: LinearHull("constant", "relu", init="relu")),
    **at_rates("affine from relu", lambda width: HULL(), 10, 30),
    "affine from relu per channel": Candidate(lambda width: HULL(groups=width, channel_dim=1)),
}
States = Mapping[int, Mapping[str, Tensor]]
"""Weights by seed."""


def train_after(
    given: argparse.Namespace,
    after: int,
    train_before: Callable[[Sequence[Run]], Population],
    train_on: Callable[[Sequence[Run], States, int], Sequence[Scores]],
) -> Train:
    """Return a function that trains runs on.

    Args:
        given: the arguments of the study; networks before the swap are kept beside its file of runs.
        after: epochs or steps after the swap.
        train_before: trains a network for each run, whose candidate is "before".
        train_on: goes on with networks of some weights, for so many epochs or steps.
    """
    path = given.output.with_suffix(".pt")

    def states() -> States:
        """Return the weights of all seeds, trained when they are first asked for."""
        known: dict[int, dict[str, Tensor]] = torch.load(path) if path.exists() else {}
        fresh = range(given.first_seed, given.first_seed + given.seeds)
        missing = [seed for seed in (*range(given.choosing), *fresh) if seed not in known]
        if missing:
            population = train_before([Run("before", given.before_lr, seed) for seed in missing])
            known |= {seed: population[k].cpu().state_dict() for k, seed in enumerate(missing)}
            with atomic_write(path) as file:
                torch.save(known, file)
        return known

    def train(runs: Sequence[Run]) -> Sequence[Scores]:
        before = states()
        return in_groups(
            runs,
            lambda run: run.candidate == STILL,
            lambda some: train_on(some, before, 0 if some[0].candidate == STILL else after),
        )

    return train


def add_swap_arguments(parser: argparse.ArgumentParser, unit: str, before: int, after: int, before_lr: float) -> None:
    """Add the arguments of the training before the swap and after it."""
    parser.add_argument("--before", type=int, default=before, help=f"{unit} before the swap")
    parser.add_argument("--before-lr", type=float, default=before_lr, help="the learning rate of these")
    parser.add_argument(f"--{unit}", type=int, default=after, help=f"{unit} after it")


def open_train(given: argparse.Namespace, device: torch.device) -> Train:
    images = load_images(given, device)

    def train_before(runs: Sequence[Run]) -> Population:
        return train_networks(runs, images, given.network, given.before, {"before": BEFORE["relu"]})[0]

    def train_on(runs: Sequence[Run], states: States, epochs: int) -> Sequence[Scores]:
        return train_networks(runs, images, given.network, epochs, CANDIDATES, states)[1]

    return train_after(given, given.epochs, train_before, train_on)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_image_arguments(parser)
    add_swap_arguments(parser, "epochs", before=100, after=20, before_lr=0.1)
    main(parser, CANDIDATES, RATES, open_train)
