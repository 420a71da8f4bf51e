"""Records of runs, one JSON line each, in an append-only file; tables and figures are made only from records."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hullo.lab.files import atomic_write, locked, open_regular
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.run_spec import MAX_LENGTH, Spec
from hullo.lab.spec.schema import Boolean, Exactly, Integer, List, Number, Object, Rule, Text, fail, read_json

VERSION = 3
MAX_BYTES = 2**26
"""The largest length of a line in bytes."""

_KINDS: dict[str, Rule] = {"int": Integer(), "float": Number(0), "str": Text()}
_SPEC, _ENVIRONMENT = (
    Object({f.name: _KINDS[str(f.type)] for f in fields(kind) if f.name != "settings"}) for kind in (Spec, Environment)
)
_RECORDED = Object(
    {name: _SPEC.fields[name] for name in ("network", "data", "activation", "seed", "epochs")} | {"settings": Text()}
)
_FLOAT32 = 3.4028235e38
_FINITE, _ANY = (Number(-_FLOAT32, _FLOAT32, null=null) for null in (False, True))
_PERCENT = Number(0, 100)
ACCURACY = "accuracy"
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

    @property
    def chosen_epoch(self) -> int:
        """Return the epoch, counted from 1, that was best on validation data before a divergence; else the last."""
        sound = self.val_accuracy[: (self.diverged_in or len(self.val_accuracy) + 1) - 1]
        return 1 + sound.index(max(sound)) if sound else self.spec.epochs

    def line(self) -> bytes:
        """Return the record as one line of JSON."""
        values = {"version": VERSION, "id": self.spec.id, **asdict(self), "spec": self.spec.to_dict()}
        if not self.layers:
            del values["layers"]
        if self.metric == ACCURACY:
            for name in _OF_METRIC:
                del values[name]
        return json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Record:
        """Parse the record of a line; raise a ValueError that names an invalid field."""
        values = read_json(line)
        version = values.get("version") if isinstance(values, dict) else None
        if version != VERSION or type(version) is not int:
            fail("version", version, f"this hullo reads version {VERSION}")
        if "spec" not in values:
            raise ValueError("spec: missing")
        is_recorded = isinstance(values["spec"], dict) and "settings" in values["spec"]
        (_RECORDED if is_recorded else _SPEC).check(values["spec"], "spec")
        try:
            spec = Spec(**values["spec"])
        except ValueError as error:
            raise ValueError(f"spec: {error}") from None
        Object(_rules(spec, values)).check(values, "")
        if values["id"] != spec.id:
            fail("id", values["id"], f"the id of the spec is {spec.id!r}; the line was edited")
        given = {name: value for name, value in values.items() if name not in ("version", "id")}
        return cls(**given | {"spec": spec, "environment": Environment(**values["environment"])})


def _rules(spec: Spec, values: dict[str, Any]) -> dict[str, Rule]:
    """Return the rules for the fields of a run's record: the lengths of lists, and where null is allowed.

    Numbers are null from the epoch on in which the run diverged, and not before.
    """
    row, epochs, ended = spec.row, spec.epochs, values.get("ended")
    diverged = re.fullmatch(r"diverged in epoch ([1-9]\d{0,18})", ended) if isinstance(ended, str) else None
    if ended != "finished" and not (diverged and int(diverged[1]) <= epochs):
        fail("ended", ended, f"must be 'finished' or 'diverged in epoch N', N from 1 to {epochs}")
    finite = int(diverged[1]) - 1 if diverged else epochs
    losses = List(_FINITE, epochs, "epoch", from_index=finite, after=_ANY)
    accuracies = List(_PERCENT, epochs, "epoch")
    empty = List(_ANY, 0)
    held_out = spec.val_size > 0 or (spec.is_own_data and bool(values.get("val_accuracy")))
    tested = not held_out or values.get("test_accuracy") != []  # some runs were evaluated only on held-out images
    bases = [item.name for item in row.bases] if row.learns else []
    points = values.get("coefficients")
    layers = len(points[0]) if isinstance(points, list) and points and isinstance(points[0], list) else 1
    point, later = (
        List(List(number, len(bases), "base function"), max(1, layers), "layer") for number in (_FINITE, _ANY)
    )
    per_channel = List(List(List(_ANY if diverged else _FINITE, len(bases), "base function")), layers, "layer")
    curves = {
        "train_loss": losses,
        "test_loss": losses if tested else empty,
        "test_accuracy": accuracies if tested else empty,
        "test_top5": accuracies if values.get("test_top5") else empty,
        "val_loss": losses if held_out else empty,
        "val_accuracy": accuracies if held_out else empty,
    }
    if spec.settings is not None:
        kinds = {name: losses if name.endswith("loss") else accuracies for name in curves}
        if "metric" in values:
            scores = {name: List(_FINITE, epochs, "epoch") for name in ("test_metric", "val_metric")}
            kinds = kinds | dict.fromkeys(("test_accuracy", "val_accuracy", "test_top5"), empty) | scores
        curves = {name: kind if values.get(name) else empty for name, kind in kinds.items()}
        compared = "metric" if "metric" in values else ACCURACY
        if not values.get(f"test_{compared}") and not values.get(f"val_{compared}"):
            fail(f"test_{compared}", values.get(f"test_{compared}"), f"this or val_{compared} must be logged")
    return {
        "version": Integer(),
        "id": Text(),
        "spec": _SPEC if spec.settings is None else _RECORDED,
        "ended": Text(),
        **curves,
        "bases": Exactly(bases),
        "coefficients": List(point, 1 + epochs, "epoch and one before", 1 + finite, later) if bases else empty,
        "members": Integer(1, 2**31),
        "seconds": Number(0, 1e10),
        "environment": _ENVIRONMENT,
        "channels": per_channel if row.per == "channel" else empty,
        "images": List(Integer(1), 2) if values.get("images") else empty,
        **({"layers": List(Text(), layers, "layer")} if "layers" in values else {}),
        **(
            {"metric": Text(), "lower_is_better": Boolean()} if "metric" in values and spec.settings is not None else {}
        ),
    }


class Records:
    """A file of records, to which several processes may append; each line is read and validated once.

    A process that is killed while it writes leaves an incomplete last line, which is ignored; the next process that
    writes removes it. A last line that lacks only its end, as some editors leave it, is complete.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._known: dict[Spec, tuple[int, Record]] = {}  # the valid records with the numbers of their lines
        self._position = (0, 0)  # bytes and lines that are known
        self._file: tuple[int, int, int] | None = None  # inode, size and time of the last change

    def __reduce__(self) -> tuple[type[Records], tuple[Path]]:
        return Records, (self.path,)  # other processes read the file themselves

    def read(self) -> list[Record]:
        """Return all records in the order of the file; raise a ValueError if a line is not a record."""
        records, flaws = self.scan()
        if flaws:
            raise ValueError(f"{flaws[0]}; correct or delete that line, or choose another file or directory")
        return records

    def scan(self) -> tuple[list[Record], list[str]]:
        """Return all records in the order of the file, and error messages for lines that are not records.

        Only lines that were appended since the last call are read, unless the file was replaced.
        """
        flaws = []
        try:
            self._forget_unless_appended()
            for number, line in self._new_lines():
                try:
                    if len(line) == MAX_BYTES and not line.endswith(b"\n"):
                        raise ValueError(f"longer than {MAX_BYTES:,} bytes")
                    record = Record.parse(line)
                    first, earlier = self._known.setdefault(record.spec, (number, record))
                    if earlier != record:
                        raise ValueError(f"spec: line {first} has another record of the same run")
                except ValueError as error:
                    flaws.append(f"{self.path}, line {number}: {error}")
        except OSError as error:
            raise ValueError(f"cannot read {self.path}: {error.strerror}; choose another file or directory") from error
        if flaws:
            self._file = None  # to report them again
        return [record for _, record in self._known.values()], flaws

    def find(self, specs: Iterable[Spec]) -> dict[Spec, Record]:
        """Return the records of runs that have one."""
        self.read()
        return {spec: self._known[spec][1] for spec in specs if spec in self._known}

    def _forget_unless_appended(self) -> None:
        """Forget what is known of a file that was replaced or changed, rather than appended to."""
        status = self.path.stat() if self.path.exists() else None
        file = status and (status.st_ino, status.st_size, status.st_mtime_ns)
        before, self._file = self._file, file
        is_appended = before and file and (before == file or (before[0] == file[0] and before[1] < file[1]))
        if not is_appended:
            self._known, self._position = {}, (0, 0)

    def _new_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield complete lines with their numbers; truncate those that are too long, skip empty ones."""
        if not self.path.exists():
            return
        start, known = self._position
        with open_regular(self.path) as file:
            file.seek(start)
            for number in itertools.count(known + 1):
                line = rest = file.readline(MAX_BYTES)
                while rest and not rest.endswith(b"\n"):
                    rest = file.readline(MAX_BYTES)
                if line.strip() and (rest or _is_complete(line)):
                    yield number, line
                if not rest:
                    return
                self._position = (file.tell(), number)

    @property
    def truncated_bytes(self) -> int:
        """Return the number of bytes of an incomplete last line."""
        return self.path.stat().st_size - self._end() if self.path.exists() else 0

    def describe_truncated(self) -> str:
        """Return a sentence on an incomplete last line; empty if there is none."""
        if not (count := self.truncated_bytes):
            return ""
        what = f"ignoring the last line of {self.path}, which is truncated after {count:,} bytes"
        return f"{what}; the next record written there removes it"

    def add(self, records: Iterable[Record], prepare: Callable[[list[Record]], None] | None = None) -> None:
        """Append the records whose spec has none yet, in one write; if that fails, append none.

        `prepare` is called with these records before, while no other process can add any.
        """
        with self._locked():
            given = {record.spec: record for record in records}
            existing = self.find(given)
            new = {spec: record for spec, record in given.items() if spec not in existing}
            lines = b"".join(_check_line(record.line()) for record in new.values())
            if prepare is not None:
                prepare(list(new.values()))
            self._append(lines)

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
        with self.path.open("ab", buffering=0) as file:
            end = self._end()
            file.truncate(end)
            lines = b"\n" * self._lacks_newline(end) + lines
            try:
                if file.write(lines) != len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise

    def _lacks_newline(self, end: int) -> bool:
        with open_regular(self.path) as file:
            file.seek(max(0, end - 1))
            return end > 0 and file.read(1) != b"\n"

    def _end(self) -> int:
        """Return the position after the last complete line."""
        with open_regular(self.path) as file:
            size = end = file.seek(0, os.SEEK_END)
            while end:
                start = max(0, end - 2**20)
                file.seek(start)
                if (last := file.read(end - start).rfind(b"\n")) >= 0:
                    end = start + last + 1
                    break
                end = start
            file.seek(end)
            return size if 0 < size - end <= MAX_BYTES and _is_complete(file.read()) else end


def _is_complete(line: bytes) -> bool:
    """Return whether a line without an end is not truncated: a part of an object is not valid JSON."""
    try:
        return isinstance(read_json(line), dict)
    except ValueError:
        return False


def _check_line(line: bytes) -> bytes:
    """Return a record's line after checking that it can be parsed again."""
    Record.parse(line)
    return line


def spell_module(name: str) -> str:
    r"""Return the name of a module as records have it: printable, and not too long.

    >>> spell_module("blocks.first\tact")
    'blocks.first\\tact'
    """
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 3]}..."


def round_number(value: float) -> float:
    """Round to six significant digits, about the precision of float32."""
    return float(f"{value:.6g}")


def round_numbers(values: Iterable[float]) -> list[float | None]:
    """Round numbers; return None for those that are not finite in float32."""
    return [round_number(value) if abs(value) <= _FLOAT32 else None for value in values]
