"""The procedure of one call: plan within the budget, choose, confirm.

It is a function of the plan, of the runs that have a record, and of the time that is left. Runs that have a record are
free, so a comparison that was interrupted goes on where it ended, and one that is called with more minutes looks again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count, takewhile

import torch

from hullo.lab.analysis.power import seeds_needed
from hullo.lab.comparison import decision
from hullo.lab.comparison.budget import (
    MIN_PAIRS,
    OutOfTime,
    Plan,
    StepCost,
    make_plan,
    measure_costs,
    spell_minutes,
)
from hullo.lab.comparison.decision import FRESH, MAX_PAIRS, ORIGINAL, UNDECIDED, Arm, Choice, Pairs, Verdict
from hullo.lab.comparison.engine import Engine
from hullo.lab.comparison.result import Result

MAX_SEEDS = 5
"""The largest number of seeds that a round of the choice adds."""
RESERVE = 0.9
"""The share of the time left that the confirmation is planned for."""
CHEAP = 1.3
"""The cost of several seeds, as a multiple of that of one, up to which they are always added."""
FIRST_SHARE = 0.3
"""The share of the time for choosing that is spent on more than one seed in the first round."""


@dataclass
class Procedure:
    """Run a comparison, from where an earlier call ended.

    Args:
        engine: trains and records.
        rates: the grid of learning rates.
        epochs: of every run; None for as many as fit.
        seeds: the largest number of fresh seeds; None for as many as fit.
        worth: the smallest gain that is worth a change; None for a default.
    """

    engine: Engine
    rates: Sequence[float]
    epochs: int | None
    seeds: int | None
    worth: float | None

    def run(self) -> Result:
        """Run, and return the result."""
        engine, store = self.engine, self.engine.store
        engine.plan = self._plan()
        result = Result(engine, Choice(grid=list(engine.plan.rates)), self.worth, self.worth is None)
        with suppress(OutOfTime):
            result.choice = choice = self._choose()
            worth = result.worth = self.worth or engine.setup.task.metric.default_worth(choice.mean(ORIGINAL))
            result.verdict = self._confirm(choice, worth)
            if result.verdict is not None:
                costs = store.state.get("costs") or self._measure_costs(choice)
                result.costs = [StepCost(*cost) for cost in costs]
                store.update(costs=costs)
        store.publish(result.choice.rates)
        store.update(seconds=engine.clock.used)
        result.needed = self._minutes_to_decide(result.verdict)
        store.update(finding=result.finding)
        return result

    def _plan(self) -> Plan:
        """Return the plan of an earlier call, or make one from measured steps."""
        engine, store = self.engine, self.engine.store
        if "plan" not in store.state:
            candidates = engine.setup.candidates
            cost = engine.measure([Arm(name, lr, 0) for name in candidates for lr in self.rates])
            plan = make_plan(engine.clock, cost, len(candidates), self.rates, self.epochs, engine.plan.members)
            store.update(plan=asdict(plan))
        return Plan(**store.state["plan"])

    def _choose(self) -> Choice:
        """Return the choice of an earlier call, or choose."""
        engine, store = self.engine, self.engine.store
        if "choice" in store.state:
            scores = {arm: score for arm, score in store.scores().items() if arm.seed < FRESH}
            return Choice(**store.state["choice"], scores=scores)
        choice = decision.choose(
            list(engine.setup.candidates),
            engine.plan.rates,
            engine.train,
            count_seeds=self._count_seeds,
            may_extend=lambda arms: (
                engine.predict(len(engine.missing(arms))) <= max(0.0, engine.plan.left_to_choose(engine.clock))
            ),
        )
        store.update(choice={name: getattr(choice, name) for name in ("rates", "challenger", "grid")})
        return choice

    def _count_seeds(self, pairs: Pairs, first: int, rounds_left: int) -> int:
        """Return the number of seeds of a round: as many as have records, or as the time for choosing allows.

        Seeds that hardly cost more than one, since a GPU trains them side by side, are always added. The first round
        gets less of the time: later ones can make up for few seeds, but not for a grid that ends too early. A later
        round is left out, with 0 seeds, if it would take time that the confirmation needs.
        """
        engine = self.engine
        seeds = takewhile(lambda seed: not engine.missing([Arm(*pair, seed) for pair in pairs]), count(first))
        trained, seconds = len(list(seeds)), engine.predict(len(pairs))
        if first and seconds + engine.predict(2 * MIN_PAIRS) > engine.clock.left:
            return trained
        share = (1.0 if first else FIRST_SHARE) * engine.plan.left_to_choose(engine.clock) / (1 + rounds_left)
        allowed = max(share, CHEAP * seconds)
        fitting = (n for n in range(1, MAX_SEEDS + 1) if engine.predict(n * len(pairs)) <= allowed)
        return max(trained, *fitting)

    def _confirm(self, choice: Choice, worth: float) -> Verdict | None:
        """Look at the challenger and the original on fresh seeds.

        An earlier look stays if it has decided, or if there are not more minutes or seeds than it had.
        """
        engine, store = self.engine, self.engine.store
        looks: list[int] = store.state.get("looks", [])
        done, verdict, most = 0, None, min(self.seeds or MAX_PAIRS, MAX_PAIRS)
        limits = [engine.clock.seconds, most]
        if looks:
            done, verdict = looks[-1], decision.confirm(choice, looks[-1], worth, len(looks), store.scores())
            before = store.state.get("limits", limits)
            if verdict.kind != UNDECIDED or all(new <= old for new, old in zip(limits, before, strict=True)):
                return verdict
        look, left = len(looks) + 1, RESERVE * engine.clock.left
        arms = choice.confirmation(most)
        fitting = (n for n in range(done + 1, most + 1) if engine.predict(len(engine.missing(arms[: 2 * n]))) < left)
        pairs = max(fitting, default=0)
        if pairs > max(done, 1):
            self._announce(choice, pairs, look, worth)
            with suppress(OutOfTime):
                engine.train(arms[: 2 * pairs], "confirmation")
            missing = engine.missing(arms)
            pairs = (arms.index(missing[0]) if missing else len(arms)) // 2
        if pairs <= max(done, 1):
            return verdict
        store.update(looks=[*looks, pairs], limits=limits)
        return decision.confirm(choice, pairs, worth, look, store.scores())

    def _announce(self, choice: Choice, pairs: int, look: int, worth: float) -> None:
        """Print the power of the confirmation, before it starts."""
        engine, metric, deviation = self.engine, self.engine.setup.task.metric, choice.deviation
        likely = ""
        if deviation is not None:
            power = decision.power(deviation, pairs, look)
            likely = f"a gain of {metric.spell(power)} is found with a probability of 80 %"
            needed = seeds_needed(worth, deviation, decision.two_sided(look))
            if pairs < (needed or math.inf):
                time = f", about {spell_minutes(self._minutes(2 * needed))} in all" if needed else ""
                likely += f"; {metric.spell(worth)} would take {needed or 'more than 1000'} seeds{time}"
        engine.store.update(power=likely)
        label = engine.setup.candidates[choice.challenger].label
        engine.progress.note(f"confirmation of {label} on {pairs} fresh seeds, look {look}{likely and '; '}{likely}")

    def _minutes(self, runs: int) -> float:
        """Return the minutes, in all, after a number of further runs."""
        return (self.engine.clock.used + self.engine.predict(runs) / RESERVE) / 60

    def _minutes_to_decide(self, verdict: Verdict | None) -> float | None:
        """Return the minutes, in all, that would decide if all stayed as it is; None if that takes too many seeds."""
        engine = self.engine
        if verdict is not None:
            most = math.inf if self.seeds is None else self.seeds - verdict.pairs
            return None if verdict.more is None or verdict.more > most else self._minutes(2 * verdict.more)
        chosen = sum(arm.seed < FRESH for arm in engine.store.records)
        all_runs = decision.count_runs(len(engine.setup.candidates), len(engine.plan.rates))
        return self._minutes(max(0, all_runs - chosen) + 2 * MIN_PAIRS)

    def _measure_costs(self, choice: Choice) -> list[StepCost]:
        """Return what a training step costs the original and the challenger, each as a single network."""
        setup = self.engine.setup
        if setup.step is not None or setup.example is None:
            return []
        inputs, targets = setup.data.load_eval(*next(setup.data.eval_batches("val")))
        chosen = torch.arange(setup.batch_size, device=setup.data.device) % len(targets)
        candidates = [setup.candidates[name] for name in (ORIGINAL, choice.challenger)]
        networks = [item.plain(item.build(0, setup.example)) for item in candidates]
        return measure_costs(
            networks, inputs[chosen], lambda outputs: setup.task.losses(outputs, targets[chosen]).mean()
        )
