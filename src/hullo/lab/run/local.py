"""Train a queue of runs in this process, one population after the other."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from threading import Event
from typing import Any

import torch
from torch import Tensor

from hullo._compat import is_out_of_memory
from hullo.lab.networks import check_size
from hullo.lab.progress import Progress
from hullo.lab.run.loaders import Loader, loader_key
from hullo.lab.run.loop import Loop
from hullo.lab.run.queue import Members, RunQueue, describe_population, weights_path
from hullo.lab.run.training import Training
from hullo.lab.run.weights import ChosenEpochs, check_savable, save_weights
from hullo.lab.signals import stop_request
from hullo.lab.spec.activation import ActivationSpec
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import Record, learned_fields, make_record, round_number
from hullo.lab.spec.run_spec import Spec
from hullo.population.activations import Activations

REFRESH_SECONDS = 0.5
"""Seconds between two updates of the progress bar."""


@dataclass
class LocalRunner:
    """Train the runs of a queue in this process, one population after the other.

    Args:
        queue: the runs and their output directory.
        loaders: the loaders of the runs, by :func:`hullo.lab.run.loaders.loader_key`.
        environment: the machine and the versions to record.
        checkpoint_every: seconds between checkpoints.
    """

    queue: RunQueue
    loaders: Mapping[tuple[str, int, str], Loader]
    environment: Environment
    checkpoint_every: float = 30.0

    def __post_init__(self) -> None:
        """Raise a ValueError if images are too small for a network, before anything is trained."""
        for network, key in {(spec.network, loader_key(spec)) for spec in self.queue.specs}:
            check_size(network, self.loaders[key].task.image_size)

    def run(self, progress: Progress) -> list[Record]:
        """Train the runs without a record and return all records; Ctrl-C saves, then raises KeyboardInterrupt."""
        with stop_request() as stop:
            while populations := self.queue.populations():
                self._train_or_split(populations[0], progress, stop)
        return self.queue.results()

    @contextmanager
    def lock(self, population: Members, progress: Progress) -> Iterator[bool]:
        """Hold the lock of a population; yield whether it still has to be trained."""

        def wait(attempt: int) -> None:
            if attempt == 0:
                progress.note(f"another process is training these networks in {self.queue.output}; waiting for it")

        with self.queue.checkpoints.lock(population, wait):
            yield population in self.queue.populations()

    def train(self, population: Members, progress: Progress, stop: Event) -> list[Record]:
        """Train a population, from its checkpoint if there is one, and return its records; keep the checkpoint."""
        spec, checkpoints = population[0], self.queue.checkpoints
        progress.describe(f"preparing {describe_population(population)}")
        training = Training(population, self.loaders[loader_key(spec)])
        if self.queue.weights:
            check_savable(training.population[0], spec.network)
        chosen = ChosenEpochs(checkpoints.restore(training))
        display = _Display(training, progress)

        def save() -> None:
            checkpoints.save(training, chosen.state)

        for now in training.run(stop, save, self.checkpoint_every):
            display.update(now)
            if training.step == 0:
                _note_diverged(training, progress)
                if self.queue.weights:
                    chosen.update(training)
        save()  # in case the process is killed before the records are written
        if self.queue.weights:
            epochs = chosen.load_into(training.population)
            for member, spec, epoch in zip(training.population, population, epochs, strict=True):
                path = weights_path(self.queue.output, spec)
                save_weights(path, spec, training.loader.task, member, training.loader.example, epoch)
        return build_records(training, self.environment)

    def _train_or_split(self, population: Members, progress: Progress, stop: Event) -> None:
        try:
            with self.lock(population, progress) as is_missing:
                if is_missing:
                    self.queue.commit(population, self.train(population, progress, stop))
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        gc.collect()
        torch.cuda.empty_cache()
        progress.note(self.queue.split_in_half(population))


def _note_diverged(training: Training, progress: Progress) -> None:
    """Print a note about the members that diverged in the last epoch."""
    *before, now = training.curves["finite"]
    new = torch.stack([~now, *before]).all(0)
    if diverged := [
        f"{spec.activation} seed={spec.seed}" for spec, is_new in zip(training.specs, new, strict=True) if is_new
    ]:
        advice = "losses or weights are not finite; a smaller --lr may help"
        progress.note(f"diverged in epoch {training.epoch}: {', '.join(diverged)}: {advice}")


def build_records(training: Training, environment: Environment) -> list[Record]:
    """Return the members' records at the end of their training."""
    curves, loader = training.curves, training.loader
    records = []
    for k, spec in enumerate(training.specs):
        points = (training.start, *curves["coefficients"])
        learned = read_coefficients(training.population.activations, points, k, spec.row)
        accuracy, *top5 = (list(map(round_number, top)) for top in curves["test_accuracy"][:, k].T.tolist())
        scores = {"test_accuracy": accuracy, "test_top5": top5[0] if top5 else []}
        if (held_out := training.val_scores) is not None:
            scores["val_accuracy"] = [*map(round_number, held_out[:, k].tolist())]
        images = [] if loader.is_complete else [loader.count, loader.eval_sizes["test"]]
        learned |= {} if spec.is_own_network else {"layers": []}
        records.append(build_record(training, k, spec, learned, environment, images=images, **scores))
    return records


