"""Recurrent layers of a population compute what nn.LSTM, nn.GRU and nn.RNN do, and so do their gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hullo.population import Population, kernels

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
}


@pytest.fixture(scope="module", params=[torch.float32, torch.float64])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """Compute all members at once by kernels, in float32, or one after the other, in float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "support", lambda x: x.dtype == torch.float32)
        yield request.param


class Layers(nn.Module):
    """Return the outputs and the final states, from the beginning that is given or from zeros."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        begin: Any = states if len(states) > 1 else states[0] if states else None
        y, last = self.rnn(x, begin)
        return (y, *last) if isinstance(last, tuple) else (y, last)


def check(members: list[nn.Module], inputs: list[Tensor]) -> None:
    """Compare outputs and gradients of a population with those of its members alone."""
    alone, tolerance = copy.deepcopy(members), 1e-10 if inputs[0].dtype == torch.float64 else 1e-4
    population = Population(members)
    own = [[item[k].clone().requires_grad_() for item in inputs] for k in range(len(members))]
    together = [item.clone().requires_grad_() for item in inputs]
    expected = [member(*items) for member, items in zip(alone, own, strict=True)]
    found = population(*together)
    weights = [torch.randn_like(item) for item in found]
    sum((weight * item).sum() for weight, item in zip(weights, found, strict=True)).backward()
    for k, (outputs, member) in enumerate(zip(expected, alone, strict=True)):
        sum((weight[k] * item).sum() for weight, item in zip(weights, outputs, strict=True)).backward()
        close = {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(tuple(item[k] for item in found), outputs, **close)
        torch.testing.assert_close([item.grad[k] for item in together], [item.grad for item in own[k]], **close)
        gradients = {name: parameter.grad for name, parameter in member.named_parameters()}
        stacked = dict(population.stacked.named_parameters())
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                stacked[name].grad[k], gradient, **close, msg=lambda text, n=name: f"{n}: {text}"
            )


def compare(dtype: torch.dtype, kind: str, layers: int, time: int, begins: bool, **options: bool) -> None:
    """Compare layers with lone members, from zeros or from the beginning that is given."""
    members = [Layers(KINDS[kind](3, 5, layers, **options)).to(dtype) for _ in range(3)]
    x = torch.randn(3, *((2, time) if options["batch_first"] else (time, 2)), 3, dtype=dtype)
    begin = torch.randn(3, layers * (1 + options["bidirectional"]), 2, 5, dtype=dtype)
    check(members, [x, *([begin, begin.cos()][: 2 if kind == "lstm" else 1] if begins else [])])


@given(
    st.sampled_from(list(KINDS)),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)
def test_outputs_states_and_gradients_are_those_of_lone_members(
    kind: str, layers: int, bidirectional: bool, batch_first: bool, bias: bool, begins: bool, time: int
) -> None:
    options = {"bidirectional": bidirectional, "batch_first": batch_first, "bias": bias}
    compare(torch.float64, kind, layers, time, begins, **options)


@pytest.mark.parametrize(("batch_first", "bias", "begins"), [(True, True, False), (False, False, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_compute_two_layers_in_two_directions(
    monkeypatch: pytest.MonkeyPatch, kind: str, batch_first: bool, bias: bool, begins: bool
) -> None:
    monkeypatch.setattr(kernels, "support", lambda x: True)
    options = {"bidirectional": True, "batch_first": batch_first, "bias": bias}
    compare(torch.float32, kind, 2, 2, begins, **options)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_an_lstm_may_project_its_state(bidirectional: bool, bias: bool) -> None:
    options = {"proj_size": 2, "bidirectional": bidirectional, "bias": bias}
    members = [Layers(nn.LSTM(3, 5, 2, **options)).double() for _ in range(2)]
    check(members, [torch.randn(2, 4, 3, 3, dtype=torch.float64)])


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_without_a_batch(dtype: torch.dtype, kind: str) -> None:
    members = [Layers(KINDS[kind](3, 5)).to(dtype) for _ in range(2)]
    check(members, [torch.randn(2, 6, 3, dtype=dtype)])


@pytest.mark.parametrize("kind", KINDS)
def test_members_share_an_input_that_all_are_given(dtype: torch.dtype, kind: str) -> None:
    members = [Layers(KINDS[kind](3, 5, 2)).to(dtype) for _ in range(2)]
    x = torch.randn(4, 2, 3, dtype=dtype)
    found = Population(members)(x, in_dims=None)
    for k, member in enumerate(members):
        torch.testing.assert_close(tuple(item[k] for item in found), member(x))


def test_kernels_refuse_second_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "support", lambda x: True)
    x = torch.randn(2, 3, 2, 2, requires_grad=True)
    y, *_ = Population(lambda: Layers(nn.LSTM(2, 3)), seeds=range(2))(x)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_are_those_of_a_lone_member(kind: str) -> None:
    member = Layers(KINDS[kind](2, 3, bidirectional=True)).double()
    population = Population([copy.deepcopy(member), member])

    def penalty(call: Any, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(call(x)[0].square().sum(), x, create_graph=True)
        return slope.square().sum()

    x = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    penalty(population, x).backward()
    penalty(member, x[1]).backward()
    stacked = dict(population.stacked.named_parameters())
    for name, parameter in member.named_parameters():
        torch.testing.assert_close(stacked[name].grad[1], parameter.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_derivatives_are_those_of_a_lone_member(kind: str) -> None:
    members = [Layers(KINDS[kind](2, 3)).double() for _ in range(2)]
    population = Population(members).eval()
    x, direction = torch.randn(2, 2, 3, 2, 2, dtype=torch.float64).unbind()
    population(x)
    found = torch.func.jvp(lambda x: population(x)[0], (x,), (direction,))
    assert torch.autograd.gradcheck(lambda x: population(x)[0], (x.requires_grad_(),))
    expected = torch.autograd.functional.jvp(lambda x: population(x)[0], x, direction)
    torch.testing.assert_close(found, expected)
