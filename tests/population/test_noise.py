"""Random numbers of members have the distributions that PyTorch's have, and the same values alone and beside others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo.population import LoweringError, Population, capture
from hullo.population.rng import draw_uniform, open_streams

COUNT = 20_000


class Drawing(nn.Module):
    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(x)


def uniform_between(low: float, high: float) -> Callable[[Tensor], Tensor]:
    return lambda x: (x - low) / (high - low)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (torch.rand_like, uniform_between(0, 1)),
        (lambda x: torch.rand(x.shape, dtype=x.dtype), uniform_between(0, 1)),
        (lambda x: torch.empty_like(x).uniform_(-2, 3), uniform_between(-2, 3)),
        (torch.randn_like, torch.special.ndtr),
        (lambda x: torch.randn(x.shape, dtype=x.dtype, generator=None), torch.special.ndtr),
        (lambda x: x.clone().normal_(1, 2), lambda x: torch.special.ndtr((x - 1) / 2)),
        (lambda x: x.clone().exponential_(3), lambda x: -torch.expm1(-3 * x)),
    ],
)
def test_random_numbers_have_their_distribution(draw: Any, distribution: Any, dtype: torch.dtype) -> None:
    y = Population([Drawing(draw), Drawing(draw)])(torch.zeros(COUNT, dtype=dtype), in_dims=None)
    assert y.dtype == dtype
    assert y.isfinite().all()
    expected = torch.arange(COUNT) / COUNT
    for own in y:  # the statistic of Kolmogorov and Smirnov: above 1.95 once in a thousand times
        found = distribution(own.double()).sort().values
        assert (found - expected).abs().max() * math.sqrt(COUNT) < 1.95
        assert found[0] < 1e-3  # the tails, which that statistic hardly sees
        assert found[-1] > 1 - 1e-3
    assert (y[0] * y[1]).mean().sub(y[0].mean() * y[1].mean()).abs() < 4 * y[0].std() * y[1].std() / math.sqrt(COUNT)


def test_random_operations_of_one_network_are_independent() -> None:
    def draw(x: Tensor) -> Tensor:
        return torch.stack([torch.rand_like(x), torch.rand_like(x), x.clone().bernoulli_(0.5), F.dropout(x + 1) / 2])

    y = Population([Drawing(draw)])(torch.zeros(COUNT), in_dims=None)[0]
    correlations = torch.corrcoef(y) - torch.eye(4)
    assert correlations.abs().max() < 4 / math.sqrt(COUNT)


def test_random_choices_have_their_probability() -> None:
    probabilities = torch.linspace(0, 1, COUNT)
    draws = [lambda x: x.clone().bernoulli_(0.3), torch.bernoulli]
    population = Population([Drawing(lambda x: torch.stack([draw(x) for draw in draws]))])
    fixed, own = population(probabilities, in_dims=None)[0]
    assert fixed.unique().tolist() == own.unique().tolist() == [0, 1]
    assert abs(fixed.mean() - 0.3) < 4 * math.sqrt(0.21 / COUNT)
    assert abs((own - probabilities).mean()) < 4 * math.sqrt(1 / 6 / COUNT)
    assert abs((own * probabilities).mean() - 1 / 3) < 4 * math.sqrt(1 / 6 / COUNT)
    rare = Population([Drawing(lambda x: x.new_empty(2_000_000).bernoulli_(5e-6))])(probabilities, in_dims=None)
    assert 0 < rare.sum() < 10 + 4 * math.sqrt(10)  # 10 are expected


def test_complex_random_numbers_are_refused() -> None:
    with pytest.raises(LoweringError, match=r"complex64.*real"):
        Population([Drawing(lambda x: torch.rand(3, dtype=torch.complex64))])(torch.zeros(3), in_dims=None)


@pytest.mark.parametrize(
    "draw",
    [
        torch.rand_like,
        torch.randn_like,
        lambda x: x.clone().exponential_(3),
        lambda x: torch.bernoulli(x, 0.5),
        F.dropout,
        F.dropout1d,
    ],
)
def test_a_part_of_a_batch_draws_the_numbers_of_that_part(draw: Callable[..., Tensor]) -> None:
    whole, part = (Population([Drawing(draw), Drawing(draw)]) for _ in range(2))
    part.first_sample, x = 2, torch.randn(2, 6, 3, 4)
    assert part(x[:, 2:5]).equal(whole(x)[:, 2:5])


def test_evaluation_leaves_the_random_numbers_of_training_as_they_are() -> None:
    x, numbers = torch.ones(2, 20, 8), []
    for evaluates in (False, True):
        population = Population([nn.Dropout(0.5), nn.Dropout(0.5)])
        for _ in range(2):
            y = population(x)
            if evaluates:
                assert population.eval()(x).equal(x)
                population.train()
        numbers.append(y)
    assert numbers[0].equal(numbers[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_uniform_numbers_use_every_digit_and_neither_bound(dtype: torch.dtype) -> None:
    keys = open_streams(torch.tensor([3]), 4, 5)
    numbers = draw_uniform(keys, (COUNT, 2), dtype)[0]
    odd = numbers.double() / torch.finfo(dtype).eps * 2
    assert 0 < numbers.min() < 0.01
    assert 0.99 < numbers.max() < 1
    assert odd.eq(odd.round()).all()
    assert odd.remainder(2).eq(1).all()
    assert draw_uniform(keys, (COUNT - 7, 2), dtype, first=7)[0].equal(numbers[7:])


class Recurrent(nn.Module):
    """Return the final states of all layers, (layers * directions, features), and the outputs."""

    def __init__(self, kind: Any, rate: float, layers: int = 3) -> None:
        super().__init__()
        self.rnn = kind(4, 5, layers, dropout=rate, bidirectional=kind is nn.LSTM, batch_first=kind is nn.GRU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, states = self.rnn(x)
        return (torch.cat(states, -1) if isinstance(states, tuple) else states), y


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_recurrent_layers(kind: Any) -> None:
    x = torch.randn(6, 7, 4, dtype=torch.float64)
    members = [Recurrent(kind, rate).double() for rate in (0.2, 0.6, 1.0)]
    together, alone = Population(members)(x, in_dims=None), Population([members[1]], seeds=[1])(x, in_dims=None)
    torch.testing.assert_close([item[1] for item in together], [item[0] for item in alone])
    first = Recurrent(kind, 0.0, 1).double()
    first.load_state_dict({name: tensor for name, tensor in members[2].state_dict().items() if "_l0" in name})
    states = together[0][2].chunk(3)
    torch.testing.assert_close(states[0], first(x)[0])
    others = Population([members[2]])(torch.randn_like(x), in_dims=None)[0][0].chunk(3)
    assert states[1].equal(others[1])  # with a rate of one, the second layer sees zeros
    assert not states[0].equal(others[0])
    found = Population(members).eval()(x, in_dims=None)
    for k, member in enumerate(members):
        torch.testing.assert_close(tuple(item[k] for item in found), member.eval()(x))


def test_recurrent_layers_have_masks_of_their_own() -> None:
    network = nn.RNN(50, 50, 3, "relu", bias=False, batch_first=True, dropout=0.5)
    for name, parameter in network.named_parameters():
        nn.init.constant_(parameter, 0.0) if "hh" in name else nn.init.eye_(parameter)
    y = Population([network])(torch.ones(40, 5, 50), in_dims=None)[0]
    assert y.unique().tolist() == [0, 4]  # every layer repeats its input, which is zero or doubled after each
    assert abs((y > 0).double().mean() - 1 / 4) < 4 * math.sqrt(3 / 16 / y.numel())


@pytest.mark.gpu
def test_a_captured_step_on_a_gpu_draws_the_numbers_of_a_cpu() -> None:
    def draw(x: Tensor) -> Tensor:
        noise = torch.rand_like(x) + torch.randn_like(x) + torch.empty_like(x).exponential_()
        kept = x.new_empty(9, 1).bernoulli_(0.6)
        return F.dropout(F.relu(x) + noise, 0.3) * kept

    x = torch.randn(9, 5)
    on_cpu, on_gpu = (Population([Drawing(draw) for _ in range(3)]).to(device) for device in ("cpu", "cuda"))
    step = capture(lambda x: on_gpu(x, in_dims=None), on_gpu)
    for _ in range(3):
        torch.testing.assert_close(step(x.cuda()).cpu(), on_cpu(x, in_dims=None))
