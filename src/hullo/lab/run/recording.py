"""Build the records of a population at the end of its training."""

from __future__ import annotations

import itertools

from hullo.lab.run.training import Training
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import Record, round_number, round_numbers


def build_records(training: Training, environment: Environment) -> list[Record]:
    """Return the members' records at the end of their training."""
    activations, curves, held_out = (
        training.population.activations,
        training.curves,
        "val" in training.loader.eval_sizes,
    )
    records = []
    for k, spec in enumerate(training.specs):
        row = ActivationSpec.parse(spec.activation)
        points = (training.start[k], *curves["coefficients"][:, k]) if row.learns else ()
        names = [item.name for item in row.bases]
        chosen = [[item.name for item in site.activations[k].bases] == names for site in activations.sites]
        by_epoch = [list(itertools.compress(activations.split(k, point), chosen)) for point in points]
        modules = [site.path for site in itertools.compress(activations.sites, chosen)]
        coefficients = [[round_numbers(layer.mean(0).tolist()) for layer in point] for point in by_epoch]
        finite = curves["finite"][:, k].tolist()
        for epoch, point in enumerate(coefficients[1:]):  # coefficients may be finite although their mean is not
            finite[epoch] = finite[epoch] and None not in itertools.chain(*point)
        accuracy, *top5 = (list(map(round_number, top)) for top in curves["test_accuracy"][:, k].T.tolist())
        records.append(
            Record(
                spec=spec,
                ended="finished" if all(finite) else f"diverged in epoch {finite.index(False) + 1}",
                train_loss=round_numbers(curves["train_loss"][:, k].tolist()),
                test_loss=round_numbers(curves["test_loss"][:, k].tolist()),
                test_accuracy=accuracy,
                bases=[item.name for item in row.bases] if row.learns else [],
                coefficients=coefficients,
                members=len(training.specs),
                seconds=round(training.seconds, 3),
                environment=environment,
                channels=[[*map(round_numbers, layer.tolist())] for layer in by_epoch[-1]]
                if row.per == "channel"
                else [],
                layers=modules if spec.is_own_network and row.learns else [],
                test_top5=top5[0] if top5 else [],
                val_loss=round_numbers(curves["val_loss"][:, k].tolist()) if held_out else [],
                val_accuracy=[*map(round_number, curves["val_accuracy"][:, k, 0].tolist())] if held_out else [],
                images=[]
                if training.loader.is_complete
                else [training.loader.count, training.loader.eval_sizes["test"]],
            )
        )
    return records
