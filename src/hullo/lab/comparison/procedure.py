"""The procedure of one call: plan within the budget, choose, confirm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from hullo.lab.comparison import decision
from hullo.lab.comparison.candidates import ORIGINAL
from hullo.lab.comparison.cost import StepCost, measure_costs
from hullo.lab.comparison.engine import MAX_CPU_MEMBERS, Engine, OutOfTime
from hullo.lab.comparison.plan import CHOICE_SHARE, MAX_PAIRS, MIN_PAIRS, Cost, Plan, count_seeds, make_plan
from hullo.lab.comparison.result import Result

RESERVE = 0.9
"""The share of the time left that the confirmation is planned for."""
FIRST_SHARE = 0.3
"""The share of the time for choosing that is spent on more than one seed in the first round."""


@dataclass
class Procedure:
    """Run a comparison, from where an earlier call ended.

    What an earlier call trained, planned and decided is replayed from its records, so an interrupted comparison goes on
    as if it had not been.

    Args:
        engine: trains and records.
        rates: the grid of learning rates.
        epochs: of every run; None for as many as fit.
        seeds: the largest number of fresh seeds; None for as many as fit.
        split: how the data were split.
        notes: on candidates that were left out.
    """

    engine: Engine
    rates: Sequence[float]
    epochs: int | None
    seeds: int | None
    split: str
    notes: list[str]
    _answered: int = 0

    def run(self) -> Result:
        """Run, and return the result."""
        engine, store = self.engine, self.engine.store
        plan = self._plan()
        engine.settings = replace(engine.settings, epochs=plan.epochs)
        choice, verdict = decision.Choice(), None
        try:
            choice = decision.choose(
                list(engine.candidates),
                plan.rates,
                engine.train,
                count_seeds=self._count_seeds,
                may_extend=lambda runs: bool(self._answer(lambda: int(engine.predict(runs) < self._seconds_to_choose))),
            )
            verdict = self._confirm(choice)
        except OutOfTime:
            pass
        store.publish(choice.rates)
        result = Result(
            *engine.names,
            split=self.split,
            metric=engine.task.metric,
            plan=plan,
            candidates=list(engine.candidates.values()),
            choice=choice,
            verdict=verdict,
            store=store,
            example=engine.example,
            power=store.state.get("power"),
            costs=self._measure_costs(choice) if verdict is not None else [],
            needed=self._seconds_to_decide(plan, verdict),
            notes=self.notes,
        )
        store.update(finding=result.finding, seconds=engine.clock.used)
        return result

    def _seconds_to_decide(self, plan: Plan, verdict: decision.Verdict | None) -> float | None:
        """Return the seconds that would decide if means and deviations stayed as they are; None if too many."""
        if verdict is not None:
            return None if verdict.more is None else self.engine.predict(2 * verdict.more)
        chosen = sum(arm.seed < decision.FRESH for arm in self.engine.store.records)
        missing = max(0, decision.count_runs(len(self.engine.candidates), len(plan.rates)) - chosen)
        return self.engine.predict(missing + 2 * MIN_PAIRS)

    def _plan(self) -> Plan:
        """Return the plan of an earlier call, or make one from measured steps."""
        engine, state = self.engine, self.engine.store.state
        if "plan" not in state:
            cost = engine.measure([decision.Arm(name, lr, 0) for name in engine.candidates for lr in self.rates])
            members = engine.members
            if engine.loader.device.type == "cpu":
                members = min(MAX_CPU_MEMBERS, max(members, cost.efficient_members))
            count, left = len(engine.candidates), engine.clock.left
            plan = make_plan(left, cost, candidates=count, rates=self.rates, epochs=self.epochs, members=members)
            engine.store.update(plan=asdict(plan), cost=asdict(cost))
        engine.cost = Cost(**state["cost"])
        saved = Plan(**state["plan"])
        engine.members = saved.members
        return replace(saved, rates=tuple(saved.rates))

    def _count_seeds(self, rounds_left: int, runs: int) -> int:
        """Return the number of seeds of a round, as the time for choosing allows.

        The first round gets less: later ones can make up for few seeds, but not for a grid that ends too early. A later
        round is left out, with 0 seeds, if it would take time that the confirmation needs.
        """
        engine = self.engine
        is_first = rounds_left == len(decision.halvings(len(engine.candidates) - 1))
        seconds = (FIRST_SHARE if is_first else 1.0) * self._seconds_to_choose

        def count() -> int:
            round_seconds = engine.predict(runs)
            if not is_first and round_seconds + engine.predict(2 * MIN_PAIRS) > engine.clock.left:
                return 0
            return count_seeds(seconds, rounds_left, round_seconds)

        return self._answer(count)

    @property
    def _seconds_to_choose(self) -> float:
        """Return what is left of the time for choosing."""
        return CHOICE_SHARE * self.engine.clock.seconds - self.engine.clock.used

    def _answer(self, ask: Callable[[], int]) -> int:
        """Return the next answer that depends on the time; those of an earlier call hold."""
        answers: list[int] = self.engine.store.state.get("answers", [])
        if self._answered == len(answers):
            answers = [*answers, ask()]
            self.engine.store.update(answers=answers)
        self._answered += 1
        return answers[self._answered - 1]

    def _confirm(self, choice: decision.Choice) -> decision.Verdict | None:
        """Look at the challenger and the original on fresh seeds: as earlier calls did, then with more of them."""
        engine = self.engine
        looks: list[int] = engine.store.state.get("looks", [])
        verdict = None
        for look, pairs in enumerate(looks, 1):
            verdict = decision.confirm(choice, ORIGINAL, pairs, look, engine.train)
        if verdict is not None and verdict.p <= verdict.alpha:
            return verdict
        done, look = looks[-1] if looks else 0, len(looks) + 1
        more = range(1, min(self.seeds or MAX_PAIRS, MAX_PAIRS) - done + 1)
        pairs = done + max((n for n in more if engine.predict(2 * n) < RESERVE * engine.clock.left), default=0)
        if pairs <= max(done, 1):
            return verdict
        self._announce(choice, pairs, look)
        try:
            verdict = decision.confirm(choice, ORIGINAL, pairs, look, engine.train)
        except OutOfTime:
            pairs = self._count_pairs(choice)
            if pairs <= max(done, 1):
                return verdict
            verdict = decision.confirm(choice, ORIGINAL, pairs, look, engine.train)
        engine.store.update(looks=[*looks, pairs])
        return verdict

    def _announce(self, choice: decision.Choice, pairs: int, look: int) -> None:
        """Print the power of the confirmation, before it starts."""
        likely = ""
        if (deviation := choice.deviation(ORIGINAL)) is not None:
            power = decision.detectable(deviation, pairs, look)
            self.engine.store.update(power=power)
            unit = f" {self.engine.task.metric.unit}".rstrip()
            likely = f"; a gain of {power:.3g}{unit} is found with a probability of 80 %"
        words = f"confirmation of {choice.challenger} on {pairs} fresh seeds, look {look}"
        self.engine.progress.note(f"{words}{likely}")

    def _count_pairs(self, choice: decision.Choice) -> int:
        """Return the number of fresh seeds, from the first, that both have been trained with."""
        pairs, names = 0, (choice.challenger, ORIGINAL)
        while all(
            decision.Arm(name, choice.rates[name], decision.FRESH + pairs) in self.engine.store.records
            for name in names
        ):
            pairs += 1
        return pairs

    def _measure_costs(self, choice: decision.Choice) -> list[StepCost]:
        """Return what a training step costs the original and the challenger, each as a single network."""
        engine = self.engine
        if engine.step is not None or engine.example is None:
            return []
        batch = next(engine.loader.eval_batches("val"))
        size = torch.arange(engine.settings.batch_size, device=engine.loader.device)
        inputs, targets = engine.loader.load_eval(*batch)
        chosen = size % len(targets)
        networks = [engine.candidates[name].build_plain(0, engine.example) for name in (ORIGINAL, choice.challenger)]
        return measure_costs(
            networks, inputs[chosen], lambda outputs: engine.task.losses(outputs, targets[chosen]).mean()
        )
