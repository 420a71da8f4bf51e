"""The engine of one call: plans within the budget, trains the networks that the decision asks for, and records them.

It is a function of the plan, of the trials that have a record, and of the time that is left. Trials that have a record
are free, so a comparison that was interrupted goes on where it ended, and one that is called with more minutes looks
again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import count, takewhile
from threading import Event
from typing import Any

from hullo._compat import is_out_of_memory
from hullo.lab.analysis.power import MOST_SEEDS, detectable_difference, seeds_needed
from hullo.lab.comparison import decision, work
from hullo.lab.comparison.budget import (
    MAX_EPOCHS,
    MIN_PAIRS,
    Clock,
    OutOfTime,
    Plan,
    make_plan,
    spell_count,
    spell_minutes,
)
from hullo.lab.comparison.decision import FRESH, MAX_PAIRS, ORIGINAL, UNDECIDED, Choice, Pairs, Score, Trial, Verdict
from hullo.lab.comparison.result import Result
from hullo.lab.comparison.store import Store, score_of
from hullo.lab.comparison.trial import Setup, TrialLoop
from hullo.lab.comparison.work import Trained, Workers
from hullo.lab.progress import Progress

MAX_SEEDS = 5
"""The largest number of seeds that a round of the choice adds."""
RESERVE = 0.9
"""The share of the time left that the confirmation is planned for."""


@dataclass
class Engine:
    """Run a comparison, from where an earlier call ended."""

    setup: Setup
    store: Store
    workers: Workers
    progress: Progress
    clock: Clock
    stop: Event
    plan: Plan  # with the learning rates and the largest number of networks at once, before it is made
    epochs: int | None  # of every network; None for as many as fit
    seeds: int | None  # the largest number of fresh seeds; None for as many as fit
    worth: float | None  # the smallest gain that is worth a change; None for a default
    pace: float = 1.0  # how much longer networks took than planned

    def run(self) -> Result:
        """Run, and return the result."""
        store, setup = self.store, self.setup
        if "plan" not in store.state:
            store.update(plan=asdict(make_plan(self.clock, self._measure(), len(setup.candidates), self.epochs)))
        self.plan = replace(Plan(**store.state["plan"]), workers=self.workers.count)
        if self.epochs is None and self.plan.epochs < MAX_EPOCHS:
            allowed = f"the minutes allow {spell_count(self.plan.epochs, 'epoch')} of each network"
            self.progress.note(f"{allowed}; to train longer, give epochs, and more minutes")
        result = Result(setup, store, self.plan, Choice(grid=list(self.plan.rates)), self.worth, self.worth is None)
        with suppress(OutOfTime):
            result.choice = choice = self._choose()
            worth = result.worth = self.worth or setup.task.default_worth(max(choice.values(ORIGINAL).values()))
            result.verdict = self._confirm(choice, worth)
            if result.verdict is not None and "costs" not in store.state:
                (costs,) = self.workers.map(work.measure_costs, setup, [(ORIGINAL, choice.challenger)])
                store.update(costs=costs)
        store.publish(result.choice.rates)
        store.update(seconds=self.clock.used)
        result.advice = self._advise(result.verdict)
        store.update(finding=result.finding)
        return result

    @property
    def most_seeds(self) -> int:
        """Return the largest number of fresh seeds."""
        return min(self.seeds or MAX_PAIRS, MAX_PAIRS)

    def _choose(self) -> Choice:
        """Return the choice of an earlier call, or choose."""
        store = self.store
        if "choice" in store.state:
            scores = {trial: score for trial, score in store.scores().items() if trial.seed < FRESH}
            return Choice(**store.state["choice"], scores=scores)
        choice = decision.choose(
            list(self.setup.candidates),
            self.plan.rates,
            self.train,
            count_seeds=self._count_seeds,
            may_extend=lambda new: self.predict(len(self.missing(new))) <= self.plan.left_to_choose(self.clock),
        )
        store.update(choice={name: getattr(choice, name) for name in ("rates", "challenger", "grid")})
        return choice

    def _count_seeds(self, pairs: Pairs, first: int, rounds_left: int) -> int:
        """Return the number of seeds of a round: as many as have records, or as its share of the time allows.

        It is at least 1, but a later round is left out, with 0 seeds, if it would take time that the confirmation
        needs.
        """
        seeds = takewhile(lambda seed: not self.missing([Trial(*pair, seed) for pair in pairs]), count(first))
        trained = len(list(seeds))
        if first and self.predict(len(pairs)) + self.predict(2 * MIN_PAIRS) > self.clock.left:
            return trained
        share = self.plan.left_to_choose(self.clock) / (1 + rounds_left)
        fitting = [n for n in range(1, MAX_SEEDS + 1) if self.predict(n * len(pairs)) <= share]
        return max(trained, 1, *fitting)

    def _confirm(self, choice: Choice, worth: float) -> Verdict | None:
        """Look at the challenger and the original on fresh seeds.

        An earlier look stays if it has decided, or if there are not more minutes or seeds than it had.
        """
        store, most = self.store, self.most_seeds
        looks, limits = store.state.get("looks", []), [self.clock.seconds, most]
        done, verdict = 1, None
        if looks:
            done, verdict = looks[-1], decision.confirm(choice, looks[-1], worth, len(looks), store.scores())
            is_repeated = all(new <= old for new, old in zip(limits, store.state["limits"], strict=True))
            if verdict.kind != UNDECIDED or is_repeated:
                return verdict
        trials, left = choice.confirmation(most), RESERVE * self.clock.left
        fitting = (n for n in range(done + 1, most + 1) if self.predict(len(self.missing(trials[: 2 * n]))) < left)
        if pairs := max(fitting, default=0):
            self._announce(choice, pairs, len(looks) + 1, worth)
            with suppress(OutOfTime):
                self.train(trials[: 2 * pairs], "confirmation")
            pairs = len(list(takewhile(lambda trial: not self.missing([trial]), trials))) // 2
        if pairs <= done:
            return verdict
        store.update(looks=[*looks, pairs], limits=limits)
        return decision.confirm(choice, pairs, worth, len(looks) + 1, store.scores())

    def _announce(self, choice: Choice, pairs: int, look: int, worth: float) -> None:
        """Print the power of the confirmation, before it starts, and what would find a gain that is worth a change."""
        task, deviation, alpha = self.setup.task, choice.deviation, decision.alpha_of(look)
        words = []
        if deviation:
            gain = detectable_difference(deviation, pairs, alpha)
            words.append(f"{pairs} seeds find a gain of {task.spell(gain)} with a probability of 80 %")
            needed = seeds_needed(worth, deviation, alpha)
            if needed is None or needed > pairs:
                words.append(f"a gain of {task.spell(worth)} would take {self._spell_seeds(needed, 0)}")
        self.store.update(power=words)
        challenger = self.setup.candidates[choice.challenger].label
        title = f"confirmation of {challenger} on {pairs} fresh seeds, look {look}"
        self.progress.note("; ".join([title, *words]))

    def _spell_seeds(self, needed: int | None, done: int) -> str:
        """Return a number of fresh seeds as text, with the minutes they take in all if so many are allowed."""
        if needed is None:
            return f"more than {MOST_SEEDS} seeds"
        if needed > self.most_seeds:
            return f"{needed} seeds, more than the limit of {self.most_seeds}"
        return f"{needed} seeds, about {spell_minutes(self._minutes(2 * (needed - done)))} in all"

    def _minutes(self, networks: int) -> float:
        """Return the minutes, in all, after a number of further networks."""
        return (self.clock.used + self.predict(networks) / RESERVE) / 60

    def _advise(self, verdict: Verdict | None) -> str:
        """Return what would decide if mean and deviation stayed."""
        if verdict is not None:
            return f"to decide would probably take {self._spell_seeds(verdict.needed, verdict.pairs)}"
        chosen = sum(trial.seed < FRESH for trial in self.store.records)
        trials = decision.count_trials(len(self.setup.candidates), len(self.plan.rates))
        return f"about {spell_minutes(self._minutes(max(0, trials - chosen) + 2 * MIN_PAIRS))} in all would do"

    def train(self, trials: Sequence[Trial], words: str) -> dict[Trial, Score]:
        """Train the trials without a record, and return the scores of all; raise OutOfTime if they do not fit."""
        total = len(self.missing(trials))
        while missing := self.missing(trials):
            populations = self._populations(missing)
            if self.predict(sum(map(len, populations))) > self.clock.left:
                raise OutOfTime
            with self._halving(max(map(len, populations))):
                self._train(populations, words, total - len(missing), total)
        return {trial: self.store.score(trial) for trial in trials}

    def missing(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials without a record."""
        return [trial for trial in trials if trial not in self.store.records]

    def predict(self, networks: int) -> float:
        """Return the seconds that networks will take, at the pace of those that were trained in this call."""
        return self.pace * self.plan.seconds(networks)

    def _populations(self, trials: Sequence[Trial]) -> list[list[Trial]]:
        """Return populations of the first of these trials: what the workers train next, in about equal parts."""
        parts = math.ceil(len(trials) / (self.plan.members * self.workers.count))
        groups: dict[Any, list[Trial]] = {}
        for trial in trials[: math.ceil(len(trials) / parts)]:
            group = self.setup.candidates[trial.candidate].group
            groups.setdefault(trial if group is None else group, []).append(trial)
        populations = []
        for found in groups.values():
            size = math.ceil(len(found) / min(self.workers.count, len(found)))
            populations += [found[i : i + size] for i in range(0, len(found), size)]
        return populations

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

    def _train(self, populations: list[list[Trial]], words: str, done: int, total: int) -> None:
        """Train populations side by side, and record their networks."""
        started, trials = self.clock.used, [trial for population in populations for trial in population]
        first, *others = dict.fromkeys(self.setup.candidates[trial.candidate].label for trial in trials)
        labels = ", ".join([first, *others]) if len(others) < 2 else f"{first} and {len(others)} other activations"
        title = f"{words}: {spell_count(len(trials), 'network')}"
        title += f" in {len(populations)} populations" if len(populations) > 1 else ""
        self.progress.start_step(f"{title}, {labels}, {self._spell_left()}", done, total)

        def show(loop: TrialLoop) -> None:
            fraction = (loop.epoch + loop.step / loop.steps) / loop.epochs
            at = f"epoch {min(loop.epoch + 1, loop.epochs)} of {loop.epochs}"
            self.progress.update(fraction * len(loop.trials), f"{title}\n{labels}, {at}, {self._spell_left()}")

        calls, recorded = [(population, self.plan.epochs) for population in populations], 0
        for trained in self.workers.map(work.train, self.setup, calls, show=show, stop=self.stop):
            self._record(trained)
            recorded += len(trained.records)
            self.progress.update(recorded)
        # half of what is known, half of what is new
        self.pace = (self.pace + (self.clock.used - started) / self.plan.seconds(len(trials))) / 2

    def _spell_left(self) -> str:
        return f"{timedelta(seconds=max(0, round(self.clock.left)))} left"

    def _record(self, trained: Trained) -> None:
        """Record networks, after the weights of those that are the best of their candidate."""
        store = self.store
        for trial, state in trained.weights.items():
            others = [score.val for other, score in store.scores().items() if other.candidate == trial.candidate]
            if score_of(trained.records[trial], store.sign).val >= max(
                filter(math.isfinite, others), default=-math.inf
            ):
                store.save_weights(self.setup.candidates[trial.candidate].label, state)
        for trial, scores in trained.examples.items():
            store.save_examples(trained.records[trial], scores)
        store.add(trained.records)
        store.update(seconds=self.clock.used)

    def _measure(self) -> Plan:
        """Return the plan with the seconds of a population, and as many networks at once as memory allows."""
        trials = [Trial(name, lr, 0) for name in self.setup.candidates for lr in self.plan.rates]
        while True:
            large = max(self._populations(trials), key=len)
            with self._halving(len(large)):
                (measured,) = self.workers.map(work.measure, self.setup, [large])
                members = min(self.plan.members, measured["members"])
                return replace(self.plan, **measured | {"members": members})
