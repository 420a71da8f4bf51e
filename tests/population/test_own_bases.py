"""Members with unlike activations compute their own bases alone, with the derivatives that they have alone."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from hullo import AffineHull, ConicHull, add_base
from hullo.population import Population


def mixed(k: int) -> nn.Module:
    makers: list[Any] = [nn.Tanh, nn.SiLU, nn.GELU, lambda: AffineHull(["identity", "tanh", "sin"]), nn.PReLU]
    return nn.Sequential(nn.Linear(2, 4), makers[k % 5](), nn.Linear(4, 4), makers[(k + 1) % 5](), nn.Linear(4, 1))


def residuals(call: Any, x: Tensor) -> Tensor:
    """Return a function of a network's first and second derivatives."""
    x = x.clone().requires_grad_()
    y = call(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first[..., 1].sum(), x, create_graph=True)
    return (first[..., :1] + y * second[..., 1:]).square().sum((-1, -2))


def test_second_derivatives_and_their_gradients_are_those_of_lone_members() -> None:
    members = [mixed(k).double() for k in range(12)]
    alone, population = copy.deepcopy(members), Population(members)
    x = torch.randn(12, 7, 2, dtype=torch.float64)
    found = residuals(population, x)
    found.sum().backward()
    gradients = dict(population.stacked.named_parameters())
    for k, member in enumerate(alone):
        expected = residuals(member, x[k])
        expected.backward()
        torch.testing.assert_close(found[k], expected)
        for name in ("0.weight", "2.bias", "4.weight"):
            torch.testing.assert_close(gradients[name].grad[k], member.get_parameter(name).grad)


def test_a_base_is_computed_for_members_that_use_it() -> None:
    sizes: list[int] = []

    def wave(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x.sin()

    base = add_base("wave", wave, torch.cos)
    networks = [nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Sequential(nn.Linear(3, 4), AffineHull(["tanh", base]))]
    population = Population([copy.deepcopy(networks[k]) for k in (0, 1, 0, 0, 1)])
    x = torch.randn(5, 6, 3)
    population(x)
    sizes.clear()
    population(x)
    assert sizes == [2 * 6 * 4]


def test_calls_of_many_members_compute_what_each_computes_alone() -> None:
    acts: list[Any] = [
        nn.ReLU,
        nn.Tanh,
        lambda: nn.PReLU(5),
        lambda: ConicHull("relu", "relu3"),
        lambda: AffineHull("identity", "tanh", groups=2, channel_dim=-1),
        lambda: AffineHull("tanh", "relu", inner_scale=2.0),
        lambda: nn.Softmax(-1),
    ]
    members = [nn.Sequential(nn.Linear(4, 4), act()).double() for act in acts]
    population = Population(members)
    plan = population.activations._make_plan(fused=True)  # as kernels compute them
    assert [call.members for call in plan.calls[0]] == [[0, 1, 2, 5], [3], [4], [6]]
    population.activations._made = plan
    x = torch.randn(len(members), 3, 5, 4, dtype=torch.float64)
    x[0] *= 1e200  # the cube of which is infinite
    y = population(x)
    y.clamp(-10, 10).sum().backward()
    for k, member in enumerate(members):
        alone = member(x[k])
        alone.clamp(-10, 10).sum().backward()
        torch.testing.assert_close(y[k], alone)
        torch.testing.assert_close(population.stacked.get_parameter("0.bias").grad[k], member[0].bias.grad)
    torch.testing.assert_close(population.activations.slopes.grad[2], members[2][1].weight.grad)
