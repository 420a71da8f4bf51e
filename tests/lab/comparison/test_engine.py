"""The engine decides as the simulated decision does: workers draw scores instead of training networks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from hullo.lab.comparison import Result, work
from hullo.lab.comparison.budget import Plan
from hullo.lab.comparison.decision import FRESH, MAX_PAIRS, UNDECIDED, Choice, Score, Trial, Verdict, choose, confirm
from hullo.lab.comparison.engine import MAX_SEEDS, Engine
from hullo.lab.comparison.store import Store
from hullo.lab.comparison.task import make_task
from hullo.lab.progress import Progress
from hullo.lab.spec.environment import environment
from hullo.lab.spec.records import learned_fields, make_record, round_number
from hullo.lab.spec.run_spec import Spec

NAMES, RATES, LOOKS, WORTH = ("own", "relu", "gelu", "tanh", "silu"), (0.1, 0.3), (4, 8, 16), 0.3
MACHINE = environment("cpu")


@dataclass
class Hourglass:
    """A clock that only workers advance."""

    seconds: float
    used: float = 0.0

    @property
    def left(self) -> float:
        return self.seconds - self.used


class Dice:
    """Workers that draw scores: what a seed shares and skewed noise; some networks diverge.

    A population takes one second to set up, and an epoch 0.2 seconds, and 0.1 more for each network, times `slowness`.
    """

    count = 1

    def __init__(self, seed: int, *, lower: bool = False, test_seed: int = 0, slowness: float = 0.0) -> None:
        self.seed, self.sign, self.test_seed, self.trained = seed, -1.0 if lower else 1.0, test_seed, list[Trial]()
        self.slowness, self.clock = slowness, Hourglass(600.0)

    def draw(self, trial: Trial) -> tuple[list[float], list[float], bool]:
        """Return validation and test scores after two epochs, and whether the network diverged."""
        shared, own, test = (
            random.Random(f"{self.seed} {part}") for part in (trial.seed, trial, (trial, self.test_seed))
        )
        level = shared.gauss(0, 0.5)
        val, tests = ([round_number(level + 0.5 * dice.expovariate(1)) for _ in range(2)] for dice in (own, test))
        return val, tests, own.random() < 0.05

    def scores(self, trials: Sequence[Trial], words: str = "") -> dict[Trial, Score]:
        """Return what the decision is simulated with: scores after the epoch that is best on validation data."""
        found = {}
        for trial in trials:
            val, test, diverged = self.draw(trial)
            best = 0 if val[0] >= val[1] else 1
            found[trial] = Score(math.nan, math.nan) if diverged else Score(val[best], test[best])
        return found

    def map(self, function: Any, setup: Any, calls: Sequence[Any], **_: Any) -> Iterator[Any]:
        for call in calls:
            if function is work.measure:
                yield {"setup": 1.0, "fixed": 0.2, "each": 0.1, "members": 1000}
            elif function is work.train:
                trials, epochs = call
                self.trained += trials
                self.clock.used += self.slowness * (1.0 + epochs * (0.2 + 0.1 * len(trials)))
                yield work.Trained({trial: self.record(trial) for trial in call[0]}, {}, {})
            else:
                yield [work.StepCost(1.0 + (name != "own"), 10 + 5 * (name != "own")) for name in call]

    def record(self, trial: Trial) -> Any:
        val, test, diverged = self.draw(trial)
        spec = Spec("net", "dice", trial.candidate, seed=trial.seed, epochs=2, settings=f"lr={trial.lr:g}")
        losses: Mapping[str, Sequence[float]] = {"train_loss": [1.0, math.inf if diverged else 1.0], "test_loss": []}
        curves = {name: [self.sign * score for score in part] for name, part in (("val", val), ("test", test))}
        more = {"metric": "score", "lower_is_better": self.sign < 0, "test_accuracy": []}
        more |= {f"{name}_metric": curve for name, curve in curves.items()}
        about = {"members": 1, "seconds": 0.0, "environment": MACHINE}
        return make_record(spec, learned_fields(spec.row, [], []), losses, **about, **more)


@contextmanager
def make_engine(folder: Path, dice: Any, seeds: int | None, worth: float = WORTH) -> Iterator[Engine]:
    """Yield the engine of a comparison whose networks are drawn."""
    task = make_task(None, None, lambda outputs, targets: 0.0, higher_is_better=dice.sign > 0)
    items = {name: SimpleNamespace(name=name, label=name, group="", scale=1.0) for name in NAMES}
    data, clock, plan = SimpleNamespace(name="dice"), dice.clock, Plan(RATES, members=16)
    setup: Any = SimpleNamespace(network="net", data=data, candidates=items, task=task, notes=[])
    folder.mkdir(exist_ok=True)
    with Progress(Console(quiet=True), quiet=True) as progress:
        yield Engine(setup, Store(folder, task.sign), dice, progress, clock, Event(), plan, 2, seeds, worth)


def run(folder: Path, dice: Any, seeds: int | None, worth: float = WORTH) -> Result:
    """Call a comparison whose networks are drawn."""
    with make_engine(folder, dice, seeds, worth) as engine:
        return engine.run()


@pytest.mark.parametrize("lower", [False, True])
def test_the_engine_decides_as_the_decision_that_is_simulated(lower: bool, tmp_path: Path) -> None:
    kinds = set()
    for seed in range(6):
        dice = Dice(seed, lower=lower)
        choice = choose(NAMES, RATES, dice.scores, count_seeds=lambda *_: MAX_SEEDS)
        for look, pairs in enumerate(LOOKS, 1):
            result = run(tmp_path / str(seed), dice, pairs)
            assert (result.choice.challenger, result.choice.rates) == (choice.challenger, choice.rates)
            assert result.verdict == confirm(choice, pairs, WORTH, look, dice.scores(choice.confirmation(pairs)))
            kinds.add(result.verdict.kind)
            original, *others = result.rows
            order = [(-row.validation_seeds, -dice.sign * row.change) for row in others]
            assert original.candidate == "own"
            assert order == sorted(order)  # the longest in the choice first, then the best
            trained = len(dice.trained)
            if result.verdict.kind != UNDECIDED:
                break
        same = run(tmp_path / str(seed), dice, 2 * pairs if result.verdict.kind != UNDECIDED else pairs)
        assert same.verdict == result.verdict  # a look that has decided stays, and so does one with as many seeds
        assert len(dice.trained) == trained
        assert len(dice.trained) == len(set(dice.trained))
    assert len(kinds) > 1


def test_scores_on_test_data_choose_nothing(tmp_path: Path) -> None:
    one, two = Dice(0), Dice(0, test_seed=1)
    first, second = (run(tmp_path / str(k), dice, 4) for k, dice in enumerate((one, two)))
    assert one.trained == two.trained
    assert (first.choice.rates, first.choice.challenger) == (second.choice.rates, second.choice.challenger)
    assert first.verdict != second.verdict


@pytest.mark.parametrize(
    ("gain", "half", "words", "others"),
    [
        (1.0, 0.4, "by more than the 0.5", "perhaps"),
        (0.6, 0.4, "perhaps by less than the 0.5", "more than"),
        (0.3, 0.1, "but by less than the 0.5", "perhaps"),
        (0.2, 0.25, "gains at most 0.45, less than the 0.5", "beats"),
        (-0.4, 0.2, "is worse", "beats"),
        (0.2, 0.4, "may gain up to 0.6, more than the 0.5", "beats"),
        (0.0, math.inf, "no interval", "beats"),
    ],
)
@pytest.mark.parametrize("lower", [False, True])
def test_the_finding_says_how_the_interval_lies(
    gain: float, half: float, words: str, others: str, lower: bool, tmp_path: Path
) -> None:
    result = run(tmp_path, Dice(0, lower=lower), 4)
    result.verdict = Verdict(gain, half, 0.5, pairs=4, deviation=0.0 if half == math.inf else 1.0, look=2)
    sign = "+" if gain == 0 or (gain > 0) != lower else "-"
    assert words in result.finding
    assert others not in result.finding
    assert f"{sign}{abs(gain):g} " in result.finding
    assert ("97.5 %" in result.finding) == (half < math.inf)
    costs = "its training step takes 2.00 times the time and 1.50 times the memory"
    assert (costs in result.finding) == (gain > half)


@pytest.mark.parametrize("slowness", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("seconds", [16, 60, 200, 1000])
def test_a_comparison_takes_the_time_that_it_has(
    seconds: float, slowness: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long networks take, by the measure of the plan; and called again, it goes on."""
    dice, announced = Dice(0, slowness=slowness), []

    def announce(self: Engine, choice: Choice, pairs: int, look: int, worth: float) -> None:
        announced.append((pairs, self.clock.used / seconds))

    monkeypatch.setattr(Engine, "_announce", announce)
    dice.clock.seconds = seconds
    with make_engine(tmp_path, dice, None, worth=1e-9) as engine:
        first = engine.run()
    assert dice.clock.used < 1.2 * seconds
    if seconds == 1000:
        assert engine.pace == pytest.approx(slowness, rel=0.1)
    if slowness == 1.0:
        assert first.verdict is not None
        ((planned, share),) = announced
        assert planned == first.verdict.pairs
        assert share < 0.65  # of the time, which the choice takes at most
        assert dice.clock.used > 0.7 * seconds or first.verdict.pairs == MAX_PAIRS
        fresh = sum(trial.seed >= FRESH for trial in dice.trained)
        assert len(dice.trained) / 4 < fresh  # the choice leaves time for the confirmation
    trained = len(dice.trained)
    dice.clock.seconds = 2 * seconds + 200
    second = run(tmp_path, dice, None, worth=1e-9)
    assert dice.clock.used < 1.1 * dice.clock.seconds
    assert len(dice.trained) == len(set(dice.trained)) >= trained
    assert second.verdict is not None
    assert second.verdict.pairs >= (0 if first.verdict is None else first.verdict.pairs)


