"""The engine: trains the runs that a decision asks for, in populations, within the budget, and records them."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Event
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from hullo._compat import is_out_of_memory
from hullo.lab.comparison.candidates import Candidate
from hullo.lab.comparison.decision import FRESH, Arm, Score
from hullo.lab.comparison.plan import Cost
from hullo.lab.comparison.store import CHECKPOINT, Store
from hullo.lab.comparison.task import Task
from hullo.lab.comparison.trial import Settings, Step, Trial
from hullo.lab.files import atomic_write, read_safetensors
from hullo.lab.progress import Progress
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import ACCURACY, Record, round_number, round_numbers
from hullo.lab.spec.run_spec import Spec

CHECKPOINT_EVERY = 30.0
"""Seconds between checkpoints."""
CPU_MEMBERS, MAX_CPU_MEMBERS, GPU_MEMBERS = 8, 64, 512
"""Numbers of networks in a population. On a CPU, more save time only where networks are small."""
MEASURED_STEPS, MEASURED_EPOCHS = 10, 10**6
"""The steps that are measured before the plan is made, of a training that is not finished."""


class OutOfTime(Exception):  # noqa: N818  (it is no error)
    """Raised if the next runs do not fit into the minutes that are left."""


@dataclass
class Clock:
    """The time of a comparison over all calls.

    Args:
        seconds: the budget.
        spent: seconds that earlier calls took.
    """

    seconds: float
    spent: float = 0.0

    def __post_init__(self) -> None:
        self._started = time.monotonic()

    @property
    def used(self) -> float:
        return self.spent + time.monotonic() - self._started

    @property
    def left(self) -> float:
        return self.seconds - self.used


@dataclass
class Engine:
    """Train runs and record them; those that have a record are not trained again.

    Args:
        names: of the network and the data, for records.
        cost: the time that populations take, once it is measured.
    """

    store: Store
    candidates: Mapping[str, Candidate]
    loader: Any
    task: Task
    settings: Settings
    example: Tensor | None
    step: Step | None
    names: tuple[str, str]
    environment: Environment
    progress: Progress
    clock: Clock
    stop: Event
    cost: Cost = field(default_factory=lambda: Cost(0.0, 0.0, 0.0))
    pace: float = 1.0
    members: int = CPU_MEMBERS

    def train(self, arms: Sequence[Arm], words: str) -> list[Score]:
        """Train the runs without a record, and return the scores of all; raise OutOfTime if they do not fit."""
        missing = [arm for arm in arms if arm not in self.store.records]
        total = len(missing)
        while missing:
            population = next(self._populations(missing))
            if self.predict(len(population)) > self.clock.left:
                raise OutOfTime
            try:
                self._train(population, words, total - len(missing), total)
            except Exception as error:
                if not is_out_of_memory(error) or len(population) == 1:
                    raise
                self._halve(len(population))
            missing = [arm for arm in missing if arm not in self.store.records]
        scores = [self.store.score(arm) for arm in arms]
        return [score for score in scores if score is not None]

    def predict(self, runs: int) -> float:
        """Return the seconds that a number of runs will take, at the pace of those that were trained in this call."""
        return self.pace * self.cost.seconds(runs, self.members, self.settings.epochs)

    def _populations(self, arms: Sequence[Arm]) -> Iterator[list[Arm]]:
        """Yield runs that can be trained side by side, in parts of about the same size."""
        groups: dict[Any, list[Arm]] = {}
        for arm in arms:
            candidate = self.candidates[arm.candidate]
            groups.setdefault(arm if candidate.alone else candidate.group, []).append(arm)
        for group in groups.values():
            parts = math.ceil(len(group) / self.members)
            yield from (group[i * len(group) // parts : (i + 1) * len(group) // parts] for i in range(parts))

    def _halve(self, members: int) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        self.members = max(1, members // 2)
        self.progress.note(f"memory ran out with {members} networks at once; going on with {self.members}")

    def trial(self, arms: Sequence[Arm], settings: Settings | None = None) -> Trial:
        return Trial(arms, self.candidates, self.loader, self.task, settings or self.settings, self.example, self.step)

    def _train(self, arms: list[Arm], words: str, done: int, total: int) -> None:
        """Train a population, from its checkpoint if there is one, and record its runs."""
        started = self.clock.used
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(arms[0].seed)
            trial = self.trial(arms)
            self._restore(trial)
            is_new = trial.epoch == trial.step == 0
            names = [self.candidates[name].label for name in dict.fromkeys(arm.candidate for arm in arms)]
            said = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            title = f"{words}: {len(arms)} network{'s' * (len(arms) > 1)}, {said}"
            self.progress.start_step(f"{title}, {spell_time(self.clock.left)} left", done, total)
            saved = last = time.monotonic()
            for _ in trial.advance():
                now = time.monotonic()
                trial.seconds += now - last
                last = now
                fraction = (trial.epoch + trial.step / trial.steps) / trial.epochs
                epoch = min(trial.epoch + 1, trial.epochs)
                self.progress.update(
                    fraction * len(arms),
                    f"{title}, epoch {epoch} of {trial.epochs}, {spell_time(self.clock.left)} left",
                )
                if self.stop.is_set() or now - saved > CHECKPOINT_EVERY:
                    self._save(trial)
                    saved = time.monotonic()
                if self.stop.is_set():
                    raise KeyboardInterrupt
            self._record(trial)
        if is_new:  # half of what is known, half of what is new
            now = (self.clock.used - started) / self.cost.seconds(len(arms), self.members, self.settings.epochs)
            self.pace = (self.pace + now) / 2

    def _record(self, trial: Trial) -> None:
        records = [self._to_record(trial, k) for k in range(len(trial.arms))]
        for name in {arm.candidate for arm in trial.arms}:
            known = [self.store.score(arm) for arm in self.store.records if arm.candidate == name]
            own = [k for k, arm in enumerate(trial.arms) if arm.candidate == name and not records[k].diverged]
            best = max(own, key=lambda k: float(trial.best_value[k]), default=None)
            if best is not None and all(not score.val >= float(trial.best_value[best]) for score in known if score):
                self.store.save_weights(name, trial.network(best))
        self.store.add(records, self.clock.used)
        for k, arm in enumerate(trial.arms):
            if arm.seed >= FRESH and trial.examples is not None:
                self.store.save_examples(arm, trial.examples[k])

    def _to_record(self, trial: Trial, k: int) -> Record:
        arm, curves, metric = trial.arms[k], trial.curves, self.task.metric
        candidate, settings = self.candidates[arm.candidate], self.settings
        learned = trial.learned(k, candidate)
        finite = curves["finite"][:, k].tolist()
        for epoch, point in enumerate(learned.points[1:]):
            finite[epoch] = finite[epoch] and all(number is not None for layer in point for number in layer)
        words = f"batch_size={settings.batch_size} lr={arm.lr:g} optimizer={settings.optimizer}"
        scores = {name: [*map(round_number, curves[f"{name}_metric"][:, k].tolist())] for name in ("test", "val")}
        if metric.name == ACCURACY:
            compared: dict[str, Any] = {f"{name}_accuracy": values for name, values in scores.items()}
        else:
            compared = {"test_accuracy": [], "metric": metric.name, "lower_is_better": not metric.higher}
            compared |= {f"{name}_metric": values for name, values in scores.items()}
        row = candidate.row
        return Record(
            spec=Spec(*self.names, arm.candidate, seed=arm.seed, epochs=settings.epochs, settings=words),
            ended="finished" if all(finite) else f"diverged in epoch {finite.index(False) + 1}",
            train_loss=round_numbers(curves["train_loss"][:, k].tolist()),
            test_loss=round_numbers(curves["test_loss"][:, k].tolist()),
            val_loss=round_numbers(curves["val_loss"][:, k].tolist()),
            bases=[item.name for item in row.bases] if row.learns else [],
            coefficients=learned.points,
            channels=learned.channels,
            layers=learned.layers,
            members=len(trial.arms),
            seconds=round(trial.seconds, 3),
            environment=self.environment,
            **compared,
        )

    def _save(self, trial: Trial) -> None:
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in trial.state_dict().items()}
        with atomic_write(self.store.folder / CHECKPOINT) as file:
            file.write(save(tensors, {"arms": _spell(trial.arms)}))
        self.store.update(seconds=self.clock.used)

    def _restore(self, trial: Trial) -> None:
        """Continue from a checkpoint of the same runs; one of others, or a damaged one, is left alone."""
        path = self.store.folder / CHECKPOINT
        if not path.exists():
            return
        try:
            metadata, tensors = read_safetensors(path)
        except (SafetensorError, OSError):
            return
        if metadata.get("arms") == _spell(trial.arms):
            trial.load_state_dict({name: tensor.to(self.loader.device) for name, tensor in tensors.items()})

    def measure(self, arms: Sequence[Arm]) -> Cost:
        """Measure the seconds of an epoch of a small and of a large population, and those to set it up."""
        large = max(self._populations(arms), key=len)
        measured = [self._measure(part) for part in ([large] if len(large) == 1 else [large[:1], large])]
        return Cost.of(measured[-1][0], [(count, seconds) for _, count, seconds in measured])

    def _measure(self, arms: Sequence[Arm]) -> tuple[float, int, float]:
        """Return the seconds to set up a population, its size, and the seconds of an epoch."""
        started = self._now()
        trial = self.trial(arms, replace(self.settings, epochs=MEASURED_EPOCHS))
        steps = trial.advance()
        next(steps)
        setup = self._now() - started
        if trial.steps > MEASURED_STEPS:
            seconds = self._time(lambda: [next(steps) for _ in range(MEASURED_STEPS)]) * trial.steps / MEASURED_STEPS
            return setup, len(arms), seconds + self._time(trial.evaluate)
        while trial.step:
            next(steps)
        return setup, len(arms), self._time(lambda: [next(steps) for _ in range(trial.steps + 1)])

    def _time(self, action: Callable[[], object]) -> float:
        started = self._now()
        action()
        return self._now() - started

    def _now(self) -> float:
        if self.loader.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()


def _spell(arms: Sequence[Arm]) -> str:
    return json.dumps([[arm.candidate, arm.lr, arm.seed] for arm in arms])


def spell_time(seconds: float) -> str:
    """Return a duration as text: 0:04:10."""
    return str(timedelta(seconds=max(0, round(seconds))))
