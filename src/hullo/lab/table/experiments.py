"""Records side by side: runs that differ in activation and seed alone are an experiment, a column of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from hullo.lab import paper
from hullo.lab.activations import Row
from hullo.lab.grid import parse_column
from hullo.lab.intervals import Interval
from hullo.lab.records import Record, Records
from hullo.lab.specs import Spec

SAMPLE = "-sample"
REFERENCE = "relu"
"""The activation that all are compared with."""
SETTINGS = tuple(field.name for field in fields(Spec) if field.name not in ("network", "data", "activation", "seed"))
"""What may set two experiments of a column apart."""
FLAWS = 10
"""So many lines of a file that are no records are named; others are counted."""


@dataclass(frozen=True)
class Cell:
    """What the runs of one activation reached, in percent, and how it compares."""

    row: str
    accuracy: Interval
    over_reference: Interval | None  # the mean of differences between runs of the same seed
    published: float | None
    diverged: int  # runs, which count as they ended
    best: bool  # of all means of the experiment

    @property
    def over_published(self) -> float | None:
        return None if self.published is None else self.accuracy.mean - self.published


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in activation and seed alone, as they stood after an epoch.

    Args:
        name: the column, and what sets it apart from other experiments of the same column.
        setting: what the runs share; its activation and seed mean nothing.
        epoch: counted from 1.
        records: one a run.
        split: the images that accuracies are about, "test" or "val".
    """

    name: str
    setting: Spec
    epoch: int
    records: tuple[Record, ...]
    split: str = "test"

    @cached_property
    def accuracies(self) -> dict[str, dict[int, float]]:
        """What each run had reached, by activation, in the paper's order, and seed."""
        found: dict[str, dict[int, float]] = {}
        for record in sorted(self.records, key=lambda record: (_position(record.spec.activation), record.spec.seed)):
            found.setdefault(record.spec.activation, {})[record.spec.seed] = self.curve(record)[-1]
        return found

    def curve(self, record: Record) -> list[float]:
        """Return the accuracies of a run, up to the epoch."""
        return (record.test_accuracy if self.split == "test" else record.val_accuracy)[: self.epoch]

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """A cell an activation."""
        means = {row: Interval.of(reached.values()) for row, reached in self.accuracies.items()}
        top = max(mean.mean for mean in means.values())
        return {
            row: Cell(
                row=row,
                accuracy=mean,
                over_reference=None if row == REFERENCE else self.difference(row, REFERENCE),
                published=self.published(row),
                diverged=sum(record.spec.activation == row and self.lost(record) for record in self.records),
                best=mean.mean == top,
            )
            for row, mean in means.items()
        }

    def difference(self, row: str, other: str) -> Interval | None:
        """By how much an activation exceeds another on the seeds that both have; None if there are none."""
        one, two = (self.accuracies.get(name, {}) for name in (row, other))
        shared = one.keys() & two.keys()
        return Interval.of(one[seed] - two[seed] for seed in sorted(shared)) if shared else None

    def published(self, row: str) -> float | None:
        """What the paper reports; for a sample, what it reports for the whole data set. Nothing compares with runs on a
        part that happened to be there."""
        column = self.setting.column
        column = column._replace(data=column.data.removesuffix(SAMPLE))
        known = row in paper.ROWS and column in paper.COLUMNS and not self.validates and not self._part
        return paper.accuracy(row, column) if known else None

    @property
    def validates(self) -> bool:
        """Whether accuracies are those on held-out training images, and say nothing of the test set."""
        return self.split == "val"

    @property
    def pictures(self) -> str:
        """Those that the accuracies are about."""
        return "validation" if self.validates else "test"

    @property
    def _part(self) -> list[int]:
        """Return how many images the runs were trained with and tested on, if not all of the data set was there."""
        return self.records[0].images

    @property
    def time(self) -> str:
        """When they were taken: ``100 epochs``, or ``50 of 100 epochs``."""
        last = self.setting.epochs
        return f"{self.epoch}{'' if self.epoch == last else f' of {last}'} epoch{'s' * (last > 1)}"

    @property
    def seeds(self) -> str:
        """How many runs an activation has: ``5 seeds``, or ``2 to 5 seeds``."""
        counts = sorted({len(reached) for reached in self.accuracies.values()})
        return f"{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} seed{'s' * (counts[-1] > 1)}"

    @property
    def remarks(self) -> list[str]:
        """What must be known to read the accuracies beside the paper's."""
        usual = Spec.usual(self.setting.network, self.setting.data, REFERENCE, epochs=self.setting.epochs)
        unusual = [name for name in SETTINGS if getattr(self.setting, name) != getattr(usual, name)]
        said = []
        if self.setting.data.endswith(SAMPLE):
            whole = self.setting.data.removesuffix(SAMPLE)
            said.append(f"A short run on a sample: the paper's networks saw all of {whole}, for longer.")
        if self._part:
            trained, tested = self._part
            said.append(f"Trained with {trained:,} and evaluated on {tested:,} pictures, not on all of the data set.")
        if unusual:
            said.append(f"Not as by default: {', '.join(_spell(self.setting, unusual))}.")
        return said

    def lost(self, record: Record) -> bool:
        """Whether a run had diverged by then."""
        return record.diverged_in is not None and record.diverged_in <= self.epoch


