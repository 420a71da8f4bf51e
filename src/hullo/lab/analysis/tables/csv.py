"""The table as CSV: one line per cell, with all of its numbers as they are."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from hullo.lab.analysis.experiments import REFERENCE, SETTINGS, Experiment

COLUMNS = (
    "network",
    "data",
    *SETTINGS,
    "epoch",
    "reading",
    "images",
    "activation",
    "seeds",
    "mean",
    "half_interval",
    f"{REFERENCE}_pairs",
    f"{REFERENCE}_difference",
    f"{REFERENCE}_half_interval",
    "paper",
    "paper_difference",
    "diverged",
    "best",
)


def csv_table(experiments: Sequence[Experiment]) -> str:
    """Return all cells; a missing number is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for experiment in experiments:
        setting = experiment.setting
        known = setting.to_dict()
        shared = [*setting.column, *(known.get(name) for name in SETTINGS)]
        shared += [experiment.epoch, experiment.reading.name, experiment.images]
        for cell in experiment.cells.values():
            over = cell.over_reference
            paired = (over.count, over.mean, over.half) if over else (None, None, None)
            own = [cell.row, cell.accuracy.count, cell.accuracy.mean, cell.accuracy.half, *paired]
            writer.writerow([*shared, *own, cell.published, cell.over_published, cell.diverged, int(cell.best)])
    return file.getvalue()
