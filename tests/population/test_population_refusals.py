"""Refuse by name and line what a population cannot compute; list what is slow."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import plain_networks
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from trained_alone import ACTIVATIONS, inputs_of, make

from hullo.population import SGD, LoweringError, Population


def test_explain_lists_what_goes_through_vmap_with_its_line() -> None:
    class Sorting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sort(x, -1).values

    found = Population([Sorting(), Sorting()]).explain(torch.randn(2, 5))
    assert "aten.sort" in found
    assert "torch.sort(x, -1).values" in found
    mlp = Population(make(plain_networks.MLP, ACTIVATIONS))
    assert "vmap" not in mlp.explain(inputs_of(plain_networks.MLP, len(mlp))[0])


class Sign(torch.autograd.Function):
    """A sign with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def branch(network: nn.Module, x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def add_noise(network: nn.Module, x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def differentiate(network: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(network.linear(x).sum(), x)[0]  # type: ignore[operator]


def count(network: nn.Module, x: Tensor) -> Tensor:
    network.calls = getattr(network, "calls", 0) + 1
    return x * network.calls


def remember(network: nn.Module, x: Tensor) -> Tensor:
    network.state = x + getattr(network, "state", 0.0)
    return network.state


class Calling(nn.Module):
    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(5, 5), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (branch, ("values", "if x.sum() > 0")),
        (add_noise, ("random", "self.function(self, x)")),
        (lambda network, x: F.alpha_dropout(x, 0.5, training=True), ("random", "alpha_dropout")),
        (lambda network, x: F.rrelu(x, training=True), ("random", "rrelu")),
        (lambda network, x: x * random.random(), ("random", "Python")),
        (lambda network, x: x * float(np.random.rand()), ("random", "NumPy")),
        (lambda network, x: Sign.apply(x), ("Sign", "Sign.apply(x)")),
        (differentiate, ("differentiates", "torch.autograd.grad")),
        (lambda network, x: torch.func.vmap(torch.func.jacrev(network.linear))(x), ("torch.func", "jacrev")),
        (
            lambda network, x: checkpoint(network.linear, network.linear(x), use_reentrant=True),
            ("use_reentrant", "checkpoint("),
        ),
        (count, ("self.calls", "buffer")),
        (remember, ("self.state", "buffer")),
    ],
)
def test_what_cannot_be_lowered_is_refused_with_its_line(function: Any, words: tuple[str, str]) -> None:
    with pytest.raises(LoweringError) as caught:
        Population([Calling(function), Calling(function)])(torch.randn(2, 4, 5))
    assert all(word in str(caught.value) for word in words), caught.value


def test_random_operations_that_draw_nothing_are_computed() -> None:
    population = Population([nn.Sequential(nn.RReLU(), nn.AlphaDropout(0.5)) for _ in range(2)]).eval()
    x = torch.randn(2, 5)
    torch.testing.assert_close(population(x), F.rrelu(x))


def test_the_networks_own_exceptions_come_through() -> None:
    def fail(network: nn.Module, x: Tensor) -> Tensor:
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        Population([Calling(fail)])(torch.randn(1, 4, 5))
    with pytest.raises(RuntimeError, match="4x6 and 5x5"):
        Population([nn.Linear(5, 5)])(torch.randn(1, 4, 6))
    embedding = Population([nn.Embedding(3, 2) for _ in range(2)])
    for token in (3, -1):
        with pytest.raises(IndexError):
            embedding(torch.tensor([[0], [token]]))


def test_only_the_programs_used_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hullo.population.population.MOST_PROGRAMS", 2)
    population = Population([nn.Linear(3, 2)])
    read = []
    original = population._read_graph
    monkeypatch.setattr(population, "_read_graph", lambda *given: read.append(given[0][0]) or original(*given))
    for size in (1, 2, 1, 3, 1, 2):
        population(torch.randn(1, size, 3))
    assert [len(value.tensor[0]) for value in read] == [1, 2, 3, 2]


def test_inputs_of_another_number_of_members_are_refused() -> None:
    population = Population(plain_networks.MLP, seeds=range(3))
    with pytest.raises(ValueError, match=r"\(4, 6\).*in_dims=None"):
        population(torch.randn(4, 6))
    with pytest.raises(ValueError, match="in_dims"):
        population(torch.randn(3, 4, 6), in_dims=(0, None))


def test_bad_settings_of_optimizers_are_refused_with_what_was_given() -> None:
    population = Population(plain_networks.MLP, seeds=range(3))
    for options, word in (
        ({"lr": -1.0}, "-1"),
        ({"lr": [0.1, 0.2]}, "3 members"),
        ({"lr": 0.1, "momentum": 1.0}, "momentum"),
        ({"lr": 0.1, "nesterov": True}, "momentum"),
        ({"lr": 0.1, "groups": [{"params": [nn.Parameter(torch.ones(2))]}]}, "another"),
        ({"lr": 0.1, "groups": [{"params": [], "rate": 1}]}, "rate"),
    ):
        with pytest.raises(ValueError, match=word):
            SGD(population, **options)
    with pytest.raises(RuntimeError, match="backward"):
        SGD(population, lr=0.1).step()
    other = SGD(Population(plain_networks.MLP, seeds=range(2)), lr=0.1)
    with pytest.raises(ValueError, match="another population"):
        SGD(population, lr=0.1).load_state_dict(other.state_dict())
