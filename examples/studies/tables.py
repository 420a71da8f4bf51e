"""Does a learned activation help an MLP on a table? California housing, with a tuned MLP of the literature.

    python examples/studies/tables.py housing.csv --seeds 15 --output runs/tables.jsonl

Layers of 510, 263 and 363, dropout, AdamW, batches of 256, the epoch that is best on validation data. The eight usual
features, each mapped to normal scores; 64 % of the rows train, 16 % validate, 20 % test. Scores are root mean squared
errors in units of 100,000 dollars. PReLU, per layer and per feature, is the control with about as many parameters. Rows
called "mean of 8 ..." average the predictions of eight networks, which take eight times as long.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from study import Candidate, Make, Run, Scores, Train, UserError, fixed, main, populate, results, settings
from torch import Tensor, nn

import hullo
from hullo.population import AdamW, capture

HIDDEN, BATCH, RATES = (510, 263, 363), 256, (5e-4, 1.3e-3, 3e-3, 7e-3)
SEEDS = 10_000
"""More than there are seeds: network k of a mean has the seed of its run and k times this."""


def affine(width: int, *, per_feature: bool = False, init: str | None = "relu", bases: str = "identity relu tanh"):
    return hullo.AffineHull(*bases.split(), init=init, groups=width if per_feature else 1, channel_dim=-1, strict=False)


CANDIDATES = {
    **fixed("relu", "gelu", "silu"),
    "prelu": Candidate(lambda width: nn.PReLU()),
    "prelu per feature": Candidate(nn.PReLU),
    "affine from relu": Candidate(affine, 10.0),
    "affine from relu per feature": Candidate(lambda width: affine(width, per_feature=True), 10.0),
    "affine uniform": Candidate(lambda width: affine(width, init=None), 10.0),
    "affine from gelu per feature": Candidate(
        lambda width: affine(width, per_feature=True, init="gelu", bases="identity tanh gelu"), 10.0
    ),
    **settings("relu", -1),
}
for name in ("relu", "gelu", "silu", "affine from relu per feature"):
    CANDIDATES[f"mean of 8 {name}"] = replace(CANDIDATES[name], networks=8, is_fixed=False)


def read(path: Path) -> tuple[list[tuple[Tensor, Tensor]], float]:
    """Return features and standardized targets of training, validation and test rows, and the unit of the targets."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("total_bedrooms")]
    if not rows:
        raise UserError(f"{path} has no column total_bedrooms: give the table of California housing, as a CSV file")
    table = {
        name: torch.tensor([float(row[name]) for row in rows]).double() for name in rows[0] if name != "ocean_proximity"
    }
    homes = table["households"]
    features = [table[name] for name in ("median_income", "housing_median_age", "population", "latitude", "longitude")]
    features += [table[name] / homes for name in ("total_rooms", "total_bedrooms", "population")]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    val, test = len(rows) * 16 // 100, len(rows) // 5
    train = order[val + test :]

    def normal_scores(column: Tensor) -> Tensor:
        known = column[train].sort().values
        ranks = torch.searchsorted(known, column) + torch.searchsorted(known, column, right=True)
        return torch.special.ndtri((ranks / (2 * len(known))).clamp(1e-4, 1 - 1e-4))

    x, y = torch.stack([normal_scores(column) for column in features], 1), table["median_house_value"][:, None] / 1e5
    unit = float(y[train].std())
    y = (y - y[train].mean()) / unit
    return [(x[at].float(), y[at].float()) for at in (train, order[:val], order[val : val + test])], unit


def network(make: Make) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, width in pairwise((8, *HIDDEN)):
        layers += [nn.Linear(inputs, width), make(width), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))


def train(runs: Sequence[Run], data: Sequence[tuple[Tensor, Tensor]], unit: float, epochs: int) -> list[Scores]:
    """Train runs side by side; return their errors at the epoch that is best on validation data."""
    start = time.perf_counter()
    (x, y), val, test = data
    counts = [CANDIDATES[run.candidate].networks for run in runs]
    members = [
        replace(run, seed=run.seed + SEEDS * k) for run, count in zip(runs, counts, strict=True) for k in range(count)
    ]
    population, settings = populate(members, CANDIDATES, network, x.device)
    optimizer = AdamW(population, weight_decay=0.01, **settings)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        (population(x, in_dims=None) - y).square().mean((1, 2)).sum().backward()
        optimizer.step()

    @torch.no_grad()
    def error(x: Tensor, y: Tensor) -> Tensor:
        population.eval()
        predictions = torch.stack([own.mean(0) for own in population(x, in_dims=None).split(counts)])
        population.train()
        return (predictions - y).square().mean((1, 2)).sqrt() * unit

    take = capture(step, population, optimizer)
    generator = torch.Generator().manual_seed(0)  # the same batches for all runs
    best = torch.full((2, len(runs)), torch.inf, device=x.device)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            take(x[batch], y[batch])
        now = torch.stack([error(*val), error(*test)])
        best = torch.where(now[0] < best[0], now, best)
    return results(population, best.T, start, counts)


def open_train(given: argparse.Namespace, device: torch.device) -> Train:
    parts, unit = read(given.table)
    data = [(x.to(device), y.to(device)) for x, y in parts]
    return lambda runs: train(runs, data, unit, given.epochs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="housing.csv")
    parser.add_argument("--epochs", type=int, default=60)
    main(parser, CANDIDATES, RATES, open_train)
