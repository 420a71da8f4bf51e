"""Batch size: the same runs with batches of another size, after as many epochs and after as many updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.readings import LAST
from hullo.lab.analysis.statistics import Interval
from hullo.lab.analysis.tables.markdown import escape, grid
from hullo.lab.spec.run_spec import Spec


def batches_tables(experiments: Sequence[Experiment]) -> str:
    """Return a table per experiment with another batch size, beside the one that is alike in all else.

    Runs of the same activation and seed are compared after as many epochs, and after as many updates.
    """
    default = [
        e
        for e in experiments
        if e.setting.batch_size == Spec.default(e.setting.network, e.setting.data, "relu").batch_size
    ]
    pairs = ((one, other) for other in experiments for one in default if _comparable(one.setting, other.setting))
    return "\n\n".join(_table(one, other) for one, other in pairs)


def _comparable(default: Spec, other: Spec) -> bool:
    """Return whether experiments differ only in batch size; the default one may have been trained longer."""
    alike = replace(default, batch_size=other.batch_size, epochs=other.epochs) == other
    return alike and default.batch_size != other.batch_size and default.epochs >= other.epochs


def _table(default: Experiment, other: Experiment) -> str:
    default, other = (replace(experiment, reading=LAST) for experiment in (default, other))
    batch, seen = other.setting.batch_size, other.epoch
    epochs = {"epochs": seen, "updates": max(1, round(seen * default.setting.batch_size / batch))}
    stages = {alike: replace(default, epoch=e) for alike, e in epochs.items() if e <= default.setting.epochs}
    lines = []
    for row, reached in other.accuracies.items():
        if seeds := sorted(reached.keys() & default.accuracies.get(row, {}).keys()):
            line = [escape(row), Interval.of(reached[seed] for seed in seeds).spell()]
            for before in (stage.accuracies[row] for stage in stages.values()):
                line.append(Interval.of(before[seed] for seed in seeds).spell())
                line.append(Interval.of(reached[seed] - before[seed] for seed in seeds).spell("+.2f"))
            lines.append([*line, str(len(seeds))])
    heads = ["activation", f"batch {batch}, epoch {seen}"]
    for alike, stage in stages.items():
        heads += [f"batch {default.setting.batch_size}, epoch {stage.epoch}", f"difference after as many {alike}"]
    title = f"### {escape(str(default.setting.column))}: {other.images} accuracy with batches of {batch}, in %"
    return f"{title}\n\n{grid([*heads, 'seeds'], lines)}"