def build_record(
    training: Loop, k: int, spec: Spec, learned: Mapping[str, Any], environment: Environment, **more: Any
) -> Record:
    """Return the record of member k at the end of a training, with more fields: what it scored."""
    losses = {name: curve[:, k].tolist() for name, curve in training.curves.items() if name.endswith("_loss")}
    about = {"members": len(training.population), "seconds": training.seconds, "environment": environment}
    return make_record(spec, learned, losses, training.curves["finite"][:, k].tolist(), **about, **more)


def read_coefficients(
    activations: Activations, points: Sequence[Tensor], k: int, row: ActivationSpec
) -> dict[str, Any]:
    """Return what member k of a population learned, given the coefficients of all members by epoch."""
    names = [item.name for item in row.bases]
    chosen = [[item.name for item in site.activations[k].bases] == names for site in activations.sites]
    by_epoch = [list(itertools.compress(activations.split(k, point[k]), chosen)) for point in points]
    return learned_fields(row, (site.path for site in itertools.compress(activations.sites, chosen)), by_epoch)


class _Display:
    """Display of a training: the epoch, the accuracies after the one before, the time left."""

    def __init__(self, training: Training, progress: Progress) -> None:
        self.training, self.progress = training, progress
        self.started, self.first_step = time.monotonic(), self._steps()
        self.epoch, self.last_shown = -1, self.started
        self.update(self.started)

    def update(self, now: float) -> None:
        training, epochs = self.training, self.training.specs[0].epochs
        is_new_epoch = self.epoch < training.epoch < epochs
        if is_new_epoch or now - self.last_shown > REFRESH_SECONDS:
            self.last_shown = now
            name, state = describe_population(training.specs), self._describe(now)
            if is_new_epoch:
                self.epoch = training.epoch
                self.progress.start_step("; ".join([name, *state]), self.epoch, epochs)
            done = training.epoch - self.epoch + training.step / training.steps
            self.progress.update(done, f"{name}, epoch {self.epoch + 1} of {epochs}\n{'; '.join(state)}")

    def _steps(self) -> int:
        return self.training.epoch * self.training.steps + self.training.step

    def _describe(self, now: float) -> list[str]:
        spec, words = self.training.specs[0], []
        if self.training.epoch:
            accuracies = self.training.curves["test_accuracy"][-1, :, 0].tolist()
            words.append(f"epoch {self.training.epoch}: {describe_accuracies(accuracies)}")
        if (steps := self._steps() - self.first_step) and now > self.started:
            left = round((spec.epochs * self.training.steps - self._steps()) * (now - self.started) / steps)
            words.append(f"{timedelta(seconds=left)} left")
        return words


def describe_accuracies(accuracies: Sequence[float]) -> str:
    """Return the median and the range of the test accuracies of a population as text.

    >>> describe_accuracies([70.0, 71.5, 90.0]), describe_accuracies([70.0])
    ('test accuracy 71.5 % (70.0 to 90.0)', 'test accuracy 70.0 %')
    """
    text = f"test accuracy {median(accuracies):.1f} %"
    return text if len(accuracies) == 1 else f"{text} ({min(accuracies):.1f} to {max(accuracies):.1f})"
