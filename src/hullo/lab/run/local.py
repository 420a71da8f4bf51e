"""Many runs: those that can stand side by side become populations, trained one after the other."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from threading import Event

import torch

from hullo._signals import stop_request
from hullo.lab.distributed import ALONE, World
from hullo.lab.networks import check_size
from hullo.lab.progress import Progress
from hullo.lab.run.loaders import Loader, loader_key
from hullo.lab.run.queue import Population, RunQueue, does_not_fit, title
from hullo.lab.run.recording import take_records
from hullo.lab.run.tensorboard import TensorBoardLogger
from hullo.lab.run.training import Training
from hullo.lab.run.weights import save_weights
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import Record

GLANCE = 0.5
"""Seconds between two moves of the progress bar."""

AGES = 10**10
"""The most seconds that are shown as left."""


@dataclass
class LocalRunner:
    """Make the runs of a queue in this process, or in the processes of `torchrun`, one population after the other.

    Args:
        queue: the runs and their output directory, which all processes see.
        loaders: the images they see, by :func:`hullo.lab.run.loaders.loader_key`.
        environment: the machine and the versions, as they are recorded.
        every: seconds between checkpoints.
        board: where epochs are shown as they end, if anywhere.
        world: the processes that make each run together.
    """

    queue: RunQueue
    loaders: Mapping[tuple[str, int, str], Loader]
    environment: Environment
    every: float = 30.0
    board: TensorBoardLogger | None = None
    world: World = ALONE

    def __post_init__(self) -> None:
        """Refuse images that are too small for a network, before anything is trained."""
        for network, key in {(spec.network, loader_key(spec)) for spec in self.queue.specs}:
            check_size(network, self.loaders[key].task.image_size)

    def run(self, progress: Progress) -> list[Record]:
        """Make the runs that have no record; the records of all. Ctrl-C saves, then raises KeyboardInterrupt."""
        with stop_request() as stop:
            while populations := self.world.broadcast(self.queue.populations()):
                self._make(populations[0], progress, stop)
            self.world.broadcast(None)  # the leader has recorded everything
        return self.queue.outcome()

    @contextmanager
    def alone(self, population: Population, progress: Progress) -> Iterator[bool]:
        """While no other process trains a population; whether it is still to be trained."""

        def wait(attempt: int) -> None:
            if attempt == 0:
                progress.note(f"another process trains these networks into {self.queue.output}; waiting for it")

        with self.queue.checkpoints.alone(population, wait) if self.world.is_main else nullcontext():
            yield self.world.broadcast(population in self.queue.populations())

    def train(self, population: Population, progress: Progress, stop: Event) -> list[Record]:
        """Train a population, from its checkpoint if there is one; its records, while the checkpoint still stands."""
        spec, checkpoints = population[0], self.queue.checkpoints
        training = Training(population, self.loaders[loader_key(spec)], self.world)
        checkpoints.restore(training)
        if training.epoch == training.step == 0 and (shorter := self.queue.finished.find_shorter(population)):
            self.queue.finished.restore(training, shorter)
            progress.note(f"{title(population)}: going on after epoch {training.epoch} of an earlier run")
        view = _View(training, progress)
        last = saved = time.monotonic()
        for _ in training.advance():
            now = time.monotonic()
            training.seconds += now - last
            last = now
            view.update(now)
            if self.world.is_main and training.step == 0:
                _note_lost(training, progress)
                if self.board:
                    self.board.show(training)
            if self.world.is_main and (stop.is_set() or now - saved >= self.every):
                checkpoints.save(training)
                last = saved = time.monotonic()
            if stop.is_set():
                raise KeyboardInterrupt
        if self.world.is_main:
            checkpoints.save(training)  # so that a kill before there are records costs nothing
            if self.queue.weights:
                self.queue.finished.save(training)
                for member, own in zip(training.population, population, strict=True):
                    save_weights(self.queue.output, own, training.loader.task, member, training.loader.example)
        return take_records(training, self.environment)

    def _make(self, population: Population, progress: Progress, stop: Event) -> None:
        try:
            with self.alone(population, progress) as wanted:
                if wanted:
                    records = self.train(population, progress, stop)
                    if self.world.is_main:
                        self.queue.commit(population, records)
            return
        except torch.OutOfMemoryError as error:
            if self.world.size > 1:
                raise does_not_fit(population) from error
        gc.collect()
        torch.cuda.empty_cache()
        progress.note(self.queue.split_in_half(population))


def _note_lost(training: Training, progress: Progress) -> None:
    """Say which members have diverged in the epoch that has just ended."""
    *before, now = training.curves["sound"]
    new = torch.stack([~now, *before]).all(0)
    if lost := [f"{spec.activation} seed={spec.seed}" for spec, gone in zip(training.specs, new, strict=True) if gone]:
        meaning = "losses or weights are not finite any more; a smaller --lr may help"
        progress.note(f"diverged in epoch {training.epoch}: {', '.join(lost)}: {meaning}")


class _View:
    """What a person sees of a training: the epoch, the best and the median member, the pace, the time left."""

    def __init__(self, training: Training, progress: Progress) -> None:
        self.training, self.progress = training, progress
        self.began, self.behind = time.monotonic(), self._steps()
        self.epoch, self.shown = -1, self.began
        self.update(self.began)

    def update(self, now: float) -> None:
        training, epochs = self.training, self.training.specs[0].epochs
        begins = self.epoch < training.epoch < epochs
        if begins or now - self.shown > GLANCE:
            self.shown = now
            name, state = title(training.specs), self._describe(now)
            if begins:
                self.epoch = training.epoch
                self.progress.begin(", ".join([name, *state]), self.epoch, epochs)
            done = training.epoch - self.epoch + training.step / training.steps
            self.progress.reach(done, f"{name}, epoch {self.epoch + 1} of {epochs}\n{', '.join(state)}")

    def _steps(self) -> int:
        return self.training.epoch * self.training.steps + self.training.step

    def _describe(self, now: float) -> list[str]:
        members, spec = len(self.training.specs), self.training.specs[0]
        words = []
        if self.training.epoch:
            words += describe_accuracies(self.training.curves["test_accuracy"][-1, :, 0].tolist())
        if (steps := self._steps() - self.behind) and now > self.began:
            pace = steps / (now - self.began)
            left = round((spec.epochs * self.training.steps - self._steps()) / pace)
            words += [f"{pace * spec.batch_size * members:,.0f} images/s", f"{timedelta(seconds=min(left, AGES))} left"]
        return words


def describe_accuracies(accuracies: Sequence[float]) -> list[str]:
    """Describe the accuracies of a population.

    >>> describe_accuracies([70.0, 71.5, 90.0]), describe_accuracies([70.0])
    (['best 90.00 %', 'median 71.50 %'], ['accuracy 70.00 %'])
    """
    if len(accuracies) == 1:
        return [f"accuracy {accuracies[0]:.2f} %"]
    return [f"best {max(accuracies):.2f} %", f"median {median(accuracies):.2f} %"]
