"""The engine of one call: plans within the budget, trains the runs that the decision asks for, and records them.

It is a function of the plan, of the runs that have a record, and of the time that is left. Runs that have a record are
free, so a comparison that was interrupted goes on where it ended, and one that is called with more minutes looks again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import count, islice, takewhile
from threading import Event
from typing import Any

from hullo._compat import is_out_of_memory
from hullo.lab.analysis.power import MOST_SEEDS, detectable_difference, seeds_needed
from hullo.lab.comparison import decision, work
from hullo.lab.comparison.budget import (
    MIN_PAIRS,
    Clock,
    OutOfTime,
    Plan,
    make_plan,
    spell_count,
    spell_minutes,
)
from hullo.lab.comparison.decision import FRESH, MAX_PAIRS, ORIGINAL, UNDECIDED, Arm, Choice, Pairs, Score, Verdict
from hullo.lab.comparison.result import Result
from hullo.lab.comparison.store import Store, score_of
from hullo.lab.comparison.trial import Setup, Trial
from hullo.lab.comparison.work import Trained, Workers
from hullo.lab.progress import Progress

CPU_MEMBERS, GPU_MEMBERS = 16, 512
"""The largest number of networks in a population. On a CPU, more save time only where networks are small."""
MAX_SEEDS = 5
"""The largest number of seeds that a round of the choice adds."""
RESERVE = 0.9
"""The share of the time left that the confirmation is planned for."""
CHEAP = 1.3
"""The cost of several seeds, as a multiple of that of one, up to which they are always added."""
FIRST_SHARE = 0.3
"""The share of the time for choosing that is spent on more than one seed in the first round."""


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
    epochs: int | None  # of every run; None for as many as fit
    seeds: int | None  # the largest number of fresh seeds; None for as many as fit
    worth: float | None  # the smallest gain that is worth a change; None for a default
    pace: float = 1.0  # how much longer runs took than planned

    def run(self) -> Result:
        """Run, and return the result."""
        store, setup = self.store, self.setup
        if "plan" not in store.state:
            measured = self._measure([Arm(name, lr, 0) for name in setup.candidates for lr in self.plan.rates])
            store.update(plan=asdict(make_plan(self.clock, measured, len(setup.candidates), self.epochs)))
        self.plan = replace(Plan(**store.state["plan"]), workers=self.workers.count)
        choice = Choice(grid=list(self.plan.rates))
        result = Result(setup, store, self.plan, choice, self.worth, self.worth is None)
        with suppress(OutOfTime):
            result.choice = choice = self._choose()
            worth = result.worth = self.worth or setup.task.default_worth(choice.mean(ORIGINAL))
            result.verdict = self._confirm(choice, worth)
            if result.verdict is not None and "costs" not in store.state:
                (costs,) = self.workers.map(work.measure_steps, setup, [(ORIGINAL, choice.challenger)])
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
            scores = {arm: score for arm, score in store.scores().items() if arm.seed < FRESH}
            return Choice(**store.state["choice"], scores=scores)
        choice = decision.choose(
            list(self.setup.candidates),
            self.plan.rates,
            self.train,
            count_seeds=self._count_seeds,
            may_extend=lambda arms: self.predict(len(self.missing(arms))) <= self.plan.left_to_choose(self.clock),
        )
        store.update(choice={name: getattr(choice, name) for name in ("rates", "challenger", "grid")})
        return choice

    def _count_seeds(self, pairs: Pairs, first: int, rounds_left: int) -> int:
        """Return the number of seeds of a round: as many as have records, or as the time for choosing allows.

        Seeds that hardly cost more than one, since a GPU trains them side by side, are always added. The first round
        gets less of the time: later ones can make up for few seeds, but not for a grid that ends too early. A later
        round is left out, with 0 seeds, if it would take time that the confirmation needs.
        """
        seeds = takewhile(lambda seed: not self.missing([Arm(*pair, seed) for pair in pairs]), count(first))
        trained, seconds = len(list(seeds)), self.predict(len(pairs))
        if first and seconds + self.predict(2 * MIN_PAIRS) > self.clock.left:
            return trained
        share = (1.0 if first else FIRST_SHARE) * self.plan.left_to_choose(self.clock) / (1 + rounds_left)
        allowed = max(share, CHEAP * seconds)
        fitting = (n for n in range(1, MAX_SEEDS + 1) if self.predict(n * len(pairs)) <= allowed)
        return max(trained, *fitting)

    def _confirm(self, choice: Choice, worth: float) -> Verdict | None:
        """Look at the challenger and the original on fresh seeds.

        An earlier look stays if it has decided, or if there are not more minutes or seeds than it had.
        """
        store, most = self.store, self.most_seeds
        looks: list[int] = store.state.get("looks", [])
        limits, done, verdict = [self.clock.seconds, most], 1, None
        if looks:
            done, verdict = looks[-1], decision.confirm(choice, looks[-1], worth, len(looks), store.scores())
            before = store.state.get("limits", limits)
            if verdict.kind != UNDECIDED or all(new <= old for new, old in zip(limits, before, strict=True)):
                return verdict
        arms, left = choice.confirmation(most), RESERVE * self.clock.left
        fitting = (n for n in range(done + 1, most + 1) if self.predict(len(self.missing(arms[: 2 * n]))) < left)
        if pairs := max(fitting, default=0):
            self._announce(choice, pairs, len(looks) + 1, worth)
            with suppress(OutOfTime):
                self.train(arms[: 2 * pairs], "confirmation")
            missing = self.missing(arms)
            pairs = (arms.index(missing[0]) if missing else len(arms)) // 2
        if pairs <= done:
            return verdict
        store.update(looks=[*looks, pairs], limits=limits)
        return decision.confirm(choice, pairs, worth, len(looks) + 1, store.scores())

    def _announce(self, choice: Choice, pairs: int, look: int, worth: float) -> None:
        """Print the power of the confirmation, before it starts, and what would find a gain that is worth a change."""
        task, deviation, alpha = self.setup.task, choice.deviation, decision.two_sided(look)
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
        minutes = f", about {spell_minutes(self._minutes(2 * (needed - done)))} in all"
        return f"{needed} seeds{minutes}" if needed <= self.most_seeds else f"{needed} seeds"

    def _minutes(self, runs: int) -> float:
        """Return the minutes, in all, after a number of further runs."""
        return (self.clock.used + self.predict(runs) / RESERVE) / 60

    def _advise(self, verdict: Verdict | None) -> str:
        """Return what would decide if mean and deviation stayed."""
        if verdict is not None:
            return f"{self._spell_seeds(verdict.needed, verdict.pairs)} would probably decide"
        chosen = sum(arm.seed < FRESH for arm in self.store.records)
        all_runs = decision.count_runs(len(self.setup.candidates), len(self.plan.rates))
        minutes = self._minutes(max(0, all_runs - chosen) + 2 * MIN_PAIRS)
        return f"about {spell_minutes(minutes)} in all would do"

    def train(self, arms: Sequence[Arm], words: str) -> dict[Arm, Score]:
        """Train the runs without a record, and return the scores of all; raise OutOfTime if they do not fit."""
        total = len(self.missing(arms))
        while missing := self.missing(arms):
            populations = list(islice(self._populations(missing), self.workers.count))
            if self.predict(sum(map(len, populations))) > self.clock.left:
                raise OutOfTime
            with self._halving(len(populations[0])):
                self._train(populations, words, total - len(missing), total)
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
            parts = max(math.ceil(len(group) / self.plan.members), min(self.workers.count, len(group)))
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

    def _train(self, populations: list[list[Arm]], words: str, done: int, total: int) -> None:
        """Train populations side by side, and record their runs."""
        started, arms = self.clock.used, [arm for population in populations for arm in population]
        first, *others = dict.fromkeys(self.setup.candidates[arm.candidate].label for arm in arms)
        labels = ", ".join([first, *others]) if len(others) < 2 else f"{first} and {len(others)} other activations"
        title = f"{words}: {spell_count(len(arms), 'network')}"
        title += f" in {len(populations)} populations" if len(populations) > 1 else ""
        self.progress.start_step(f"{title}, {labels}, {spell_time(self.clock.left)} left", done, total)

        def show(trial: Trial) -> None:
            fraction = (trial.epoch + trial.step / trial.steps) / trial.epochs
            at = f"epoch {min(trial.epoch + 1, trial.epochs)} of {trial.epochs}"
            text = f"{title}\n{labels}, {at}, {spell_time(self.clock.left)} left"  # of 80 columns
            self.progress.update(fraction * len(trial.arms), text)

        calls, recorded = [(population, self.plan.epochs) for population in populations], 0
        for trained in self.workers.map(work.train, self.setup, calls, show=show, stop=self.stop):
            self._record(trained)
            recorded += len(trained.records)
            self.progress.update(recorded)
        # half of what is known, half of what is new
        self.pace = (self.pace + (self.clock.used - started) / self.plan.seconds(len(arms))) / 2

    def _record(self, trained: Trained) -> None:
        """Record runs, after the weights of those that are the best of their candidate."""
        store = self.store
        for arm, state in trained.weights.items():
            others = [score.val for other, score in store.scores().items() if other.candidate == arm.candidate]
            if score_of(trained.records[arm], store.sign).val >= max(filter(math.isfinite, others), default=-math.inf):
                store.save_weights(self.setup.candidates[arm.candidate].label, state)
        for arm, scores in trained.examples.items():
            store.save_examples(trained.records[arm], scores)
        store.add(trained.records)
        store.update(seconds=self.clock.used)

    def _measure(self, arms: Sequence[Arm]) -> Plan:
        """Return the plan with the seconds of a population, measured of a small and of a large one.

        On a GPU, the number of networks at once is bounded by what the large one leaves of the memory.
        """
        measured = None
        while measured is None:
            large = max(self._populations(arms), key=len)
            size = len(large)
            with self._halving(size):
                (measured,) = self.workers.map(work.measure, self.setup, [large])
        each = (
            max((measured.many - measured.one) / (size - 1), measured.many / size / 10) if size > 1 else measured.many
        )
        members = self.plan.members if any(item.group is not None for item in self.setup.candidates.values()) else 1
        members, fixed = min(members, measured.room or members), max(0.0, measured.many - size * each)
        return replace(self.plan, members=members, setup=measured.setup, fixed=fixed, each=each)


def spell_time(seconds: float) -> str:
    """Return a duration as text: 0:04:10."""
    return str(timedelta(seconds=max(0, round(seconds))))
