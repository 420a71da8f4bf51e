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

CHECKPOINT_EVERY = 30.0
"""Seconds between checkpoints."""
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
            if self.predict(population) > self.clock.left:
                raise OutOfTime
            with self._halving(len(population)):
                self._train(population, words, total - len(missing), total)
        return {arm: self.store.score(arm) for arm in arms}

    def missing(self, arms: Sequence[Arm]) -> list[Arm]:
        """Return the runs without a record."""
        return [arm for arm in arms if arm not in self.store.records]

    def predict(self, arms: Sequence[Arm]) -> float:
        """Return the seconds that runs will take, at the pace of those that were trained in this call."""
        return self.predict_runs(len(self.missing(arms)))

    def predict_runs(self, runs: int) -> float:
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
        if self.setup.loader.device.type == "cuda":
            gc.collect()  # earlier trainings and their CUDA graphs
            torch.cuda.empty_cache()
        return Trial(arms, self.setup, epochs)

    def _train(self, arms: list[Arm], words: str, done: int, total: int) -> None:
        """Train a population, from its checkpoint if there is one, and record its runs."""
        started = self.clock.used
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(arms[0].seed)
            trial = self._make_trial(arms, self.plan.epochs)
            state, best = self.store.load_checkpoint(arms)
            chosen = ChosenEpochs(best)
            if state:
                trial.load_state_dict(state)

            def save() -> None:
                self.store.save_checkpoint(arms, trial.state_dict(), chosen.state)
                self.store.update(seconds=self.clock.used)

            title, labels = self._describe(arms)
            title = f"{words}: {title}"
            self.progress.start_step(f"{title}, {labels}, {spell_time(self.clock.left)} left", done, total)
            for _ in trial.run(self.stop, save, CHECKPOINT_EVERY):
                if trial.step == 0:
                    chosen.update(trial, **({} if trial.examples is None else {"examples": trial.examples}))
                fraction = (trial.epoch + trial.step / trial.steps) / trial.epochs
                at = f"epoch {min(trial.epoch + 1, trial.epochs)} of {trial.epochs}"
                text = f"{title}\n{labels}, {at}, {spell_time(self.clock.left)} left"  # of 80 columns
                self.progress.update(fraction * len(arms), text)
            self._record(trial, chosen)
        if not state:  # half of what is known, half of what is new
            self.pace = (self.pace + (self.clock.used - started) / self.plan.seconds(len(arms))) / 2

    def _describe(self, arms: Sequence[Arm]) -> tuple[str, str]:
        labels = list(dict.fromkeys(self.setup.candidates[arm.candidate].label for arm in arms))
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        return spell_count(len(arms), "network"), f"{labels[0]}{more}"

    def _record(self, trial: Trial, chosen: ChosenEpochs) -> None:
        """Record the runs of a trial, after the weights of those that are the best of their candidate."""
        chosen.load_into(trial.population)
        best: dict[str, tuple[float, int]] = {}  # validation score and member, -1 for a run that has a record
        known = [(arm, score.val, -1) for arm, score in self.store.scores().items()]
        records = [self._to_record(trial, k) for k in range(len(trial.arms))]
        new = [(arm, self.store.score_of(records[k]).val, k) for k, arm in enumerate(trial.arms)]
        for arm, value, k in known + new:
            if value > best.get(arm.candidate, (-math.inf,))[0]:  # NaN is not
                best[arm.candidate] = value, k
        for name, (_, k) in best.items():
            if k >= 0:
                self.store.save_weights(self.setup.candidates[name].label, trial.population[k])
        for k, arm in enumerate(trial.arms):
            if arm.seed >= FRESH and trial.examples is not None:
                self.store.save_examples(records[k], chosen.state[f"{MORE}examples"][k])
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
        spec = Spec(setup.network, setup.data, arm.candidate, seed=arm.seed, epochs=trial.epochs, settings=words)
        learned = trial.learned(k, setup.candidates[arm.candidate])
        return build_record(trial, k, spec, learned, self.environment, **compared)

    def measure(self, arms: Sequence[Arm]) -> Cost:
        """Measure the seconds of an epoch of a small and of a large population, and those to set it up.

        On a GPU, the number of networks at once is bounded by what the large one leaves of the memory.
        """
        device, cost = self.setup.loader.device, None
        while cost is None:
            large = max(self._populations(arms), key=len)
            with self._halving(len(large)):
                (_, one), (setup, many) = self._measure(large[:1]), self._measure(large)
                cost = Cost.of(setup, (1, one), (len(large), many))
        is_alone = all(candidate.group is None for candidate in self.setup.candidates.values())
        members = 1 if is_alone else self.plan.members
        if device.type == "cuda":
            free, taken = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
            members = min(members, max(1, int(MEMORY_SHARE * (free + taken) * len(large) / taken)))
        self.plan = replace(self.plan, members=members)
        return cost

    def _measure(self, arms: Sequence[Arm]) -> tuple[float, float]:
        """Return the seconds to set up a population, and those of an epoch."""
        device = self.setup.loader.device
        started = now(device)
        trial = self._make_trial(arms, MEASURED_EPOCHS)
        steps = trial.advance()
        next(steps)
        ready = now(device)
        count = max(1, min(MEASURED_STEPS, trial.steps - 2))  # the last step of an epoch evaluates
        for _ in range(count):
            next(steps)
        stepped = now(device)
        trial.evaluate()
        return ready - started, (stepped - ready) * trial.steps / count + now(device) - stepped


def spell_time(seconds: float) -> str:
    """Return a duration as text: 0:04:10."""
    return str(timedelta(seconds=max(0, round(seconds))))
