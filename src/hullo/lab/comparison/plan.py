"""The plan: how many epochs, learning rates and seeds fit into the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hullo.lab.comparison.decision import count_runs

MAX_EPOCHS = 20
MAX_SEEDS = 5
"""The largest number of seeds that a round of the choice adds."""
MIN_PAIRS, MAX_PAIRS = 6, 100
"""The number of seeds to plan the confirmation for, and the largest number."""
CHOICE_SHARE, CONFIRMATION_SHARE = 0.5, 0.4
"""The shares of the budget for choosing and confirming; the rest is for building networks and tracing them."""


@dataclass(frozen=True)
class Cost:
    """The seconds of a population: to set it up, and for an epoch a fixed part and one for each network."""

    setup: float
    fixed: float
    each: float

    @classmethod
    def of(cls, setup: float, measured: Sequence[tuple[int, float]]) -> Cost:
        """Return the cost from one or two measurements of a number of networks and the seconds of an epoch.

        >>> Cost.of(0.5, [(1, 2.0), (5, 6.0)])
        Cost(setup=0.5, fixed=1.0, each=1.0)
        """
        (count, seconds), *more = measured
        if not more:
            return cls(setup, 0.0, seconds / count)
        ((other, longer),) = more
        each = max((longer - seconds) / (other - count), longer / other / 10)
        return cls(setup, max(0.0, longer - other * each), each)

    def seconds(self, runs: int, members: int, epochs: int) -> float:
        """Return the seconds of a number of runs in populations of at most some members."""
        return math.ceil(runs / members) * (self.setup + epochs * self.fixed) + epochs * self.each * runs

    @property
    def efficient_members(self) -> int:
        """Return the number of members from which the fixed part is a fifth."""
        return math.ceil(4 * self.fixed / self.each)


@dataclass(frozen=True)
class Plan:
    """The plan of a comparison: the number of epochs, the learning rates, and the networks at once."""

    epochs: int
    rates: tuple[float, ...]
    members: int


def make_plan(
    seconds: float, cost: Cost, *, candidates: int, rates: Sequence[float], epochs: int | None, members: int
) -> Plan:
    """Return the plan that fits; with too little time for the grid, the middle learning rate alone.

    Raises:
        ValueError: not even that fits.

    >>> make_plan(600, Cost(0, 0, 0.2), candidates=7, rates=(0.001, 0.003, 0.01), epochs=None, members=8)
    Plan(epochs=20, rates=(0.001, 0.003, 0.01), members=8)
    """

    def times(number: int, grid: Sequence[float]) -> tuple[float, float]:
        reserve = 1 if len(grid) > 1 else 0  # for one more learning rate
        choice = cost.seconds(count_runs(candidates, len(grid) + reserve), members, number)
        return choice, cost.seconds(2 * MIN_PAIRS, members, number)

    grids = [tuple(rates)] + ([(sorted(rates)[len(rates) // 2],)] if len(rates) > 1 else [])
    for grid in grids:
        for number in [epochs] if epochs is not None else range(MAX_EPOCHS, 0, -1):
            choice, confirmation = times(number, grid)
            if choice <= CHOICE_SHARE * seconds and confirmation <= CONFIRMATION_SHARE * seconds:
                return Plan(number, grid, members)
    number = epochs or 1
    choice, confirmation = times(number, grids[-1])
    needed = max(choice / CHOICE_SHARE, confirmation / CONFIRMATION_SHARE)
    raise ValueError(
        f"{seconds / 60:.3g} minutes are too few to train {candidates} candidates for {number} epochs: give about "
        f"{math.ceil(needed / 60)} minutes, fewer candidates or epochs, or less data"
    )


def count_seeds(seconds: float, rounds_left: int, seconds_per_seed: float) -> int:
    """Return the number of seeds for a round, of the seconds that it and later rounds of the choice have.

    >>> count_seeds(60.0, 1, 10.0)
    3
    """
    return min(MAX_SEEDS, max(1, int(seconds / (1 + rounds_left) / seconds_per_seed)))