def experiments(
    records: Iterable[Record], *, epoch: int | None = None, columns: Sequence[str] = (), rows: Sequence[str] = ()
) -> list[Experiment]:
    """The experiments that records make up, in the paper's order, whatever the order of the records.

    Runs with different settings are never in one experiment; the names say what sets them apart. Runs that saw
    different parts of a data set are refused.

    Args:
        records: one a run.
        epoch: which, counted from 1; by default the last. Experiments that ended before it are left out.
        columns: which columns, and if there are several of one, with which settings, as their names are spelled.
        rows: which activations; by default all.
    """
    runs: dict[Spec, list[Record]] = {}
    for record in records:
        runs.setdefault(replace(record.spec, activation=REFERENCE, seed=0), []).append(record)
    for alike in runs.values():
        if len(parts := {tuple(record.images): record for record in alike}) > 1:
            saw = (f"{r.spec} saw {' + '.join(map(str, r.images)) or 'all'} images" for r in parts.values())
            raise ValueError(f"runs on different parts of a data set do not compare: {'; '.join(saw)}; name one kind")
    splits = {s: "test" if all(record.test_accuracy for record in alike) else "val" for s, alike in runs.items()}
    names = _names(sorted(runs, key=lambda setting: (place(setting.column), astuple(setting))), splits)
    if columns:
        chosen = {setting for text in columns for setting in _fitting(text, names)}
        names = {setting: name for setting, name in names.items() if setting in chosen}
    if epoch is not None and not any(1 <= epoch <= setting.epochs for setting in names):
        there = ", ".join(f"{name} has epochs 1 to {setting.epochs}" for setting, name in names.items())
        raise ValueError(f"there is no epoch {epoch}: {there}; choose another epoch, or other columns with --columns")
    long_enough = ((s, name) for s, name in names.items() if s.epochs >= (epoch or 1))
    found = [Experiment(name, s, epoch or s.epochs, tuple(runs[s]), splits[s]) for s, name in long_enough]
    return _only(found, rows) if rows else found


def _only(experiments: Sequence[Experiment], rows: Sequence[str]) -> list[Experiment]:
    """What experiments have of some activations, each of which is in one of them at least."""
    wanted, known = dict.fromkeys(str(Row.parse(row)) for row in rows), rows_of(experiments)
    if missing := [row for row in wanted if row not in known]:
        raise ValueError(f"there are no records of {missing[0]!r}; there are {', '.join(known)}")
    kept = (replace(e, records=tuple(r for r in e.records if r.spec.activation in wanted)) for e in experiments)
    return [experiment for experiment in kept if experiment.records]


def rows_of(experiments: Iterable[Experiment]) -> list[str]:
    """All activations that experiments have, in the paper's order."""
    return sorted({row for experiment in experiments for row in experiment.cells}, key=_position)


def read_records(paths: Iterable[Path], warn: Callable[[str], None] | None = None) -> list[Record]:
    """Return the records in files, and in all files `records.jsonl` under directories; each run once.

    Lines that are no records are left out, and `warn` is told what is wrong with each; without it they are refused.
    """
    found: dict[Spec, tuple[Path, Record]] = {}
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist; name files of records, or directories that hold them")
        records = [(file, record) for file in record_files(path) for record in _read(file, warn)]
        if not records:
            raise ValueError(f"there are no records in {path}; name files of records, or directories that hold them")
        for file, record in records:
            other, known = found.setdefault(record.spec, (file, record))
            if known != record:
                raise ValueError(f"{other} and {file} disagree about {record.spec}; name only one of them")
    return [record for _, record in found.values()]


def record_files(path: Path) -> list[Path]:
    """A file of records, or all files `records.jsonl` under a directory."""
    return sorted(path.rglob("records.jsonl")) if path.is_dir() else [path]


def _read(file: Path, warn: Callable[[str], None] | None) -> list[Record]:
    if warn is None:
        return Records(file).read()
    try:
        records, flaws = Records(file).scan()
    except ValueError as error:
        warn(str(error))
        return []
    for flaw in flaws[:FLAWS]:
        warn(f"{flaw}; the line is left out, correct or delete it")
    if more := flaws[FLAWS:]:
        warn(f"{file}: {len(more):,} more lines are left out")
    return records


def _fitting(text: str, names: Mapping[Spec, str]) -> list[Spec]:
    """The settings that a name means; one without settings means all of its column."""
    column, _, given = text.strip().partition(" ")
    wanted = Spec.parse(f"{parse_column(column)} {REFERENCE} {given}")
    said = [word.partition("=")[0] for word in given.split()]
    fitting = [s for s in names if s.column == wanted.column and _spell(s, said) == _spell(wanted, said)]
    if not fitting:
        raise ValueError(f"there are no records of {text!r}; there are {', '.join(names.values())}")
    return fitting


def _names(settings: Sequence[Spec], splits: Mapping[Spec, str]) -> dict[Spec, str]:
    """Name each by its column and what sets it apart from the others of its column, or from results on test images."""
    names = {}
    for setting in settings:
        beside = [other for other in settings if other.column == setting.column]
        differ = {name for name in SETTINGS if len({getattr(other, name) for other in beside}) > 1}
        apart = [name for name in SETTINGS if name in differ or (name == "val_size" and splits[setting] == "val")]
        names[setting] = " ".join([str(setting.column), *_spell(setting, apart)])
    return names


def _spell(setting: Spec, names: Iterable[str]) -> list[str]:
    return [f"{name}={getattr(setting, name)}" for name in names]


def place(column: paper.Column) -> int:
    """The paper's columns in its order, then others."""
    return paper.COLUMNS.index(column) if column in paper.COLUMNS else len(paper.COLUMNS)


def _position(row: str) -> tuple[int, bool, str]:
    """The paper's rows in its order, then fixed activations, then hulls."""
    return paper.ROWS.index(row) if row in paper.ROWS else len(paper.ROWS), Row.parse(row).learns, row
