"""Speed: training time of populations, from their records, compared with a single network."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from hullo.lab.analysis.experiments import place
from hullo.lab.analysis.tables.format import provenance
from hullo.lab.analysis.tables.markdown import escape, grid
from hullo.lab.spec.paper import ROWS, Column, parse_column
from hullo.lab.spec.records import Record

SEEDS = 5
"""The default number of `hullo reproduce`."""


class Pace(NamedTuple):
    """Populations of one column with the same size and number of epochs, on one device."""

    column: Column
    device: str
    precision: str
    batch_size: int
    epochs: int
    members: int
    populations: int
    seconds: float  # which all of them took together

    @property
    def network_epochs_a_second(self) -> float:
        return self.populations * self.members * self.epochs / self.seconds if self.seconds else math.nan


def paces(records: Iterable[Record]) -> list[Pace]:
    """Return the time of populations, in the order of the columns.

    Records of one population share the time that it took, which counts once, also where not all of them are there.
    """
    recorded = Counter((r.spec.population_key, r.environment.device, r.members, r.seconds) for r in records)
    alike: dict[tuple[Column, str, str, int, int, int], list[float]] = {}
    for (spec, device, members, seconds), count in recorded.items():
        key = spec.column, device, spec.precision, spec.batch_size, spec.epochs, members
        # more records than members: as many populations happen to have taken the same time, to the millisecond
        alike.setdefault(key, []).extend([seconds] * math.ceil(count / members))
    found = [Pace(*key, len(seconds), math.fsum(seconds)) for key, seconds in alike.items()]
    return sorted(found, key=lambda pace: (place(pace.column), pace))


def read_plain(paths: Iterable[Path]) -> dict[tuple[Column, int], float]:
    """Return seconds per epoch of one network alone, as it was measured, by column and batch."""
    rows = [row for path in paths for row in csv.DictReader(path.read_text().splitlines())]
    return {(parse_column(row["column"]), int(row["batch"])): float(row["epoch_s"]) for row in rows}


def speed_table(records: Sequence[Record], plain: Mapping[tuple[Column, int], float]) -> str:
    """Return a table of the time that populations took, and that plain PyTorch would take for their networks.

    The last column has the hours of all of the paper's rows with five seeds at the same speed.
    """
    head = ("column", "epochs", "networks side by side", "populations", "device time", "network-epochs per second")
    lines = []
    for pace in paces(records):
        alone = 1 / plain[pace.column, pace.batch_size] if (pace.column, pace.batch_size) in plain else math.nan
        speeds = (pace.network_epochs_a_second, alone, pace.network_epochs_a_second / alone)
        lines.append(
            [
                f"{escape(str(pace.column))}<br>{escape(f'{pace.device}, {pace.precision}, batch {pace.batch_size}')}",
                *map(str, (pace.epochs, pace.members, pace.populations)),
                str(timedelta(seconds=round(pace.seconds))),
                *("" if math.isnan(speed) else f"{speed:.3g}" for speed in speeds),
                f"{len(ROWS) * SEEDS * pace.epochs / pace.network_epochs_a_second / 3600:.3g}",
            ]
        )
    table = grid([*head, "in plain PyTorch", "times as many", f"hours for {len(ROWS)} rows, {SEEDS} seeds"], lines)
    return f"{table}\n\n<sub>{escape(provenance(records))}</sub>"
