"""Test that random bits depend only on seed, purpose and step, and look random along each of these."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hullo.population.rng import draw_short, dropout_mask, open_streams

words = st.integers(-(2**63), 2**63 - 1)


def drawn(seeds: torch.Tensor, steps: torch.Tensor, purpose: int, shape: tuple[int, ...]) -> torch.Tensor:
    return draw_short(open_streams(seeds, purpose, steps), shape)


def stream(seed: int, step: int = 0, purpose: int = 0, count: int = 2**16) -> torch.Tensor:
    return drawn(torch.tensor([seed]), torch.tensor([step]), purpose, (count,))[0]


@given(st.lists(st.tuples(words, words), min_size=1, max_size=5), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_member_draws_the_same_bits_alone_and_in_a_population(members: list[tuple[int, int]], shape: list[int]) -> None:
    seeds, steps = (torch.tensor(numbers) for numbers in zip(*members, strict=True))
    together = drawn(seeds, steps, 3, tuple(shape))
    assert together.shape == (len(members), *shape)
    for k in range(len(members)):
        assert torch.equal(together[k], drawn(seeds[k : k + 1], steps[k : k + 1], 3, tuple(shape))[0])


def test_all_values_are_equally_likely() -> None:
    counts = torch.bincount(stream(1, count=2**20).long() + 2**15, minlength=2**16).double()
    chi_square = ((counts - 16).square() / 16).sum()
    assert abs(chi_square - 2**16) < 5 * (2 * 2**16) ** 0.5


@pytest.mark.parametrize("other", [{"seed": 1}, {"seed": 2**40}, {"step": 1}, {"purpose": 1}, {"seed": -1}])
def test_streams_of_different_keys_are_independent(other: dict[str, int]) -> None:
    first, second = stream(seed=0).double(), stream(**{"seed": 0, **other}).double()
    for shift in (0, 1, 2, 3, 4):  # four neighbors come from one hash
        correlation = torch.corrcoef(torch.stack([first, second.roll(shift)]))[0, 1]
        assert abs(correlation) < 5 * 2**-8


def test_neighbors_in_a_stream_are_independent() -> None:
    numbers = stream(5).double()
    for shift in range(1, 9):
        assert abs(torch.corrcoef(torch.stack([numbers, numbers.roll(shift)]))[0, 1]) < 5 * 2**-8


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.25, 0.5, 0.9])
def test_dropout_keeps_the_expected_fraction(rate: float) -> None:
    kept = dropout_mask(torch.arange(4), torch.zeros(4, dtype=torch.int64), 1, (2**16,), rate=rate).double()
    assert (kept.mean(1) - (1 - rate)).abs().max() <= 5 * (rate * (1 - rate)) ** 0.5 / 2**8
