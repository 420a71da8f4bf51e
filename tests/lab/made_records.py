"""Records as tests want them, without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hullo.lab.activations import Row
from hullo.lab.bench.rows import Setting
from hullo.lab.records import Record
from hullo.lab.specs import Spec

SETTING = Setting("a machine", 1, "3.11", "2.13", "", "0.1", "abc")


def make_record(
    activation: str,
    accuracies: Sequence[float],
    *,
    column: str = "kerasnet/cifar10",
    seed: int = 0,
    ended: str = "finished",
    coefficients: Sequence[Sequence[float | None]] = (),
    members: int = 1,
    seconds: float = 1.0,
    setting: Setting = SETTING,
    **settings: Any,
) -> Record:
    """A run that had these accuracies, one an epoch, and began and stayed with these coefficients, a row a layer."""
    row, (network, data) = Row.parse(activation), column.split("/")
    return Record(
        spec=Spec(network, data, activation, seed=seed, epochs=len(accuracies), **settings),
        ended=ended,
        accuracy=accuracies[-1],
        train_loss=[1.0] * len(accuracies),
        test_loss=[1.0] * len(accuracies),
        test_accuracy=list(accuracies),
        bases=[item.name for item in row.bases] if row.learns else [],
        coefficients=[[list(layer) for layer in coefficients]] * (len(accuracies) + 1) if row.learns else [],
        members=members,
        seconds=seconds,
        setting=setting,
    )


def make_records(last: dict[str, Sequence[float]], **shared: Any) -> list[Record]:
    """Runs of one epoch: what each activation reached, by seed."""
    return [
        make_record(activation, [reached], seed=seed, **shared)
        for activation, all_reached in last.items()
        for seed, reached in enumerate(all_reached)
    ]
