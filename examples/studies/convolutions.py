"""Does a learned activation help a residual network with a modern recipe? ResNet-20 or ResNet-56 on CIFAR-10.

    python examples/studies/convolutions.py --network resnet20 --epochs 100 --seeds 5 --output runs/convolutions.jsonl

SGD with Nesterov's momentum, weight decay 5e-4, one cycle of the learning rate, crops and flips, batches of 128. A
tenth of the training images validates; the last epoch counts. Scores are errors in percent of the images.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from study import Candidate, Make, Run, Scores, Train, fixed, main, populate, results, settings
from torch import Tensor, nn

from hullo import AffineHull, ConvexHull
from hullo.lab import data
from hullo.lab.data.dataset import Dataset
from hullo.lab.networks.kerasnet import KerasNet
from hullo.lab.networks.resnet56 import ResNet
from hullo.population import SGD, Population, capture
from hullo.population.images import AugmentedImages
from hullo.population.schedules import one_cycle

BATCH, RATES = 128, (0.05, 0.1, 0.2)
NETWORKS: dict[str, Callable[[Make], nn.Module]] = {
    **{f"resnet{6 * n + 2}": lambda make, n=n: ResNet(make, n=n, he=True) for n in (1, 3, 9)},
    "kerasnet": lambda make: KerasNet(make),
}
LOOK = {"padding": "zeros", "mean": (0.491, 0.482, 0.447), "std": (0.247, 0.243, 0.262)}
CANDIDATES = {
    **fixed("relu", "gelu", "silu"),
    "prelu": Candidate(lambda width: nn.PReLU()),
    "prelu per channel": Candidate(nn.PReLU),
    "affine from relu": Candidate(lambda width: AffineHull("identity", "relu", "tanh", init="relu")),
    "affine from silu": Candidate(lambda width: AffineHull("identity", "tanh", "silu", init="silu", strict=False)),
    "affine uniform": Candidate(lambda width: AffineHull("identity", "relu", "tanh")),
    "convex uniform": Candidate(lambda width: ConvexHull("identity", "relu")),
    **settings("relu", 1),
}


def train(
    runs: Sequence[Run],
    images: Dataset,
    network: str,
    epochs: int,
    candidates: Mapping[str, Candidate] = CANDIDATES,
    trained: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> tuple[Population, list[Scores]]:
    """Train runs side by side, each with the same batches; return their errors after the last epoch, too."""
    start, device, count = time.perf_counter(), images.train_labels.device, len(runs)
    is_gpu = device.type == "cuda"
    population, settings = populate(runs, candidates, NETWORKS[network], device, trained)
    optimizer = SGD(
        population,
        momentum=0.9,
        nesterov=True,
        weight_decay=5e-4,
        schedule=one_cycle(max(1, epochs * (len(images.train_labels) // BATCH))),
        copies=torch.bfloat16 if is_gpu else None,
        **settings,
    )

    def outputs(source: Tensor, index: Tensor, moves: Tensor) -> Tensor:
        shown = AugmentedImages(source, index.expand(count, -1), moves.expand(count, -1, -1), **LOOK)
        with torch.autocast(device.type, torch.bfloat16, enabled=is_gpu):
            return population(shown).float()

    def step(index: Tensor, moves: Tensor) -> None:
        optimizer.zero_grad()
        logits, labels = outputs(images.train_images, index, moves), images.train_labels[index]
        torch.vmap(F.cross_entropy, in_dims=(0, None))(logits, labels).sum().backward()
        optimizer.step()

    @torch.no_grad()
    def error(source: Tensor, labels: Tensor) -> Tensor:
        population.eval()
        wrong = torch.zeros(count, device=device)
        for index in torch.arange(len(labels), device=device).split(500):
            still = torch.zeros(len(index), 3, dtype=torch.int64, device=device)
            wrong += (outputs(source, index, still).argmax(-1) != labels[index]).sum(1)
        population.train()
        return 100 * wrong / len(labels)

    take = capture(step, population, optimizer)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for index in torch.randperm(len(images.train_labels), generator=generator).split(BATCH):
            if len(index) == BATCH:
                flips = torch.randint(2, (BATCH, 1), generator=generator)
                shifts = torch.randint(-4, 5, (BATCH, 2), generator=generator)
                take(index.to(device), torch.cat([flips, shifts], 1).to(device))
    scores = torch.stack([error(*images.eval_sets[name]) for name in ("val", "test")], 1)
    return population, results(population, scores, start)


def load_images(given: argparse.Namespace, device: torch.device) -> Dataset:
    """Return the images of the data set, a tenth of those for training held out."""
    images = data.load(given.name, given.data)
    return images.split_validation(len(images.train_labels) // 10, seed=0).to(device)


def open_train(given: argparse.Namespace, device: torch.device) -> Train:
    images = load_images(given, device)
    return lambda runs: train(runs, images, given.network, given.epochs)[1]


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the data and the network."""
    parser.add_argument(
        "--data", type=Path, help="directory of the data sets; by default the cache of hullo data fetch"
    )
    parser.add_argument("--name", default="cifar10", help="the data set")
    parser.add_argument("--network", default="resnet20", choices=list(NETWORKS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_image_arguments(parser)
    parser.add_argument("--epochs", type=int, default=100)
    main(parser, CANDIDATES, RATES, open_train)
