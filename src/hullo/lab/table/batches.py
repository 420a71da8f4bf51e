"""What does the size of batches do? The same runs with batches of another size, after as many epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hullo.lab.intervals import Interval
from hullo.lab.specs import Spec
from hullo.lab.table.experiments import Experiment
from hullo.lab.table.markdown import escape, grid


def batches_tables(experiments: Sequence[Experiment]) -> str:
    """Under a heading each, as Markdown: experiments whose batches are not of the usual size, beside those that are
    alike in all else, when these had seen each picture as often, and when they had made as many updates.

    What is compared are runs of the same activation and seed.
    """
    usual = [e for e in experiments if e.setting.batch == Spec.usual(e.setting.network, e.setting.data, "relu").batch]
    pairs = ((one, other) for other in experiments for one in usual if _comparable(one.setting, other.setting))
    return "\n\n".join(_table(one, other) for one, other in pairs)


def _comparable(usual: Spec, other: Spec) -> bool:
    """Whether they differ in their batches, and in nothing else but that the usual one may have been trained longer."""
    alike = replace(usual, batch=other.batch, epochs=other.epochs) == other
    return alike and usual.batch != other.batch and usual.epochs >= other.epochs


def _table(usual: Experiment, other: Experiment) -> str:
    batch, seen = other.setting.batch, other.epoch
    epochs = {"epochs": seen, "updates": max(1, round(seen * usual.setting.batch / batch))}
    stages = {alike: replace(usual, epoch=e) for alike, e in epochs.items() if e <= usual.setting.epochs}
    lines = []
    for row, reached in other.accuracies.items():
        if seeds := sorted(reached.keys() & usual.accuracies.get(row, {}).keys()):
            line = [escape(row), Interval.of(reached[seed] for seed in seeds).spell()]
            for before in (stage.accuracies[row] for stage in stages.values()):
                line.append(Interval.of(before[seed] for seed in seeds).spell())
                line.append(Interval.of(reached[seed] - before[seed] for seed in seeds).spell("+.2f"))
            lines.append([*line, str(len(seeds))])
    heads = ["activation", f"batch {batch}, epoch {seen}"]
    for alike, stage in stages.items():
        heads += [f"batch {usual.setting.batch}, epoch {stage.epoch}", f"difference after as many {alike}"]
    title = f"### {escape(str(usual.setting.column))}: {other.pictures} accuracy with batches of {batch}, in %"
    return f"{title}\n\n{grid([*heads, 'seeds'], lines)}"
