"""The budget: what populations take, and the plan that fits into the minutes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hullo.lab.comparison.decision import count_trials, halvings

MAX_EPOCHS = 20
MIN_PAIRS = 8
"""Number of seeds for which the confirmation is planned."""
CHOICE_SHARE, CONFIRMATION_SHARE = 0.5, 0.4
"""The shares of the budget for choosing and confirming; the rest is for building networks and tracing them."""


class OutOfTime(Exception):  # noqa: N818  (it is no error)
    """Raised if the next networks do not fit into the minutes that are left."""


@dataclass
class Clock:
    """Time the calls of a comparison, in seconds: the budget, and the time of earlier calls."""

    seconds: float
    spent: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def used(self) -> float:
        return self.spent + time.monotonic() - self.started

    @property
    def left(self) -> float:
        return self.seconds - self.used


@dataclass(frozen=True)
class Plan:
    """The plan of a comparison, and the seconds that it is made from."""

    rates: Sequence[float]  # the grid of learning rates
    members: int  # the networks at once
    epochs: int = 1  # of every network
    setup: float = 0.0  # of a population
    fixed: float = 0.0  # of an epoch of a population
    each: float = 0.0  # more for each of its networks
    ready: float = 0.0  # of the budget that were used when the plan was made
    workers: int = 1  # that train populations at the same time

    def seconds(self, networks: int, rounds: int = 1) -> float:
        """Return the seconds that a number of networks take, in a number of rounds."""
        populations = max(rounds, math.ceil(networks / self.members / self.workers))  # of each worker
        own = math.ceil(networks / self.workers)
        return populations * (self.setup + self.epochs * self.fixed) + self.epochs * self.each * own

    def left_to_choose(self, clock: Clock) -> float:
        """Return the seconds that are left to choose, of a share of those that there were when the plan was made."""
        return max(0.0, CHOICE_SHARE * (clock.seconds - self.ready) - (clock.used - self.ready))


def make_plan(clock: Clock, measured: Plan, candidates: int, epochs: int | None) -> Plan:
    """Return the plan that fits, with as many epochs as possible if their number is not given.

    Raises:
        ValueError: not even one epoch fits.

    >>> make_plan(Clock(600), Plan((0.001, 0.003, 0.01), members=8, each=0.2), 7, epochs=None).epochs
    20
    """
    more = len(measured.rates) > 1  # by one more learning rate
    trials = count_trials(candidates, len(measured.rates) + more)
    rounds = 1 + more + len(halvings(candidates - 1))
    for number in [epochs] if epochs is not None else range(MAX_EPOCHS, 0, -1):
        plan = replace(measured, epochs=number, ready=clock.used)
        needed = max(plan.seconds(trials, rounds) / CHOICE_SHARE, plan.seconds(2 * MIN_PAIRS) / CONFIRMATION_SHARE)
        if needed <= clock.left:
            return plan
    raise ValueError(
        f"the time is too short to train {candidates} candidates for {spell_count(epochs or 1, 'epoch')}: give "
        f"{spell_minutes((clock.used + needed) / 60)} in all, fewer candidates, learning rates or epochs, or less data"
    )


def spell_count(count: int, what: str) -> str:
    """Return a number of things as text.

    >>> spell_count(1, "epoch"), spell_count(2000, "epoch")
    ('1 epoch', '2,000 epochs')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def spell_minutes(minutes: float) -> str:
    """Return minutes as text, rounded up.

    >>> spell_minutes(0.51), spell_minutes(4.1)
    ('0.6 minutes', '5 minutes')
    """
    return spell_count(math.ceil(minutes), "minute") if minutes > 0.9 else f"{math.ceil(10 * minutes) / 10:g} minutes"
