"""Experiments: runs that differ only in activation and seed, under one reading; a column of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property

from hullo.lab.analysis.readings import READINGS, Reading, fairest, read_accuracy, read_epoch, readings_of
from hullo.lab.analysis.statistics import Interval, paired
from hullo.lab.spec import paper
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.records import ACCURACY, Record
from hullo.lab.spec.run_spec import Spec

SAMPLE = "-sample"
REFERENCE = "relu"
"""The activation that all others are compared with."""
FIRST = "kerasnet/cifar10"
"""The first column of tables, figures and pages: the paper draws its activations, and hulls gain most there."""
SETTINGS = tuple(field.name for field in fields(Spec) if field.name not in ("network", "data", "activation", "seed"))
"""The settings that may distinguish experiments of a column."""


@dataclass(frozen=True)
class Cell:
    """The accuracy of the runs of one activation in percent, and its comparisons."""

    row: str
    accuracy: Interval
    over_reference: Interval | None  # the mean of differences between runs of the same seed
    published: float | None
    diverged: int  # runs, which count as the reading says
    best: bool  # among activations of which not all runs diverged

    @property
    def is_lost(self) -> bool:
        """Return whether all runs diverged."""
        return self.diverged == self.accuracy.count

    @property
    def over_published(self) -> float | None:
        return None if self.published is None else self.accuracy.mean - self.published


@dataclass(frozen=True)
class Experiment:
    """Runs that differ only in activation and seed, under one reading.

    Args:
        name: the column, and what sets it apart from other experiments of the same column.
        setting: what the runs share; its activation and seed mean nothing.
        epoch: the last that counts, counted from 1.
        records: one per run.
        reading: which epochs count.
        split: the images that accuracies are about, "test" or "val".
    """

    name: str
    setting: Spec
    epoch: int
    records: tuple[Record, ...]
    reading: Reading
    split: str = "test"

    @cached_property
    def runs(self) -> dict[str, list[Record]]:
        """Return the runs of each activation by seed; activations are in the paper's order."""
        found: dict[str, list[Record]] = {}
        for record in sorted(self.records, key=lambda record: (_position(record.spec.activation), record.spec.seed)):
            found.setdefault(record.spec.activation, []).append(record)
        return found

    def sound_runs(self, row: str) -> list[Record]:
        """Return the runs of an activation that did not diverge within the epochs in use."""
        return [record for record in self.runs[row] if not self.lost(record)]

    @cached_property
    def accuracies(self) -> dict[str, dict[int, float]]:
        """Return the accuracy of each run by activation, in the paper's order, and seed."""
        return {
            row: {r.spec.seed: read_accuracy(r, self.reading, self.epoch, self.split) for r in runs}
            for row, runs in self.runs.items()
        }

    @cached_property
    def scores(self) -> dict[str, dict[int, float]]:
        """Return the same as numbers that are larger for better runs."""
        return {row: {s: self._sign * value for s, value in runs.items()} for row, runs in self.accuracies.items()}

    @cached_property
    def validation_scores(self) -> dict[str, dict[int, float]]:
        """Return scores on held-out samples, of the same epochs; empty where some runs have none."""
        if not all(record.val_scores for record in self.records):
            return {}
        return replace(self, split="val").scores

    @property
    def _sign(self) -> int:
        return -1 if self.records[0].lower_is_better else 1

    @cached_property
    def by_reading(self) -> dict[Reading, Experiment]:
        """Return the experiment under each reading that the runs have."""
        return {reading: replace(self, reading=reading) for reading in readings_of(self.records, self.epoch)}

    def read_epoch(self, record: Record) -> int:
        """Return the epoch, counted from 1, whose coefficients belong to the reading."""
        return read_epoch(record, self.reading, self.epoch)

    def curve(self, record: Record) -> list[float]:
        """Return the accuracy of a run after each epoch, up to the last epoch in use."""
        return (record.test_scores if self.split == "test" else record.val_scores)[: self.epoch]

    @property
    def is_compared(self) -> bool:
        """Return whether these are runs of `hullo compare`, whose finding says what is better, and not their means."""
        return self.setting.conditions.get("lr") == "tuned"

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Return a cell per activation."""
        cells = {
            row: Cell(
                row=row,
                accuracy=Interval.of(reached.values()),
                over_reference=None if row == REFERENCE else self.difference(row, REFERENCE),
                published=self.published.get(row),
                diverged=sum(map(self.lost, self.runs[row])),
                best=False,
            )
            for row, reached in self.accuracies.items()
        }
        better = min if self.records[0].lower_is_better else max
        top = better((cell.accuracy.mean for cell in cells.values() if not cell.is_lost), default=None)
        if self.is_compared:
            return cells
        return {row: replace(c, best=c.accuracy.mean == top and not c.is_lost) for row, c in cells.items()}

    def difference(self, row: str, other: str) -> Interval | None:
        """Return the difference between two activations on their common seeds; None if there are none."""
        return paired(self.accuracies.get(row, {}), self.accuracies.get(other, {}))

    @cached_property
    def published(self) -> dict[str, float]:
        """Return the paper's figures by activation.

        Runs on a sample or another part of a data set, and those that `hullo.lab.record` wrote, compare with nothing.
        """
        if self.split == "val" or self.part or self.setting.settings is not None:
            return {}
        return published_figures(self.setting.column)

    @property
    def unit(self) -> str:
        """Return " %" for accuracies; other metrics have no unit that is known."""
        return " %" if self.records[0].metric == ACCURACY else ""

    @property
    def metric(self) -> str:
        """Return what the runs are compared by, with its unit."""
        return self.records[0].metric + (" in %" if self.unit else "")

    def spell(self, interval: Interval, sign: str = "") -> str:
        """Return a figure as text, with `sign` "+" for differences: accuracies have two decimals."""
        decimals = 2 if self.unit else interval.decimals
        return interval.spell(f"{sign}.{decimals}f")

    @property
    def images(self) -> str:
        """Return which images the accuracies refer to."""
        return "test" if self.split == "test" else "held-out"

    @property
    def part(self) -> list[int]:
        """Return the numbers of training and test images if the data set was incomplete."""
        return self.records[0].images

    @property
    def time(self) -> str:
        """Return the epochs in use as text: ``100 epochs``, or ``50 of 100 epochs``."""
        last = self.setting.epochs
        return f"{self.epoch}{'' if self.epoch == last else f' of {last}'} epoch{'s' * (last > 1)}"

    @property
    def seeds(self) -> str:
        """Return the number of seeds as text: ``5 seeds``, or ``2 to 5 seeds``."""
        counts = sorted({len(reached) for reached in self.accuracies.values()})
        return f"{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} seed{'s' * (counts[-1] > 1)}"

    @property
    def unusual(self) -> list[str]:
        """Return the names of the settings that differ from the defaults; all but the epochs where there are none."""
        if self.setting.settings is not None:
            return [name for name in self.setting.conditions if name != "epochs"]
        default = Spec.default(self.setting.network, self.setting.data, REFERENCE, epochs=self.setting.epochs)
        return [name for name in self.setting.conditions if getattr(self.setting, name) != getattr(default, name)]

    @property
    def remarks(self) -> list[str]:
        """Return what differs from the paper's experiments and from the defaults."""
        said = []
        if self.setting.data.endswith(SAMPLE):
            said.append(f"A sample of {self.setting.data.removesuffix(SAMPLE)}: not to be compared with the paper.")
        if self.part:
            trained, tested = self.part
            said.append(f"Trained with {trained:,} and evaluated on {tested:,} images, not on all of the data set.")
        if self.unusual:
            heading = "Non-default settings" if self.setting.settings is None else "Settings"
            said.append(f"{heading}: {', '.join(_spell(self.setting, self.unusual))}.")
        return said

    def lost(self, record: Record) -> bool:
        """Return whether a run diverged within the epochs in use."""
        return record.diverged_in is not None and record.diverged_in <= self.epoch


