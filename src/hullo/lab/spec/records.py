"""Records of runs, one JSON line each, in an append-only file; tables and figures are made only from records."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hullo.lab.files import atomic_write, locked
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.run_spec import Spec

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 3
ACCURACY = "accuracy"
_FLOAT32 = 3.4028235e38
_LOSSES = ("train_loss", "test_loss", "val_loss")
_SCORES = ("test_accuracy", "val_accuracy", "test_top5", "test_metric", "val_metric")
_OF_METRIC = ("metric", "lower_is_better", "test_metric", "val_metric")


@dataclass(frozen=True)
class Record:
    """The result of a run. Numbers that are not finite are None.

    Lists have a value per epoch; `coefficients` has one more, the initial ones. Each is a list of layers with a
    coefficient per base; it is empty for fixed activations. With one activation per channel, these are means over the
    channels, and `channels` has the final coefficients of each layer's channels. `val_loss` and `val_accuracy` refer to
    held-out training images or a validation set and are empty if there are none. `test_top5` is given for ILSVRC-2012,
    and `images` if the data set was incomplete. Runs that were evaluated only on held-out images have no test curves.
    Runs that :func:`hullo.lab.record` wrote have the curves that were logged.
    """

    spec: Spec
    ended: str  # "finished", or "diverged in epoch N", counted from 1
    train_loss: list[float | None]
    test_loss: list[float | None]
    test_accuracy: list[float]
    bases: list[str]
    coefficients: list[list[list[float | None]]]
    members: int  # number of networks in the population
    seconds: float  # the time of all of them together
    environment: Environment
    channels: list[list[list[float | None]]] = field(default_factory=list)
    test_top5: list[float] = field(default_factory=list)
    val_loss: list[float | None] = field(default_factory=list)
    val_accuracy: list[float] = field(default_factory=list)
    images: list[int] = field(default_factory=list)  # numbers of training and of test images
    layers: list[str] = field(default_factory=list)  # names of the modules of a user's network that learn activations
    metric: str = ACCURACY  # what runs are compared by; if it is another, the next fields have it, and no accuracies
    lower_is_better: bool = False
    test_metric: list[float] = field(default_factory=list)
    val_metric: list[float] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """Return the accuracy, or another metric, after the last epoch, on the test images if they were evaluated."""
        return (self.test_scores or self.val_scores)[-1]

    @property
    def test_scores(self) -> list[float]:
        """Return the metric that runs are compared by after each epoch, on the test data."""
        return self.test_accuracy if self.metric == ACCURACY else self.test_metric

    @property
    def val_scores(self) -> list[float]:
        """Return the same on validation data."""
        return self.val_accuracy if self.metric == ACCURACY else self.val_metric

    @property
    def diverged(self) -> bool:
        return self.ended != "finished"

    @property
    def diverged_in(self) -> int | None:
        """Return the epoch, counted from 1."""
        return int(self.ended.rpartition(" ")[2]) if self.diverged else None

    def line(self) -> bytes:
        """Return the record as one line of JSON."""
        named = {"spec": self.spec.to_dict(), "environment": vars(self.environment)}
        values = {"version": VERSION, "id": self.spec.id, **vars(self), **named}
        hidden = (*([] if self.layers else ["layers"]), *(_OF_METRIC if self.metric == ACCURACY else []))
        shown = {name: value for name, value in values.items() if name not in hidden}
        return json.dumps(shown, allow_nan=False, separators=(",", ":")).encode() + b"\n"

    @classmethod
    @functools.cache
    def parse(cls, line: bytes) -> Record:
        """Parse and validate a line, once in a process; raise a ValueError that says what is wrong with it."""
        try:
            values = json.loads(line.decode())
            if not isinstance(values, dict) or values.pop("version", None) != VERSION:
                raise ValueError(f"it is not a record of version {VERSION}, which this hullo reads")
            spec, name = Spec(**values.pop("spec")), values.pop("id")
            if name != spec.id:
                raise ValueError(f"the id of its spec is {spec.id!r}; the line was edited")
            record = cls(**values | {"spec": spec, "environment": Environment(**values["environment"])})
            record._check()
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            reason = "".join(filter(str.isprintable, f"{type(error).__name__}: {error}"))
            raise ValueError(reason[:300]) from None
        return record

    def _check(self) -> None:
        """Raise a ValueError if curves and coefficients do not have the epochs and the bases of the spec."""
        epochs, bases = self.spec.epochs, [item.name for item in self.spec.row.bases] if self.spec.row.learns else []
        for name in (*_LOSSES, *_SCORES):
            if len(getattr(self, name)) not in (0, epochs):
                raise ValueError(f"{name}: must be a list of {epochs} numbers, one per epoch")
        if not self.test_scores and not self.val_scores:
            raise ValueError(f"test_{self.metric}, val_{self.metric}: one of them must be there")
        if self.bases != bases or len(self.coefficients) != (1 + epochs if bases else 0):
            raise ValueError(
                f"bases and coefficients: must be those of {self.spec.row}, before and after each of {epochs} epochs"
            )


def learned_fields(row: ActivationSpec, layers: Iterable[str], points: Sequence[Sequence[Tensor]]) -> dict[str, Any]:
    """Return the fields of a record on learned activations; lists are empty for fixed ones.

    Args:
        row: the activation.
        layers: names of the layers.
        points: the coefficients of each layer, (channels, bases), by epoch.
    """
    if not row.learns:
        return {"bases": [], "coefficients": [], "channels": [], "layers": []}
    return {
        "bases": [item.name for item in row.bases],
        "coefficients": [[round_numbers(layer.mean(0).tolist()) for layer in point] for point in points],
        "channels": [[*map(round_numbers, layer.tolist())] for layer in points[-1]] if row.per == "channel" else [],
        "layers": [*layers],
    }


def make_record(
    spec: Spec,
    learned: Mapping[str, Any],
    losses: Mapping[str, Sequence[float]],
    sound: Sequence[bool] = (),
    **more: Any,
) -> Record:
    """Return the record of a finished run.

    Args:
        spec: of the run.
        learned: the `learned_fields`.
        losses: by name and epoch; they, coefficients and what is not `sound` say when the run diverged.
        sound: whether all else was finite, by epoch.
        more: the other fields of the record.
    """
    rounded = {name: round_numbers(curve) for name, curve in losses.items()}
    finite = [*sound] or [True] * spec.epochs
    for epoch in range(spec.epochs):
        numbers = [curve[epoch] for curve in rounded.values() if curve]
        for point in learned["coefficients"][1 + epoch : 2 + epoch]:
            numbers += itertools.chain(*point)
        finite[epoch] = finite[epoch] and None not in numbers
    ended = "finished" if all(finite) else f"diverged in epoch {1 + finite.index(False)}"
    return Record(spec=spec, ended=ended, **learned, **{**rounded, **more, "seconds": round(more["seconds"], 3)})


class Records:
    """A file of records, to which several processes may append.

    A process that is killed while it writes leaves an incomplete last line, which is ignored; the next process that
    writes removes it. A last line that lacks only its end, as some editors leave it, is complete.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def read(self) -> list[Record]:
        """Return all records in the order of the file; raise a ValueError if a line is not a record."""
        records, flaws = self.scan()
        if flaws:
            raise ValueError(f"{flaws[0]}; correct or delete that line, or choose another file or directory")
        return records

    def scan(self) -> tuple[list[Record], list[str]]:
        """Return all records in the order of the file, and error messages for lines that are not records."""
        content, end = self._read_file()
        known: dict[Spec, tuple[int, Record]] = {}
        flaws = []
        for number, line in enumerate(content[:end].split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                record = Record.parse(line)
                first, earlier = known.setdefault(record.spec, (number, record))
                if earlier != record:
                    raise ValueError(f"spec: line {first} has another record of the same run")
            except ValueError as error:
                flaws.append(f"{self.path}, line {number}: {error}")
        return [record for _, record in known.values()], flaws

    def find(self, specs: Iterable[Spec]) -> dict[Spec, Record]:
        """Return the records of runs that have one."""
        wanted = set(specs)
        return {record.spec: record for record in self.read() if record.spec in wanted}

    def _read_file(self) -> tuple[bytes, int]:
        """Return the content of the file, and where its last complete line ends."""
        try:
            content = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise ValueError(f"cannot read {self.path}: {error.strerror}; choose another file or directory") from error
        end = content.rfind(b"\n") + 1
        return content, len(content) if _is_complete(content[end:]) else end

    def add(self, records: Iterable[Record]) -> None:
        """Append the records whose spec has none yet, in one write; if that fails, append none."""
        with self._locked():
            given = {record.spec: record for record in records}
            existing = self.find(given)
            self._append(b"".join(_check_line(r.line()) for spec, r in given.items() if spec not in existing))

    def put(self, record: Record, *, overwrite: bool) -> None:
        """Append a record; raise a FileExistsError if its run has one, unless that is to be overwritten."""
        line = _check_line(record.line())
        with self._locked():
            existing = self.check_new(record.spec, overwrite=overwrite)
            others = [other for other in existing if not other.spec.is_same_run(record.spec)]
            if len(others) == len(existing):
                self._append(line)
            else:
                with atomic_write(self.path) as file:
                    file.write(b"".join(other.line() for other in others) + line)

    def check_new(self, spec: Spec, *, overwrite: bool = False) -> list[Record]:
        """Return all records; raise a FileExistsError if the run has one, unless that is to be overwritten."""
        existing = self.read()
        same = [str(record.spec) for record in existing if record.spec.is_same_run(spec)]
        if same and not overwrite:
            raise FileExistsError(
                f"{self.path} has a record of this run already: {same[0]}; give overwrite=True to replace it, or "
                "change a setting, the seed or the directory"
            )
        return existing

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.path.resolve()  # links to one file share its lock
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.stem}.lock")):
            yield

    def _append(self, lines: bytes) -> None:
        content, end = self._read_file()
        if end and content[end - 1 : end] != b"\n":
            lines = b"\n" + lines
        with self.path.open("ab", buffering=0) as file:
            file.truncate(end)
            try:
                if file.write(lines) != len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


def _is_complete(line: bytes) -> bool:
    """Return whether a line without an end is not truncated: a part of an object is not valid JSON."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _check_line(line: bytes) -> bytes:
    """Return a record's line after checking that it can be parsed again."""
    Record.parse(line)
    return line


def round_number(value: float) -> float:
    """Round to six significant digits, about the precision of float32."""
    return float(f"{value:.6g}")


def round_numbers(values: Iterable[float]) -> list[float | None]:
    """Round numbers; return None for those that are not finite in float32."""
    return [round_number(value) if abs(value) <= _FLOAT32 else None for value in values]
