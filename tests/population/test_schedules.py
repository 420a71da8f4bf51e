"""Schedules are those of torch.optim.lr_scheduler, for each member with its own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

from hullo.population import SGD, Population, schedules

RATE = 0.5
lengths = st.integers(2, 40)
fractions = st.floats(0.01, 0.99)


def rates(make: Callable[[Any], Any], updates: int) -> list[float]:
    """Return the learning rates of an optimizer of PyTorch in its first updates."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler, found = make(optimizer), []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def assert_follows(schedule: schedules.Schedule, make: Callable[[Any], Any], updates: int) -> None:
    factors = [RATE * float(schedule(torch.tensor(count, dtype=torch.float64))) for count in range(updates)]
    assert factors == pytest.approx(rates(make, updates), rel=1e-9, abs=1e-12)


@given(length=lengths, end=fractions)
def test_cosine_is_that_of_pytorch(length: int, end: float) -> None:
    assert_follows(
        schedules.cosine(length, end=end),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, length, end * RATE),
        length + 1,
    )


@given(length=st.integers(12, 60), pct=st.floats(0.1, 0.9), div=st.floats(1.5, 30), final=st.floats(1.5, 1e4))
def test_one_cycle_is_that_of_pytorch(length: int, pct: float, div: float, final: float) -> None:
    assert_follows(
        schedules.one_cycle(length, pct_start=pct, div_factor=div, final_div_factor=final),
        lambda optimizer: lr_scheduler.OneCycleLR(
            optimizer,
            RATE,
            total_steps=length,
            pct_start=pct,
            div_factor=div,
            final_div_factor=final,
            cycle_momentum=False,
        ),
        length - 1,
    )


@pytest.mark.parametrize(("pct", "peak"), [(0.0, 0), (0.1, 0), (1.0, 9)])
def test_one_cycle_may_only_rise_or_only_fall(pct: float, peak: int) -> None:
    schedule = schedules.one_cycle(10, pct_start=pct)
    factors = [float(schedule(torch.tensor(count))) for count in range(12)]
    assert factors[peak] == max(factors) == 1.0
    assert min(factors) > 0


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*")
@given(warm=lengths, start=fractions, length=lengths)
def test_warm_up_is_a_sequence_of_pytorch(warm: int, start: float, length: int) -> None:
    assert_follows(
        schedules.warm_up(warm, then=schedules.cosine(length), start=start),
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer,
            [
                lr_scheduler.LinearLR(optimizer, start, 1.0, warm),
                lr_scheduler.CosineAnnealingLR(optimizer, length),
            ],
            [warm],
        ),
        warm + length,
    )


def test_the_update_after_a_warm_up_is_the_first_of_the_next_schedule() -> None:
    schedule = schedules.warm_up(4, then=schedules.cosine(4, end=0.2))
    assert [float(schedule(torch.tensor(float(count)))) for count in (3, 4, 8)] == pytest.approx([0.75, 1.0, 0.2])


def test_members_have_their_own_lengths_and_keep_them_when_others_are_dropped() -> None:
    population = Population(lambda: nn.Linear(1, 1, bias=False), seeds=range(3))
    optimizer = SGD(population, lr=1.0, schedule=schedules.warm_up([2, 4, 8], then=schedules.cosine(8)))
    start = population.stacked.weight.detach().clone()  # type: ignore[union-attr, operator]
    for _ in range(2):
        population.stacked.weight.grad = torch.ones_like(start)  # type: ignore[union-attr, operator]
        optimizer.step()
    moved = (start - population.stacked.weight.detach()).flatten()  # type: ignore[union-attr, operator]
    torch.testing.assert_close(moved, torch.tensor([1 / 2, 1 / 4, 1 / 8]))
    population.keep([2, 1, 0])
    population.keep([0, 2])
    before = population.stacked.weight.detach().clone()  # type: ignore[union-attr, operator]
    population.stacked.weight.grad = torch.ones_like(before)  # type: ignore[union-attr]
    optimizer.step()
    moved = (before - population.stacked.weight.detach()).flatten()  # type: ignore[union-attr, operator]
    torch.testing.assert_close(moved, torch.tensor([2 / 8, 1.0]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: schedules.cosine(0),
        lambda: schedules.warm_up(5, schedules.cosine(8), start=-1.0),
        lambda: schedules.one_cycle([[1.0]]),  # type: ignore[list-item]
        lambda: schedules.one_cycle(10, pct_start=30),
    ],
)
def test_numbers_that_make_no_schedule_are_rejected(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="one for each member"):
        make()
