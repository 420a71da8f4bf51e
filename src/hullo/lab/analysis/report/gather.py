"""Build the document of the report from records: columns, their cells under each reading, and their runs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hullo
from hullo.lab.analysis.experiments import REFERENCE, Cell, Experiment, experiments, rows_of
from hullo.lab.analysis.finding import compare_best, headline
from hullo.lab.analysis.names import activation_label, layer_names, main_experiments, setting_labels, titles
from hullo.lab.analysis.readings import READINGS, Reading
from hullo.lab.analysis.sources import read_records, record_files
from hullo.lab.analysis.statistics import Interval, t_quantile
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.checkpoint_files import scan_checkpoints
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import Record
from hullo.lab.spec.run_spec import Spec

SCALE = 100_000
"""Coefficients over training are stored as integer multiples of 1e-5, less than the width of a line."""
MOST_CHANNELS = 16
"""The largest number of a layer's channels to store, evenly spaced."""
CURVES = (
    "test_accuracy",
    "val_accuracy",
    "test_metric",
    "val_metric",
    "test_top5",
    "test_loss",
    "val_loss",
    "train_loss",
)


def gather(paths: Sequence[Path], warn: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Return the document for files of records, or directories of them; runs may still be in progress.

    What cannot be read is left out with a call of `warn`, or raises a ValueError if that is None.
    """
    begun = {path: _begun(path, warn) for path in paths}
    records = read_records((path for path in paths if not begun[path] or _holds_records(path)), warn)
    recorded = {record.spec for record in records}
    waiting = {spec for specs in begun.values() for spec in specs} - recorded
    environments = list(dict.fromkeys(record.environment for record in records))
    columns = experiments(records, warn=warn)
    main = main_experiments(columns)
    named = titles({*(experiment.setting.column for experiment in columns), *(spec.column for spec in waiting)})
    seeds = (cell.accuracy.count for experiment in columns for cell in experiment.cells.values())
    return {
        "hullo": hullo.__version__,
        "scale": SCALE,
        "quantiles": [t_quantile(degrees) for degrees in range(1, max(seeds, default=1))],
        "waiting": sorted(Counter(named[spec.column] for spec in waiting).items()),
        "finding": headline({named[e.setting.column]: e for e in columns if e in main.values()}, columns, paths),
        "environments": list(map(asdict, environments)),
        "rows": [*map(activation_label, rows_of(columns))],
        "readings": {reading.name: asdict(reading) for reading in READINGS.values()},
        "columns": [
            {
                "name": experiment.name,
                "title": named[experiment.setting.column],
                "settings": setting_labels(experiment, main.get(experiment.setting.column, experiment)),
                "study": experiment is not main.get(experiment.setting.column),
                **_column(experiment, environments),
            }
            for experiment in columns
        ],
    }


def _begun(path: Path, warn: Callable[[str], None] | None) -> list[Spec]:
    """Return the runs in a directory that were started, with or without a record."""
    begun: list[Spec] = []
    for folder in path.rglob("checkpoints") if path.is_dir() else [path.with_name("checkpoints")]:
        populations, flaws = scan_checkpoints(folder)
        begun += itertools.chain(*populations)
        for flaw in flaws:
            if warn is None:
                raise ValueError(flaw)
            warn(flaw)
    return begun


def _holds_records(path: Path) -> bool:
    return any(file.exists() and file.stat().st_size for file in record_files(path))


def _column(experiment: Experiment, environments: Sequence[Environment]) -> dict[str, Any]:
    reference = experiment.published.get(REFERENCE)
    found = experiment.by_reading
    best = None if experiment.is_compared else compare_best([experiment]).found
    return {
        "about": f"{experiment.images} {experiment.records[0].metric}, {experiment.time}, {experiment.seeds}",
        "metric": experiment.records[0].metric,
        "compared": experiment.is_compared,
        "lower": experiment.records[0].lower_is_better,
        "unit": experiment.unit,
        "gain": _interval(best.interval) if best else None,
        "undecided": best.undecided if best else "",
        "layers": _layers(experiment),
        "epochs": experiment.setting.epochs,
        "remarks": experiment.remarks,
        "reading": experiment.reading.name,
        "readings": [reading.name for reading in found],
        "rows": [_row({reading: other.cells[row] for reading, other in found.items()}) for row in experiment.cells],
        "paper": {
            row: [value, None if row == REFERENCE or reference is None else round(value - reference, 2)]
            for row, value in experiment.published.items()
        },
        "runs": [
            _run(record, environments.index(record.environment), found.values())
            for record in sorted(experiment.records, key=lambda record: record.spec.seed)
        ],
    }


def _layers(experiment: Experiment) -> list[str]:
    """Return the names of the layers, of the run that has most of them."""
    points = [(point, record.layers) for record in experiment.records for point in record.coefficients[:1]]
    most, modules = max(points, key=lambda pair: len(pair[0]), default=([], []))
    return layer_names(experiment.setting.network, len(most), modules)


def _row(cells: Mapping[Reading, Cell]) -> dict[str, Any]:
    """Return a row of a column, with its figures by reading."""
    first = next(iter(cells.values()))
    row = ActivationSpec.parse(first.row)
    return {
        "name": activation_label(first.row),
        "kind": row.kind,
        "bases": [item.name for item in row.bases],
        "accuracy": {reading.name: _interval(cell.accuracy) for reading, cell in cells.items()},
        "difference": {reading.name: _interval(cell.over_reference) for reading, cell in cells.items()},
        "diverged": first.diverged,
        "lost": first.is_lost,
    }


def _interval(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [interval.mean, interval.half]


def _run(record: Record, environment: int, found: Iterable[Experiment]) -> dict[str, Any]:
    """Return a run, with curves up to the epoch before it diverged."""
    sound = record.spec.epochs if record.diverged_in is None else record.diverged_in - 1
    channels = [] if record.diverged else record.channels
    return {
        "id": record.spec.id,
        "spec": record.spec.to_dict() | {"activation": activation_label(record.spec.activation)},
        "ended": record.ended,
        "lost": record.diverged_in,
        "accuracy": {e.reading.name: e.accuracies[record.spec.activation][record.spec.seed] for e in found},
        "read": {e.reading.name: e.read_epoch(record) for e in found},
        "members": record.members,
        "seconds": record.seconds,
        "environment": environment,
        "bases": record.bases,
        "coefficients": [_paths(layer, 1 + sound) for layer in zip(*record.coefficients, strict=True)],
        "channels": [_spaced([[*map(_short, row)] for row in layer], MOST_CHANNELS) for layer in channels],
        **{name: [*map(_short, _first(getattr(record, name), sound))] for name in CURVES},
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def _spaced(items: list[Any], most: int) -> list[Any]:
    return [items[i * len(items) // most] for i in range(most)] if len(items) > most else items


def _first(values: Sequence[float | None], count: int) -> list[float | None]:
    """Keep the first values, and replace the others by None."""
    return [value if i < count else None for i, value in enumerate(values)]


def _paths(points: Iterable[Sequence[float | None]], known: int) -> list[list[int | None]]:
    """Return each base's coefficient over the epochs, as far as it is known."""
    return [encode(_first(path, known)) for path in zip(*points, strict=True)]


def encode(values: Iterable[float | None]) -> list[int | None]:
    """Encode numbers compactly as differences from one to the next, in integer multiples of 1 / SCALE.

    What is not finite, or beyond what floating-point numbers count exactly, is None.

    >>> encode([0.5, 0.50003, None, 0.49999])
    [50000, 3, None, -4]
    """
    steps: list[int | None] = []
    last = 0
    for value in values:
        if value is None or abs(value) > 1e9:
            steps.append(None)
        else:
            now = round(value * SCALE)
            steps.append(now - last)
            last = now
    return steps
