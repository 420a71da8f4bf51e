"""Records of runs, one line each, in a file that only grows: tables and figures are made from records alone."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from hullo.lab.bench.rows import Environment
from hullo.lab.files import locked
from hullo.lab.specs import Spec
from hullo.lab.training import Training

VERSION = 2


@dataclass(frozen=True)
class Record:
    """Describe how a run went. Numbers that are not finite are None.

    Lists hold a value per epoch; `coefficients` one more, the initial ones. Each of its items is a list of layers, each
    of these a coefficient for each of `bases`; a fixed activation has none. With one activation per channel, those are
    the means over the channels, and `channels` holds the final coefficients of each layer's channels. `val_loss` and
    `val_accuracy` are those on held-out training images and empty where there are none; `test_top5` is there where a
    data set's results are usually given so, `images` where not all of the data set was there. Runs that were evaluated
    on held-out images alone have no test curves.
    """

    spec: Spec
    ended: str  # "finished", or "diverged in epoch N", counted from 1
    train_loss: list[float | None]
    test_loss: list[float | None]
    test_accuracy: list[float]
    bases: list[str]
    coefficients: list[list[list[float | None]]]
    members: int  # how many runs were trained side by side
    seconds: float  # which they took together
    environment: Environment
    channels: list[list[list[float | None]]] = field(default_factory=list)
    test_top5: list[float] = field(default_factory=list)
    val_loss: list[float | None] = field(default_factory=list)
    val_accuracy: list[float] = field(default_factory=list)
    images: list[int] = field(default_factory=list)  # how many it was trained with and tested on

    @property
    def accuracy(self) -> float:
        """Return the accuracy after the last epoch in percent, on the test images if there is one."""
        return (self.test_accuracy or self.val_accuracy)[-1]

    @property
    def diverged(self) -> bool:
        return self.ended != "finished"

    @property
    def diverged_in(self) -> int | None:
        """Return the epoch, counted from 1."""
        return int(self.ended.rpartition(" ")[2]) if self.diverged else None

    def line(self) -> bytes:
        """Return the record as one line of JSON."""
        values = {"version": VERSION, "id": self.spec.id, **asdict(self)}
        return json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Record:
        """Read the record of a line; refuse another version."""
        values: dict[str, Any] = json.loads(line)
        if (version := values.pop("version", None)) != VERSION:
            raise ValueError(f"a record of version {version}, but this hullo reads version {VERSION}")
        del values["id"]
        return cls(**values | {"spec": Spec(**values["spec"]), "environment": Environment(**values["environment"])})


def take_records(training: Training, environment: Environment) -> list[Record]:
    """Return the members' records at the end of their training."""
    network, curves, held_out = training.network, training.curves, "val" in training.feed.eval_sizes
    records = []
    for k, (spec, row) in enumerate(zip(training.specs, network.rows, strict=True)):
        columns = [network.activations.bases.index(item) for item in row.bases] if row.learns else []
        points = (training.start[k], *curves["coefficients"][:, k])
        over_time = [[layer[:, columns] for layer in network.activations.split_member(k, point)] for point in points]
        sound = curves["sound"][:, k].tolist()
        accuracy, *top5 = (list(map(_rounded, top)) for top in curves["test_accuracy"][:, k].T.tolist())
        records.append(
            Record(
                spec=spec,
                ended="finished" if all(sound) else f"diverged in epoch {sound.index(False) + 1}",
                train_loss=_numbers(curves["train_loss"][:, k]),
                test_loss=_numbers(curves["test_loss"][:, k]),
                test_accuracy=accuracy,
                bases=[network.activations.bases[column].name for column in columns],
                coefficients=[[_numbers(layer.mean(0)) for layer in point] for point in over_time] if columns else [],
                members=len(training.specs),
                seconds=round(training.seconds, 3),
                environment=environment,
                channels=[[*map(_numbers, layer)] for layer in over_time[-1]] if row.per == "channel" else [],
                test_top5=top5[0] if top5 else [],
                val_loss=_numbers(curves["val_loss"][:, k]) if held_out else [],
                val_accuracy=[*map(_rounded, curves["val_accuracy"][:, k, 0].tolist())] if held_out else [],
                images=[] if training.feed.whole else [training.feed.count, training.feed.eval_sizes["test"]],
            )
        )
    return records


def _numbers(values: Tensor) -> list[float | None]:
    return [_rounded(value) if math.isfinite(value) else None for value in values.tolist()]


def _rounded(value: float) -> float:
    """Six digits of a number, which is about what float32 holds."""
    return float(f"{value:.6g}")


@dataclass(frozen=True)
class Records:
    """A file of records, to which several processes may add.

    A process that is killed while it writes leaves a last line without an end: it counts for nothing, and the next
    process that adds takes it away.
    """

    path: Path

    def read(self) -> list[Record]:
        """All records in the order in which they were added."""
        if not self.path.exists():
            return []
        whole = self.path.read_bytes().rpartition(b"\n")[0]
        records = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                records.append(Record.parse(line))
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise ValueError(f"{self.path}, line {number}: {error}; name another file or directory") from error
        return records

    @property
    def torn(self) -> int:
        """How many bytes there are of a last line without an end."""
        return self.path.stat().st_size - self._end() if self.path.exists() else 0

    def add(self, records: Iterable[Record]) -> None:
        """Add those whose spec has no record yet, all in one write; if that fails, none."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.with_name(f".{self.path.stem}.lock")):
            known = {record.spec for record in self.read()}
            lines = b"".join({r.spec: r.line() for r in records if r.spec not in known}.values())
            with self.path.open("ab", buffering=0) as file:
                end = self._end()
                file.truncate(end)
                try:
                    if file.write(lines) != len(lines):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(end)
                    raise

    def _end(self) -> int:
        """Where the last whole line ends."""
        return self.path.read_bytes().rfind(b"\n") + 1
