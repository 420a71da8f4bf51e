"""Runs as records have them, with coefficients and accuracies as a test wants them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hullo.lab.analysis.experiments import Experiment, experiments
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import Record
from hullo.lab.spec.run_spec import Spec

COLUMN = ("lenet5", "cifar10")


def run(
    row: str,
    seed: int = 0,
    *,
    paths: object = (),
    accuracies: Sequence[float] = (50.0, 60.0),
    channels: object = (),
    ended: str = "finished",
    column: tuple[str, str] = COLUMN,
) -> Record:
    """Return a run whose coefficients are `paths` (1 + epochs, layers, bases), as many epochs as accuracies."""
    epochs = len(accuracies)
    return Record(
        spec=Spec(*column, row, seed=seed, epochs=epochs),
        ended=ended,
        train_loss=[1.0] * epochs,
        test_loss=[1.0] * epochs,
        test_accuracy=list(accuracies),
        bases=[base.name for base in ActivationSpec.parse(row).bases] if ActivationSpec.parse(row).learns else [],
        coefficients=np.asarray(paths).tolist(),
        members=1,
        seconds=1.0,
        environment=Environment("a machine", 1, "3.11", "2.13", "", "0.1", "abc"),
        channels=[np.asarray(layer).tolist() for layer in channels],
    )


def wander(row: str, layers: int = 3, epochs: int = 2, seed: int = 0) -> np.ndarray:
    """Return paths of coefficients in a row's hull that start in its middle."""
    parsed, random = ActivationSpec.parse(row), np.random.default_rng(seed)
    count = len(parsed.bases)
    end = random.dirichlet(np.ones(count), layers) * (1.0 if parsed.kind == "convex" else 3.0)
    end += (1 - end.sum(-1, keepdims=True)) / count
    time = np.linspace(0, 1, epochs + 1)[:, None, None]
    return (1 - time) / count + time * end


def learned(row: str, seed: int = 0, layers: int = 3, **options: object) -> Record:
    """Return a run that learned."""
    epochs = len(options.get("accuracies", (0, 0)))
    return run(row, seed, paths=wander(row, layers, epochs, seed), **options)


def experiment(*records: Record, epoch: int | None = None) -> Experiment:
    """Return the only experiment that the records make up."""
    (found,) = experiments(records, epoch=epoch)
    return found