def experiments(
    records: Iterable[Record],
    *,
    reading: str | None = None,
    epoch: int | None = None,
    columns: Sequence[str] = (),
    rows: Sequence[str] = (),
    warn: Callable[[str], None] | None = None,
) -> list[Experiment]:
    """Group records into experiments, in the order of `place`, the longest of each column first.

    Runs with different settings are never in one experiment; the names say what sets them apart. Runs that saw
    different parts of a data set, or were evaluated on different samples, cannot be compared.

    Args:
        records: one per run.
        reading: the name of a reading; experiments without it are left out. By default each has its fairest one.
        epoch: the last that counts, from 1 on; by default the last of all. Experiments that ended before are left out.
        columns: which columns, and if there are several of one, with which settings, as their names are spelled.
        rows: which activations; by default all.
        warn: called for experiments whose runs cannot be compared, which are left out. If it is None, or there are no
            others, they raise a ValueError.
    """
    runs: dict[Spec, list[Record]] = {}
    for record in records:
        runs.setdefault(replace(record.spec, activation=REFERENCE, seed=0), []).append(record)
    splits = {setting: _split(alike) for setting, alike in runs.items()}
    names = _names(sorted(runs, key=lambda s: (place(s.column), -s.epochs, s.settings or "", astuple(s)[:-1])), splits)
    if columns:
        chosen = {setting for text in columns for setting in _fitting(text, names)}
        names = {setting: name for setting, name in names.items() if setting in chosen}
    names = _comparable(names, runs, warn)
    if epoch is not None and not any(1 <= epoch <= setting.epochs for setting in names):
        there = ", ".join(f"{name} has epochs 1 to {setting.epochs}" for setting, name in names.items())
        raise ValueError(f"no epoch {epoch}: {there}; choose another epoch, or other columns with --experiment")
    long_enough = ((s, name, epoch or s.epochs) for s, name in names.items() if s.epochs >= (epoch or 1))
    found = [Experiment(name, s, e, tuple(runs[s]), fairest(runs[s], e), splits[s]) for s, name, e in long_enough]
    if reading and reading not in READINGS:
        raise ValueError(f"unknown reading {reading!r}; available: {', '.join(READINGS)}")
    if reading and not (found := under(known := found, READINGS[reading])) and known:
        others = (f"{e.name} has {', '.join(map(str, e.by_reading))}" for e in known)
        raise ValueError(f"no runs with the reading {reading!r}: {'; '.join(others)}; choose another --reading")
    return _only(found, rows) if rows else found


