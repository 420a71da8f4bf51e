"""Records as tests want them, without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hullo.lab.spec import paper
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import Record
from hullo.lab.spec.run_spec import Spec

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
    held_out: Sequence[float] = (),
    train_loss: Sequence[float | None] = (),
    **settings: Any,
) -> Record:
    """Make the record of a run with these accuracies per epoch on the test images, and on held-out ones if given.

    With `val_size` alone, the accuracies are those on held-out images, and there are none on test images, as in old
    records. Its coefficients, a row per layer, never change; by default there is one layer.
    """
    row, (network, data) = ActivationSpec.parse(activation), column.split("/")
    if held_out:
        settings = {"val_size": 500} | settings
    spec = Spec(network, data, activation, seed=seed, epochs=len(accuracies), **settings)
    tested, losses = bool(held_out) or not spec.val_size, [1.0] * len(accuracies)
    layers = [list(layer) for layer in coefficients or [list(row.initial_coefficients)]] if row.learns else []
    return Record(
        spec=spec,
        ended=ended,
        train_loss=list(train_loss) or [1.0] * len(accuracies),
        test_loss=losses if tested else [],
        test_accuracy=list(accuracies) if tested else [],
        val_loss=losses if spec.val_size else [],
        val_accuracy=list(held_out or accuracies) if spec.val_size else [],
        bases=[item.name for item in row.bases] if row.learns else [],
        coefficients=[layers] * (len(accuracies) + 1) if row.learns else [],
        channels=[[layer] for layer in layers] if row.per == "channel" else [],
        members=members,
        seconds=seconds,
        environment=environment,
    )


def make_records(last: dict[str, Sequence[float]], **shared: Any) -> list[Record]:
    """Return runs of one epoch: what each activation reached, by seed."""
    return [
        make_record(activation, [reached], seed=seed, **shared)
        for activation, all_reached in last.items()
        for seed, reached in enumerate(all_reached)
    ]


def make_column(name: str, over: dict[str, Sequence[float]] | None = None) -> list[Record]:
    """Return a column of five runs per row that reached 80, but for the given ones, with the initial coefficients."""
    rows = {row: [80.0] * 5 for row in paper.ROWS} | (over or {})
    return [
        record
        for row, reached in rows.items()
        for record in make_records(
            {row: reached}, column=name, coefficients=[ActivationSpec.parse(row).initial_coefficients]
        )
    ]