def test_the_plan_measures_what_a_population_takes_and_what_each_network_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a training whose first step takes 5 seconds, another one 0.02 and 0.01 for each network, an evaluation 2."""
    time = [0.0]

    class Training:
        steps = 100

        def __init__(self, size: int) -> None:
            self.size = size

        def advance(self) -> Iterator[None]:
            time[0] += 5.0
            yield
            while True:
                time[0] += 0.02 + 0.01 * self.size
                yield

        def evaluate(self) -> None:
            time[0] += 2.0

    setup: Any = SimpleNamespace(data=SimpleNamespace(device=torch.device("cpu")))
    trials = [Trial("own", 0.1, seed) for seed in range(6)]
    monkeypatch.setattr(work, "_now", lambda device: time[0])
    monkeypatch.setattr(work, "_make_loop", lambda setup, trials, epochs: Training(len(trials)))
    measured = work.measure(setup, trials)
    assert measured == pytest.approx({"setup": 5.0, "fixed": 4.0, "each": 1.0, "members": work.GPU_MEMBERS})
    assert work.measure(setup, trials[:1]) == pytest.approx({"setup": 5.0, "fixed": 0.0, "each": 5.0, "members": 1})


def test_seeds_are_said_with_their_minutes_unless_there_are_too_many(tmp_path: Path) -> None:
    with make_engine(tmp_path, Dice(0), seeds=10) as engine:
        engine.plan, engine.clock.used = Plan(RATES, members=16, each=9.0), 60.0
        assert engine._spell_seeds(8, 4) == "8 seeds, about 3 minutes in all"  # 1, and 8 networks of 9 seconds, / 0.9
        assert engine._spell_seeds(11, 4) == "11 seeds, more than the limit of 10"
        assert engine._spell_seeds(None, 4) == "more than 1000 seeds"


def test_seconds_are_those_of_whole_populations_by_several_workers() -> None:
    plan = Plan(RATES, members=4, epochs=3, setup=1.0, fixed=2.0, each=0.5, workers=2)
    assert plan.seconds(8) == 1 + 3 * (2 + 4 * 0.5)
    assert plan.seconds(9) == 2 * (1 + 3 * 2) + 3 * 5 * 0.5
    assert plan.seconds(2, rounds=3) == 3 * (1 + 3 * 2) + 3 * 0.5


def test_rounds_take_no_time_that_the_confirmation_needs_and_leave_some_to_later_ones(tmp_path: Path) -> None:
    pairs = [(name, 0.1) for name in NAMES]
    with make_engine(tmp_path, Dice(0), None) as engine:
        engine.plan = Plan(RATES, members=16, each=1.0)
        engine.clock.used = 100.0
        counts = []
        for left in (20.9, 21.1, 200.0):  # a round of one seed takes 5 seconds, and 8 pairs 16
            engine.clock.seconds = 100.0 + left
            counts.append((engine._count_seeds(pairs, 0, 1), engine._count_seeds(pairs, 1, 1)))
        assert counts == [(1, 0), (1, 1), (MAX_SEEDS, MAX_SEEDS)]
        # 50 seconds are left to choose, half of 300 but for the 100 that were used: 10 for each of five rounds
        assert engine._count_seeds(pairs, 0, 4) == engine._count_seeds(pairs, 1, 4) == 2
        engine.store.records |= {
            Trial(*pair, seed): engine.workers.record(Trial(*pair, seed)) for pair in pairs for seed in range(4)
        }
        assert engine._count_seeds(pairs, 0, 4) == 4  # as an earlier call trained them


def test_a_state_that_is_cut_off_is_named(tmp_path: Path) -> None:
    Store(tmp_path, 1.0).update(plan={"epochs": 3})
    path = tmp_path / "comparison.json"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"comparison\.json is damaged"):
        Store(tmp_path, 1.0)