def published_figures(column: paper.Column) -> dict[str, float]:
    """Return the figures of a column of the paper's table by activation."""
    rows = paper.ROWS if column in paper.COLUMNS else ()
    return {row: value for row in rows if (value := paper.accuracy(row, column)) is not None}


def _split(records: Sequence[Record]) -> str:
    """Return on which samples runs are compared: "test" where all were evaluated on them, otherwise "val"."""
    return "test" if all(record.test_scores for record in records) else "val"


def _comparable(
    names: Mapping[Spec, str], runs: Mapping[Spec, Sequence[Record]], warn: Callable[[str], None] | None
) -> dict[Spec, str]:
    """Return the experiments whose runs can be compared; warn of the others, or refuse them."""
    flaws = {setting: flaw for setting in names if (flaw := _find_flaw(runs[setting]))}
    for setting, flaw in flaws.items():
        if warn is None or len(flaws) == len(names):
            raise ValueError(flaw)
        warn(f"{flaw}; {names[setting]} is left out")
    return {setting: name for setting, name in names.items() if setting not in flaws}


def _find_flaw(records: Sequence[Record]) -> str:
    """Return why runs cannot be compared; an empty string if they can."""
    if len(metrics := sorted({record.metric for record in records})) > 1:
        return f"cannot compare runs by different metrics: {', '.join(metrics)}; give these runs another name"
    if len(parts := {tuple(record.images): record for record in records}) > 1:
        saw = (f"{r.spec} saw {' + '.join(map(str, r.images)) or 'all'} images" for r in parts.values())
        return f"cannot compare runs on different parts of a data set: {'; '.join(saw)}; choose one kind"
    untested, unheld = ([r for r in records if not getattr(r, f"{split}_scores")] for split in ("test", "val"))
    if untested and unheld:
        return (
            f"cannot compare runs on different samples: {untested[0].spec} has only val_accuracy, and "
            f"{unheld[0].spec} only test_accuracy; log one of them in all runs, or give these runs another name"
        )
    return ""


