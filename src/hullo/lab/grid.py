"""Many runs: those that can stand side by side become populations, trained one after the other."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from threading import Event

import torch

from hullo.lab.bench.rows import Setting
from hullo.lab.checkpoints import Checkpoints
from hullo.lab.data import Dataset
from hullo.lab.paper import COLUMNS, Column
from hullo.lab.progress import Steps
from hullo.lab.records import Record, Records, take_records
from hullo.lab.specs import Spec
from hullo.lab.training import Training

DATA_COLUMNS = tuple(column for column in COLUMNS if column.network != "alexnet")
"""The paper's columns whose data are at hand."""

GLANCE = 0.5
"""Seconds between two moves of the progress bar."""


def parse_column(text: str) -> Column:
    """The column of a spelling such as ``kerasnet/cifar10``.

    >>> parse_column("lenet5/cifar10").network
    'lenet5'
    """
    network, slash, data = text.partition("/")
    if not slash:
        known = ", ".join(map(str, DATA_COLUMNS))
        raise ValueError(f"{text!r} is no column: write network/data; the paper's are {known}")
    return Column(network, data)


@dataclass
class Grid:
    """Runs to be made into an output directory: those that it has no record of.

    Args:
        specs: the runs.
        datasets: the data sets they see, by name, on the device where they train.
        output: the directory of the records, and of checkpoints while there are runs under way.
        setting: the machine and the versions, as the records have them.
        every: seconds between checkpoints.
    """

    specs: Sequence[Spec]
    datasets: Mapping[str, Dataset]
    output: Path
    setting: Setting
    every: float = 30.0
    _fitting: dict[Spec, int] = field(default_factory=dict, repr=False)

    @property
    def records(self) -> Records:
        return Records(self.output / "records.jsonl")

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.output / "checkpoints")

    def run(self, progress: Steps) -> list[Record]:
        """Make the runs that have no record; the records of all. Ctrl-C saves, then raises KeyboardInterrupt."""
        with _asked_to_stop() as stop:

            def wait(attempt: int) -> None:
                if attempt == 0:
                    progress.note(f"another process trains these networks into {self.output}; waiting for it")
                if stop.is_set():
                    raise KeyboardInterrupt

            while population := self._next():
                with self.checkpoints.alone(population, wait):
                    if population == self._next():  # else the other process has trained it
                        self._make(population, progress, stop)
        found = {record.spec: record for record in self.records.read()}
        return [found[spec] for spec in self.specs]

    def _next(self) -> tuple[Spec, ...]:
        """The next population: one that was begun, as it was, or what can stand beside the first that has no record."""
        recorded = {record.spec for record in self.records.read()}
        missing = [spec for spec in dict.fromkeys(self.specs) if spec not in recorded]
        for begun in self.checkpoints.begun():
            if recorded.issuperset(begun):  # a process was killed just before it would have done this
                self.checkpoints.drop(begun)
            elif not set(begun).isdisjoint(missing):
                return begun
        if not missing:
            return ()
        company = missing[0].company
        side_by_side = [spec for spec in missing if spec.company == company]
        return tuple(side_by_side[: self._fitting.get(company)])

    def _make(self, population: tuple[Spec, ...], progress: Steps, stop: Event) -> None:
        try:
            self._train(population, progress, stop)
            return
        except torch.OutOfMemoryError as error:
            if len(population) == 1:
                raise ValueError(f"{population[0]} does not fit into memory; choose a smaller --batch") from error
        gc.collect()
        torch.cuda.empty_cache()
        self.checkpoints.drop(population)
        half = (len(population) + 1) // 2
        self._fitting[population[0].company] = half
        progress.note(f"{len(population)} networks do not fit into memory; trying {half} at a time")

    def _train(self, population: tuple[Spec, ...], progress: Steps, stop: Event) -> None:
        training = Training(population, self.datasets[population[0].data])
        self.checkpoints.restore(training)
        view = _View(training, progress)
        last = saved = time.monotonic()
        for _ in training.advance():
            now = time.monotonic()
            training.seconds += now - last
            last = now
            view.update(now)
            if stop.is_set() or now - saved >= self.every:
                self.checkpoints.save(training)
                last = saved = time.monotonic()
            if stop.is_set():
                raise KeyboardInterrupt
        self.checkpoints.save(training)  # so that a kill while records are written costs nothing
        self.records.add(take_records(training, self.setting))
        self.checkpoints.drop(population)


class _View:
    """What a person sees of a training: the epoch, the best and the median member, the pace, the time left."""

    def __init__(self, training: Training, progress: Steps) -> None:
        self.training, self.progress = training, progress
        self.began, self.behind = time.monotonic(), self._steps()
        self.epoch, self.shown = -1, self.began
        self.update(self.began)

    def update(self, now: float) -> None:
        training, epochs = self.training, self.training.specs[0].epochs
        begins = self.epoch < training.epoch < epochs
        if begins or now - self.shown > GLANCE:
            self.shown = now
            title, state = f"{training.specs[0].column} x {len(training.specs)}", self._describe(now)
            if begins:
                self.epoch = training.epoch
                self.progress.begin(", ".join([title, *state]), self.epoch, epochs)
            done = training.epoch - self.epoch + training.step / training.steps
            self.progress.reach(done, f"{title}, epoch {self.epoch + 1} of {epochs}\n{', '.join(state)}")

    def _steps(self) -> int:
        return self.training.epoch * self.training.steps + self.training.step

    def _describe(self, now: float) -> list[str]:
        members, spec = len(self.training.specs), self.training.specs[0]
        words = []
        if self.training.epoch:
            accuracies = self.training.curves["test_accuracy"][-1].tolist()
            words += [f"best {max(accuracies):.2f} %", f"median {median(accuracies):.2f} %"]
        if (steps := self._steps() - self.behind) and now > self.began:
            pace = steps / (now - self.began)
            left = round((spec.epochs * self.training.steps - self._steps()) / pace)
            words += [f"{pace * spec.batch * members:,.0f} pictures/s", f"{timedelta(seconds=left)} left"]
        return words


@contextmanager
def _asked_to_stop() -> Iterator[Event]:
    """Set by the first Ctrl-C, so that what is under way can be saved whole; the second one interrupts at once."""
    stop = Event()
    usual = signal.getsignal(signal.SIGINT)

    def ask(*_: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, usual)
