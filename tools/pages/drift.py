"""Drift: how far coefficients are from their initial values, and whether they have chosen one base."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from hullo.lab.analysis.experiments import Experiment
from hullo.lab.analysis.tables.markdown import escape, grid
from hullo.lab.spec.records import Record
from pages.epochs import quarters

CORNER = 0.99
"""The least coefficient of a base that makes up nearly all of an activation; the others' are below 1 - CORNER."""

Layer = Sequence[float]


def drift_tables(experiments: Sequence[Experiment]) -> str:
    """Return a table per experiment: how far each hull's coefficients are from their initial values.

    That is the largest change in a layer, mean over layers and runs; beside it how many layers ended at a corner. Runs
    that diverged are left out.
    """
    return "\n\n".join(table for experiment in experiments if (table := _table(experiment)))


def _table(experiment: Experiment) -> str:
    epochs, lines = quarters(experiment), []
    for row in experiment.cells:
        runs = [r for r in experiment.records if r.spec.activation == row and r.bases and not r.diverged]
        if ends := [layer for run in runs for layer in _layers(run, experiment.epoch)]:
            corners = sum(map(_is_corner, ends))
            moves = (mean(move for run in runs for move in _moves(run, epoch)) for epoch in epochs)
            lines.append([escape(row), *(f"{move:.2f}" for move in moves), f"{corners} of {len(ends)}"])
    heads = ["after epoch", *map(str, epochs), "layers at a corner"]
    return f"### {escape(experiment.name)}: drift of coefficients\n\n{grid(heads, lines)}" if lines else ""


def _layers(record: Record, epoch: int) -> list[Layer]:
    return [[c for c in layer if c is not None] for layer in record.coefficients[epoch]]


def _moves(record: Record, epoch: int) -> list[float]:
    pairs = zip(_layers(record, 0), _layers(record, epoch), strict=True)
    return [max(abs(new - old) for old, new in zip(*pair, strict=True)) for pair in pairs]


def _is_corner(layer: Layer) -> bool:
    return max(layer) >= CORNER and sum(abs(c) > 1 - CORNER for c in layer) == 1