def under(experiments: Iterable[Experiment], reading: Reading) -> list[Experiment]:
    """Return the experiments that have a reading, under that reading."""
    return [experiment.by_reading[reading] for experiment in experiments if reading in experiment.by_reading]


def _only(experiments: Sequence[Experiment], rows: Sequence[str]) -> list[Experiment]:
    """Return the experiments with only the given activations; raise a ValueError if one has no records."""
    wanted, known = dict.fromkeys(str(ActivationSpec.parse(row)) for row in rows), rows_of(experiments)
    if missing := [row for row in wanted if row not in known]:
        raise ValueError(f"no records of {missing[0]!r}; available: {', '.join(known)}")
    kept = (replace(e, records=tuple(r for r in e.records if r.spec.activation in wanted)) for e in experiments)
    return [experiment for experiment in kept if experiment.records]


def rows_of(experiments: Iterable[Experiment]) -> list[str]:
    """Return all activations of experiments, in the paper's order."""
    return sorted({row for experiment in experiments for row in experiment.cells}, key=_position)


def _fitting(text: str, names: Mapping[Spec, str]) -> list[Spec]:
    """Return the settings that fit a column and words as names have them; all versions of a column without hashes."""
    column, *words = text.split() or [""]
    wanted = paper.parse_column(column)
    beside = (setting for setting in names if wanted in (setting.column, setting.column.without_hashes))
    fitting = [setting for setting in beside if set(words) <= set(_spell(setting, setting.conditions))]
    if not fitting:
        raise ValueError(f"no records of {text!r}; available: {', '.join(names.values())}")
    return fitting


def _names(settings: Sequence[Spec], splits: Mapping[Spec, str]) -> dict[Spec, str]:
    """Name each experiment by its column and the settings that distinguish it from others of the column.

    Hashes are part of the name only if there are several versions of a network or of its data.
    """
    names = {}
    versions = Counter(column.without_hashes for column in {setting.column for setting in settings})
    for setting in settings:
        short = setting.column.without_hashes
        beside = [other.conditions for other in settings if other.column == setting.column]
        apart = [
            name
            for name in setting.conditions
            if len({other.get(name) for other in beside}) > 1 or (name == "val_size" and splits[setting] == "val")
        ]
        names[setting] = " ".join([str(short if versions[short] == 1 else setting.column), *_spell(setting, apart)])
    return names


def _spell(setting: Spec, names: Iterable[str]) -> list[str]:
    return [f"{name}={setting.conditions.get(name)}" for name in names]


def place(column: paper.Column) -> tuple[bool, int]:
    """Return the sort key of a column: KerasNet on CIFAR-10, then the paper's columns in its order, then others."""
    known = paper.COLUMNS.index(column) if column in paper.COLUMNS else len(paper.COLUMNS)
    return str(column) != FIRST, known


def _position(row: str) -> tuple[int, bool, str]:
    """Return the sort key of a row: the paper's rows in its order, then fixed activations, then learned ones."""
    return paper.ROWS.index(row) if row in paper.ROWS else len(paper.ROWS), ActivationSpec.parse(row).learns, row
