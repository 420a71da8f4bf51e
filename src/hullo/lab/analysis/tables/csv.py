"""The table as CSV: one line per cell, with all of its numbers as they are."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from hullo.lab.analysis.experiments import REFERENCE, SETTINGS, Cell, Experiment


def csv_table(experiments: Sequence[Experiment]) -> str:
    """Return all cells; a missing number is empty."""
    lines = [_line(experiment, cell) for experiment in experiments for cell in experiment.cells.values()]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _line(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    known, over = experiment.setting.to_dict(), cell.over_reference
    return {
        **{name: known.get(name) for name in ("network", "data", *SETTINGS)},
        "epoch": experiment.epoch,
        "reading": experiment.reading.name,
        "images": experiment.images,
        "activation": cell.row,
        "seeds": cell.accuracy.count,
        "mean": cell.accuracy.mean,
        "half_interval": cell.accuracy.half,
        f"{REFERENCE}_pairs": over and over.count,
        f"{REFERENCE}_difference": over and over.mean,
        f"{REFERENCE}_half_interval": over and over.half,
        "paper": cell.published,
        "paper_difference": cell.over_published,
        "diverged": cell.diverged,
        "best": int(cell.best),
    }
