"""The engine: trains the runs that a decision asks for, in populations, within the budget, and records them."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Event
from typing import Any

import torch

from hullo._compat import is_out_of_memory
from hullo.lab.comparison.budget import Clock, Cost, OutOfTime, Plan, now, spell_count
from hullo.lab.comparison.decision import FRESH, Arm, Score
from hullo.lab.comparison.store import Store
from hullo.lab.comparison.trial import Setup, Trial
from hullo.lab.progress import Progress
from hullo.lab.run.local import build_record
from hullo.lab.run.weights import MORE, ChosenEpochs
from hullo.lab.spec.environment import Environment
from hullo.lab.spec.records import ACCURACY, Record, round_number
from hullo.lab.spec.run_spec import Spec

CPU_MEMBERS, GPU_MEMBERS = 16, 512
"""The largest number of networks in a population. On a CPU, more save time only where networks are small."""
MEMORY_SHARE = 0.8
"""The share of a GPU's memory that is planned for."""
MEASURED_STEPS, MEASURED_EPOCHS = 10, 10**6
"""The steps that are measured before the plan is made, of a training that is not finished."""


@dataclass
class Engine:
    """Train runs and record them; those that have a record are not trained again.

    Args:
        plan: the number of epochs and of networks at once, and the time that they take, once it is measured.
        pace: how much longer they took than that.
    """

    setup: Setup
    store: Store
    environment: Environment
    progress: Progress
    clock: Clock
    stop: Event
    plan: Plan
    pace: float = 1.0

    def train(self, arms: Sequence[Arm], words: str) -> dict[Arm, Score]:
        """Train the runs without a record, and return the scores of all; raise OutOfTime if they do not fit."""
        total = len(self.missing(arms))
        while missing := self.missing(arms):
            population = next(self._populations(missing))
            if self.predict(len(population)) > self.clock.left:
                raise OutOfTime
            with self._halving(len(population)):
                self._train(population, words, total - len(missing), total)
        return {arm: self.store.score(arm) for arm in arms}

    def missing(self, arms: Sequence[Arm]) -> list[Arm]:
        """Return the runs without a record."""
        return [arm for arm in arms if arm not in self.store.records]

    def predict(self, runs: int) -> float:
        """Return the seconds that runs will take, at the pace of those that were trained in this call."""
        return self.pace * self.plan.seconds(runs)

    def _populations(self, arms: Sequence[Arm]) -> Iterator[list[Arm]]:
        """Yield runs that can be trained side by side, in parts of about the same size."""
        groups: dict[Any, list[Arm]] = {}
        for arm in arms:
            candidate = self.setup.candidates[arm.candidate]
            groups.setdefault(arm if candidate.group is None else candidate.group, []).append(arm)
        for group in groups.values():
            parts = math.ceil(len(group) / self.plan.members)
            yield from (group[i * len(group) // parts : (i + 1) * len(group) // parts] for i in range(parts))

    @contextmanager
    def _halving(self, members: int) -> Iterator[None]:
        """Go on with half as many networks at once if memory runs out within the block."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error) or members == 1:
                raise
            self.plan = replace(self.plan, members=members // 2)
            self.progress.note(f"memory ran out with {members} networks at once; going on with {members // 2}")

    def _make_trial(self, arms: Sequence[Arm], epochs: int) -> Trial:
        if self.setup.data.device.type == "cuda":
            gc.collect()  # earlier trainings and their CUDA graphs
            torch.cuda.empty_cache()
        return Trial(arms, self.setup, epochs)

    def _train(self, arms: list[Arm], words: str, done: int, total: int) -> None:
        """Train a population, and record its runs."""
        started = self.clock.used
        names = dict.fromkeys(self.setup.candidates[arm.candidate].label for arm in arms)
        labels = next(iter(names)) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        title = f"{words}: {spell_count(len(arms), 'network')}"
        self.progress.start_step(f"{title}, {labels}, {spell_time(self.clock.left)} left", done, total)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(arms[0].seed)
            trial, chosen = self._make_trial(arms, self.plan.epochs), ChosenEpochs({})
            for _ in trial.run(self.stop, save=lambda: None, every=math.inf):
                if trial.step == 0:
                    chosen.update(trial, **({} if trial.examples is None else {"examples": trial.examples}))
                fraction = (trial.epoch + trial.step / trial.steps) / trial.epochs
                at = f"epoch {min(trial.epoch + 1, trial.epochs)} of {trial.epochs}"
                text = f"{title}\n{labels}, {at}, {spell_time(self.clock.left)} left"  # of 80 columns
                self.progress.update(fraction * len(arms), text)
            self._record(trial, chosen)
        # half of what is known, half of what is new
        self.pace = (self.pace + (self.clock.used - started) / self.plan.seconds(len(arms))) / 2

    def _record(self, trial: Trial, chosen: ChosenEpochs) -> None:
        """Record the runs of a trial, after the weights of those that are the best of their candidate."""
        chosen.load_into(trial.population)
        records = {arm: self._to_record(trial, k) for k, arm in enumerate(trial.arms)}
        runs = [(score.val, -1, arm.candidate) for arm, score in self.store.scores().items()]
        runs += [(self.store.score_of(records[arm]).val, k, arm.candidate) for k, arm in enumerate(trial.arms)]
        best = {name: k for value, k, name in sorted(run for run in runs if math.isfinite(run[0]))}
        for name, k in best.items():
            if k >= 0:
                self.store.save_weights(self.setup.candidates[name].label, trial.population[k])
        for k, arm in enumerate(trial.arms):
            if arm.seed >= FRESH and trial.examples is not None:
                self.store.save_examples(records[arm], chosen.state[f"{MORE}examples"][k])
        self.store.add(records)
        self.store.update(seconds=self.clock.used)

    def _to_record(self, trial: Trial, k: int) -> Record:
        arm, metric, setup = trial.arms[k], self.setup.task.metric, self.setup
        scores = {name: [*map(round_number, trial.curves[f"{name}_metric"][:, k].tolist())] for name in ("test", "val")}
        if metric.name == ACCURACY:
            compared: dict[str, Any] = {f"{name}_accuracy": values for name, values in scores.items()}
        else:
            compared = {"test_accuracy": [], "metric": metric.name, "lower_is_better": not metric.higher}
            compared |= {f"{name}_metric": values for name, values in scores.items()}
        words = f"batch_size={setup.batch_size} lr={arm.lr:g} optimizer={setup.optimizer}"
        spec = Spec(setup.network, setup.data.name, arm.candidate, seed=arm.seed, epochs=trial.epochs, settings=words)
        learned = trial.learned(k, setup.candidates[arm.candidate])
        return build_record(trial, k, spec, learned, self.environment, **compared)

    def measure(self, arms: Sequence[Arm]) -> Cost:
        """Measure the seconds of an epoch of a small and of a large population, and those to set it up.

        On a GPU, the number of networks at once is bounded by what the large one leaves of the memory.
        """
        cost = None
        while cost is None:
            large = max(self._populations(arms), key=len)
            with self._halving(len(large)):
                (_, one), (setup, many) = self._measure(large[:1]), self._measure(large)
                cost = Cost.of(setup, (1, one), (len(large), many))
        members = self.plan.members if any(item.group is not None for item in self.setup.candidates.values()) else 1
        if (device := self.setup.data.device).type == "cuda":
            free, taken = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
            members = min(members, max(1, int(MEMORY_SHARE * (free + taken) * len(large) / taken)))
        self.plan = replace(self.plan, members=members)
        return cost

    def _measure(self, arms: Sequence[Arm]) -> tuple[float, float]:
        """Return the seconds to set up a population, and those of an epoch."""
        device = self.setup.data.device
        started = now(device)
        trial = self._make_trial(arms, MEASURED_EPOCHS)
        steps = trial.advance()
        next(steps)
        ready = now(device)
        count = max(1, min(MEASURED_STEPS, trial.steps - 2))  # the last step of an epoch evaluates
        for _ in range(count):
            next(steps)
        stepped = now(device)
        batches = {name: self.setup.data.count_batches(name) for name in ("val", "test")}
        measured = min(batches["val"], MEASURED_STEPS)
        trial.evaluate(measured)
        evaluating = (now(device) - stepped) * sum(batches.values()) / measured
        return ready - started, (stepped - ready) * trial.steps / count + evaluating


def spell_time(seconds: float) -> str:
    """Return a duration as text: 0:04:10."""
    return str(timedelta(seconds=max(0, round(seconds))))
