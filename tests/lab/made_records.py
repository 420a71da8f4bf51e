"""Records as tests want them, without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hullo.lab.activations import Row
from hullo.lab.bench.rows import Environment
from hullo.lab.records import Record
from hullo.lab.specs import Spec

ENVIRONMENT = Environment("a machine", 1, "3.11", "2.13", "", "0.1", "abc")


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
    environment: Environment = ENVIRONMENT,
    **settings: Any,
) -> Record:
    """Make the record of a run with these accuracies per epoch, on held-out images alone if there are any.

    Its coefficients, a row per layer, never change; by default there is one layer.
    """
    row, (network, data) = Row.parse(activation), column.split("/")
    spec = Spec(network, data, activation, seed=seed, epochs=len(accuracies), **settings)
    held_out, losses = spec.val_size > 0, [1.0] * len(accuracies)
    layers = [list(layer) for layer in coefficients or [list(row.start.values())]] if row.learns else []
    return Record(
        spec=spec,
        ended=ended,
        train_loss=[1.0] * len(accuracies),
        test_loss=[] if held_out else losses,
        test_accuracy=[] if held_out else list(accuracies),
        val_loss=losses if held_out else [],
        val_accuracy=list(accuracies) if held_out else [],
        bases=[item.name for item in row.bases] if row.learns else [],
        coefficients=[layers] * (len(accuracies) + 1) if row.learns else [],
        channels=[[layer] for layer in layers] if row.per == "channel" else [],
        members=members,
        seconds=seconds,
        environment=environment,
    )


def make_records(last: dict[str, Sequence[float]], **shared: Any) -> list[Record]:
    """Runs of one epoch: what each activation reached, by seed."""
    return [
        make_record(activation, [reached], seed=seed, **shared)
        for activation, all_reached in last.items()
        for seed, reached in enumerate(all_reached)
    ]
