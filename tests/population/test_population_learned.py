"""Test that a population ties, loads, converts and differentiates learned activations as a network does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hullo
from hullo.population import SGD, Population


def hull() -> nn.Module:
    return hullo.AffineHull("identity", "relu")


def tied(kind: Callable[[], nn.Module], name: str) -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 6), kind(), nn.Linear(6, 6), kind()).double()
    setattr(network[3], name, getattr(network[1], name))
    return network


@pytest.mark.parametrize(
    ("kind", "name"), [(nn.PReLU, "weight"), (hull, "raw"), (lambda: hullo.ConvexHull("relu", "tanh"), "raw")]
)
def test_tied_activations_train_as_they_do_alone(kind: Callable[[], nn.Module], name: str) -> None:
    networks = [tied(kind, name) for _ in range(2)]
    population = Population(networks)
    optimizer = SGD(population, 0.1)
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in networks]
    for _ in range(5):
        x = torch.randn(4, 6).double()
        optimizer.zero_grad()
        population(x, in_dims=None).square().flatten(1).mean(1).sum().backward()
        optimizer.step()
        for network, own in zip(networks, optimizers, strict=True):
            own.zero_grad()
            network(x).square().mean().backward()
            own.step()
    for network, member in zip(networks, population, strict=True):
        for ours, theirs in zip(member.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        assert getattr(member[1], name) is getattr(member[3], name)  # type: ignore[index]


@pytest.mark.parametrize(
    "act", [nn.PReLU, hull, lambda: hullo.ConvexHull("relu", "tanh", parametrization="softmax"), nn.Tanh]
)
def test_second_derivatives_by_parameters_are_those_of_a_member(act: Callable[[], nn.Module]) -> None:
    network, x = nn.Sequential(nn.Linear(3, 4), act(), nn.Linear(4, 1)).double(), torch.randn(5, 3).double()
    population = Population([copy.deepcopy(network)])

    def second(weights: list[Tensor], y: Tensor) -> list[Tensor]:
        gradients = torch.autograd.grad(y.square().sum(), weights, create_graph=True)
        return [g.flatten() for g in torch.autograd.grad(sum(g.square().sum() for g in gradients), weights)]

    stacked = [population.stacked.get_parameter(name) for name in ("0.weight", "2.weight")]
    own = [network[0].weight, network[2].weight]
    if isinstance(population.activations.raw, nn.Parameter):
        stacked.append(population.activations.raw)
        own += list(network[1].parameters())
    for ours, theirs in zip(second(stacked, population(x, in_dims=None)), second(own, network(x)), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(ours[: len(theirs)], theirs)


def convex(**options: Any) -> Callable[[], nn.Module]:
    return lambda: hullo.ConvexHull("identity", "relu", **options)


def leaky(slope: float) -> Callable[[], nn.Module]:
    return lambda: nn.LeakyReLU(slope)


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


def test_frozen_coefficients_that_are_loaded_are_used_and_stay_where_they_are() -> None:
    """A captured step reads them at their address."""
    hulls = [hullo.AffineHull("relu", "tanh", init=init).requires_grad_(False) for init in ([0.0, 1.0], [1.0, 0.0])]
    one, other = (Population([nn.Sequential(hull)]) for hull in hulls)
    x = torch.randn(1, 5)
    before = one(x).clone()
    (rows,) = one.activations.rows()[0]
    one.load_state_dict(other.state_dict())
    torch.testing.assert_close(one(x), other(x))
    assert not one(x).equal(before)
    assert one.activations.rows()[0][0] is rows


@pytest.mark.parametrize(
    ("others", "members"),
    [
        ([convex(parametrization="softmax"), nn.PReLU, leaky(0.2)], "[0]"),
        ([nn.PReLU, convex(), leaky(0.2)], "[0, 1]"),
        ([convex(), nn.PReLU, nn.ReLU], "[2]"),
        ([convex(), nn.PReLU, leaky(0.3)], "[2]"),
        ([lambda: convex()().requires_grad_(False), nn.PReLU, leaky(0.2)], "[0]"),
        ([lambda: hullo.ConvexHull("tanh", "relu"), nn.PReLU, leaky(0.2)], "[0]"),
    ],
)
def test_state_of_other_activations_is_refused(others: Sequence[Callable[[], nn.Module]], members: str) -> None:
    def make(acts: Sequence[Callable[[], nn.Module]]) -> Population:
        return Population([nn.Sequential(nn.Linear(6, 6), act()) for act in acts])

    state = make([convex(init=[0.9, 0.1]), nn.PReLU, leaky(0.2)]).state_dict()
    same = make([convex(), nn.PReLU, leaky(0.2)])
    same.load_state_dict(state)
    assert same[0][1].coefficients.tolist() == pytest.approx([0.9, 0.1])  # type: ignore[index]
    population = make(others)
    before = copy.deepcopy(population.state_dict())
    averaged = torch.optim.swa_utils.AveragedModel(same, use_buffers=True)
    for _ in range(3):
        averaged.update_parameters(same)
    same.load_state_dict(averaged.module.state_dict())
    with pytest.raises(RuntimeError, match=rf"other activations in members {members}".replace("[", r"\[")):
        population.load_state_dict(state)
    own = {name: tensor for name, tensor in population.state_dict().items() if name.startswith("activations.")}
    assert all(tensor.equal(before[name]) for name, tensor in own.items())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.ReLU, nn.Tanh),
        (lambda: nn.PReLU(6), convex(groups=6)),
        (convex(groups=6), convex(groups=6, channel_dim=-1)),
        (nn.Tanh, Sine),
    ],
)
def test_state_of_members_in_another_order_is_refused(one: Any, other: Any) -> None:
    made = [
        Population([nn.Sequential(nn.Linear(6, 6), act()) for act in acts]) for acts in ((one, other), (other, one))
    ]
    made[0].load_state_dict(made[0].state_dict())
    with pytest.raises(RuntimeError, match=r"other activations in members \[0, 1\]"):
        made[1].load_state_dict(made[0].state_dict())


def test_optimizers_of_pytorch_move_hulls_as_they_do_alone() -> None:
    network = nn.Sequential(hullo.ConvexHull("relu", "tanh"), nn.Linear(1, 1, bias=False).requires_grad_(False))
    nn.init.ones_(network[1].weight)
    population, z = Population([copy.deepcopy(network)]), torch.linspace(-2, 2, 64)[:, None]
    for given in (population, copy.deepcopy(population)):
        alone = copy.deepcopy(network)
        pairs = [(model, torch.optim.SGD(model.parameters(), lr=0.2)) for model in (alone, given)]
        for step in range(50):
            target = 3 * (z.tanh() if step < 40 else z.relu())
            for model, optimizer in pairs:
                optimizer.zero_grad()
                y = model(z) if model is alone else model(z, in_dims=None)[0]
                (target - y).square().mean().backward()
                optimizer.step()
        assert alone[0].coefficients.tolist() == [1.0, 0.0]
        torch.testing.assert_close(given[0][0].coefficients, alone[0].coefficients)  # type: ignore[index]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_members_with_prelu_run_in_the_precision_of_the_networks(dtype: torch.dtype) -> None:
    x = torch.randn(4, 6).to(dtype)
    for make in (lambda: nn.Sequential(nn.Linear(6, 6), nn.PReLU(6)), nn.PReLU):
        population = Population([make().to(dtype), make().to(dtype)])
        assert population(x, in_dims=None).dtype == population[0](x).dtype == dtype
        assert {parameter.dtype for parameter in population[1].parameters()} == {dtype}
    converted = Population(
        [nn.Sequential(nn.Linear(6, 6), nn.PReLU().requires_grad_(learns)) for learns in (True, False)]
    )
    converted.to(dtype).keep([1, 0])
    assert [member(x).dtype for member in converted] == [dtype, dtype]
    mixed = Population([nn.Sequential(nn.Linear(6, 6).to(dtype), nn.Identity(), nn.PReLU())])
    assert mixed[0][2].weight.dtype == torch.float32  # type: ignore[index]
