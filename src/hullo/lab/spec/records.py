"""Records of runs, one JSON line each, in an append-only file; tables and figures are made only from records."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hullo.lab.files import atomic_write, locked
from hullo.lab.spec import schema
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.run_spec import MAX_LENGTH, Spec

VERSION = 3
ACCURACY = "accuracy"
_KINDS = {"int": schema.integer(), "float": schema.number(0), "str": schema.text()}
_SPEC, _ENVIRONMENT = (
    {field.name: _KINDS[str(field.type)] for field in fields(kind) if field.name != "settings"}
    for kind in (Spec, Environment)
)
_RECORDED = {n: _SPEC[n] for n in ("network", "data", "activation", "seed", "epochs")} | {"settings": schema.text()}
_FLOAT32 = 3.4028235e38
_FINITE, _ANY = (schema.number(-_FLOAT32, _FLOAT32, null=null) for null in (False, True))
_EMPTY = schema.items(_ANY, 0)
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
        values = schema.read_json(line)
        version = values.get("version") if isinstance(values, dict) else None
        if version != VERSION or type(version) is not int:
            schema.fail("version", version, f"this hullo reads version {VERSION}")
        given = values.get("spec", {})
        is_recorded = isinstance(given, dict) and "settings" in given
        schema.fields(_RECORDED if is_recorded else _SPEC)(given, "spec")
        try:
            spec = Spec(**given)
        except ValueError as error:
            raise ValueError(f"spec: {error}") from None
        schema.fields(_rules(spec, values))(values, "")
        if values["id"] != spec.id:
            schema.fail("id", values["id"], f"the id of the spec is {spec.id!r}; the line was edited")
        del values["version"], values["id"]
        return cls(**values | {"spec": spec, "environment": Environment(**values["environment"])})


def _rules(spec: Spec, values: dict[str, Any]) -> dict[str, schema.Rule]:
    """Return the rules for the fields of a run's record: the lengths of lists, and where null is allowed.

    Numbers are null from the epoch on in which the run diverged, and not before.
    """
    row, epochs, ended = spec.row, spec.epochs, values.get("ended")
    diverged = re.fullmatch(r"diverged in epoch ([1-9]\d{0,18})", ended) if isinstance(ended, str) else None
    if ended != "finished" and not (diverged and int(diverged[1]) <= epochs):
        schema.fail("ended", ended, f"must be 'finished' or 'diverged in epoch N', N from 1 to {epochs}")
    finite = int(diverged[1]) - 1 if diverged else epochs
    losses = schema.items(_FINITE, epochs, "epochs", later=_ANY, since=finite)
    accuracies = schema.items(schema.number(0, 100), epochs, "epochs")
    curves = dict.fromkeys(("train_loss", "test_loss", "val_loss"), losses)
    curves |= dict.fromkeys(("test_accuracy", "val_accuracy", "test_top5"), accuracies)
    if spec.settings is None:
        held_out = spec.val_size > 0 or (spec.is_own_data and bool(values.get("val_accuracy")))
        tested = not held_out or values.get("test_accuracy") != []  # some runs were evaluated only on held-out images
        absent = ["val_loss", "val_accuracy"] * (not held_out) + ["test_loss", "test_accuracy"] * (not tested)
        absent += ["test_top5"] * (not values.get("test_top5"))
    else:
        compared = "metric" if "metric" in values else ACCURACY
        if compared == "metric":
            scores = schema.items(_FINITE, epochs, "epochs")
            curves |= dict.fromkeys(("test_accuracy", "val_accuracy", "test_top5"), _EMPTY)
            curves |= {"test_metric": scores, "val_metric": scores}
        absent = [name for name in curves if not values.get(name)]
        if {f"test_{compared}", f"val_{compared}"} <= set(absent):
            schema.fail(f"test_{compared}", values.get(f"test_{compared}"), f"this or val_{compared} must be logged")
    bases = [item.name for item in row.bases] if row.learns else []
    points = values.get("coefficients")
    layers = len(points[0]) if isinstance(points, list) and points and isinstance(points[0], list) else 1
    point, later = (
        schema.items(schema.items(value, len(bases), "base functions"), max(1, layers), "layers")
        for value in (_FINITE, _ANY)
    )
    channels = schema.items(schema.items(_ANY if diverged else _FINITE, len(bases), "base functions"))
    optional = {
        "layers": schema.items(schema.text(), layers, "layers"),
        "metric": schema.text(),
        "lower_is_better": schema.rule(lambda value: type(value) is bool, "must be true or false"),
    }
    return {
        "version": schema.integer(),
        "id": schema.text(),
        "spec": lambda *_: None,  # checked before
        "ended": schema.text(),
        **curves,
        **dict.fromkeys(absent, _EMPTY),
        "bases": schema.rule(lambda value: value == bases, f"must be {bases}"),
        "coefficients": schema.items(
            point, 1 + epochs, "points, one per epoch and one before", later=later, since=1 + finite
        )
        if bases
        else _EMPTY,
        "members": schema.integer(1, 2**31),
        "seconds": schema.number(0, 1e10),
        "environment": schema.fields(_ENVIRONMENT),
        "channels": schema.items(channels, layers, "layers") if row.per == "channel" else _EMPTY,
        "images": schema.items(schema.integer(1), 2, "numbers") if values.get("images") else _EMPTY,
        **{n: rule for n, rule in optional.items() if n in values and (n == "layers" or spec.settings is not None)},
    }


class Records:
    """A file of records, to which several processes may append; each line is validated once.

    A process that is killed while it writes leaves an incomplete last line, which is ignored; the next process that
    writes removes it. A last line that lacks only its end, as some editors leave it, is complete.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._parsed: dict[bytes, Record] = {}  # by line

    def __reduce__(self) -> tuple[type[Records], tuple[Path]]:
        return Records, (self.path,)  # other processes read the file themselves

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
                record = self._parsed.get(line) or Record.parse(line)
                first, earlier = known.setdefault(record.spec, (number, record))
                if earlier != record:
                    raise ValueError(f"spec: line {first} has another record of the same run")
                self._parsed[line] = record
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

    def describe_truncated(self) -> str:
        """Return a sentence on an incomplete last line; empty if there is none."""
        content, end = self._read_file()
        if len(content) == end:
            return ""
        what = f"ignoring the last line of {self.path}, which is truncated after {len(content) - end:,} bytes"
        return f"{what}; the next record written there removes it"

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
        return isinstance(schema.read_json(line), dict)
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
