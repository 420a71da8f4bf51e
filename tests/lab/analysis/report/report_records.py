"""Records as the paper's whole table would leave them, made up: no network is trained."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hullo.lab.analysis.report import gather, write_page
from hullo.lab.spec import paper
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.paper import Column
from hullo.lab.spec.records import Record, Records
from hullo.lab.spec.run_spec import Spec
from hullo.modules import HULLS

LAYERS = {"lenet5": 3, "kerasnet": 5, "resnet56": 55}
ENVIRONMENT = Environment("NVIDIA H200", 16, "3.11.9", "2.13.0", "3.6.0", "0.1.0", "0123456789ab")


def make_records(
    columns: Sequence[Column] = paper.COLUMNS[:5],
    rows: Sequence[str] = paper.ROWS,
    seeds: int = 5,
    epochs: int = 150,
) -> list[Record]:
    """Return runs whose coefficients wander for a while and then settle, and whose accuracy comes near the paper's."""
    return [
        _make_record(Spec(column.network, column.data, row, seed=seed, epochs=epochs))
        for column in columns
        for row in rows
        for seed in range(seeds)
    ]


def _make_record(spec: Spec) -> Record:
    chance = random.Random(str(spec))
    row = ActivationSpec.parse(spec.activation)
    column = spec.column._replace(data=spec.data.removesuffix("-sample"))
    published = paper.accuracy(spec.activation, column) if spec.activation in paper.ROWS else None
    goal = (published or 80.0) + chance.gauss(0, 0.4)
    progress = [1 - math.exp(-epoch / spec.epochs * 5) for epoch in range(1, spec.epochs + 1)]
    accuracy = [round(goal * (0.5 + 0.5 * p) + chance.gauss(0, 0.3), 2) for p in progress]
    generator = torch.Generator().manual_seed(chance.getrandbits(32))
    walk = _wander(row, LAYERS[spec.network], spec.epochs, generator).tolist() if row.learns else []
    return Record(
        spec=spec,
        ended="finished",
        train_loss=[_digits(2.3 - 2.1 * p + chance.gauss(0, 0.01)) for p in progress],
        test_loss=[_digits(2.3 - 1.7 * p + chance.gauss(0, 0.02)) for p in progress],
        test_accuracy=accuracy,
        bases=[base.name for base in row.bases] if row.learns else [],
        coefficients=[[[_digits(number) for number in layer] for layer in point] for point in walk],
        members=60,
        seconds=4321.0,
        environment=ENVIRONMENT,
        channels=[[layer] for layer in walk[-1]] if row.per == "channel" else [],
    )


def _wander(row: ActivationSpec, layers: int, epochs: int, chance: torch.Generator) -> Tensor:
    """Return a walk of every layer from the middle of the row's hull that slowly settles, (epoch, layer, base)."""
    parametrization = HULLS[row.kind].coefficient_set.read_parametrization(row.parametrization)
    size = 0.02 * torch.exp(-3 * torch.arange(epochs) / epochs)
    drift = torch.randn(layers, len(row.bases) - parametrization.fewer, generator=chance) / epochs
    steps = torch.randn(epochs, *drift.shape, generator=chance) * size[:, None, None] + drift
    walk = torch.cat([torch.zeros(1, *drift.shape), steps.cumsum(0)]) + 1 / len(row.bases)
    return parametrization.transform(walk)


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def write_report(folder: Path, records: Sequence[Record]) -> Path:
    """Return the page of records that are in a directory of their own."""
    Records(folder / "runs" / "records.jsonl").add(records)
    page = folder / "report.html"
    write_page(gather([folder / "runs"]), page)
    return page


RECORDS = [
    *make_records([paper.COLUMNS[0]], paper.ROWS, seeds=3, epochs=12),
    *make_records([paper.COLUMNS[4]], paper.ROWS[7:], seeds=2, epochs=20),
]
"""The records of the page that most tests visit in a browser."""
