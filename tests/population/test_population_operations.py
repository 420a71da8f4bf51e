"""Test that operations on members are those on each network alone, also where PyTorch's rule for vmap is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from function_networks import Net, numbers
from torch import Tensor, nn

from hullo.population import Population
from hullo.population.rules import RULES, Context
from hullo.population.values import Value


def index_fill(net: Any, x: Tensor) -> Tensor:
    return x.index_fill(1, net.index, net.a.bias[0])


def index_fill_in_place(net: Any, x: Tensor) -> Tensor:
    return x.clone().index_fill_(1, net.index, net.a.bias[0])


def scatter_strided(net: Any, x: Tensor) -> Tensor:
    return torch.as_strided_scatter(net.a.weight * 1.0, x[0, :2].detach(), (2,), (4,), 2)


def scatter_strided_view(net: Any, x: Tensor) -> Tensor:
    return torch.as_strided_scatter((net.a.weight * 1.0)[1:], x[0, :2].detach(), (2,), (1,), 8)


def copy_strided(net: Any, x: Tensor) -> Tensor:
    return torch.as_strided_copy(net.a(x), (2, 3), (4, 1), 1)


def norm_with_computed_statistics(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = net.a(torch.ones_like(net.a.weight))  # (channels, features)
    return F.batch_norm(net.a(x), h.mean(-1), h.square().mean(-1))


def norm_with_new_statistics(net: Any, x: Tensor) -> Tensor:
    mean, variance = torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)
    return F.batch_norm(net.a(x), mean, variance, training=True)


def select_rows(net: Any, x: Tensor) -> Tensor:
    return torch.relu(net.a(x[x.sum(-1) > -100]))


@pytest.mark.parametrize(
    "compute",
    [
        index_fill,
        index_fill_in_place,
        scatter_strided,
        scatter_strided_view,
        copy_strided,
        norm_with_computed_statistics,
        norm_with_new_statistics,
        select_rows,
    ],
)
@pytest.mark.parametrize("dim", [0, 1, None])
def test_operations_are_those_of_each_network(compute: Callable[[Any, Tensor], Tensor], dim: int | None) -> None:
    networks = [Net(compute, lambda net: net.register_buffer("index", torch.tensor([0, 2]))) for _ in range(3)]
    x = numbers(6, 4) if dim is None else numbers(3, 6, 4)
    y = Population(networks)(x if dim is None else x.movedim(0, dim), in_dims=dim)
    expected = torch.stack([network(x if dim is None else x[k]) for k, network in enumerate(networks)])
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)


def norm_by_rows(net: Any, x: Tensor) -> Tensor:
    return F.batch_norm(net.a(x), net.rows[0], net.rows[1], training=net.training)


def norm_by_columns(net: Any, x: Tensor) -> Tensor:
    return F.batch_norm(net.a(x), net.rows.T[:, 0], net.rows.T[:, 1], training=net.training)


@pytest.mark.parametrize("compute", [norm_by_rows, norm_by_columns])
@pytest.mark.parametrize("different", [False, True])
def test_running_statistics_may_be_parts_of_buffers(compute: Callable[[Any, Tensor], Tensor], different: bool) -> None:
    def build(net: Any) -> None:
        net.register_buffer("rows", torch.ones(2, 4, dtype=torch.float64) + different * torch.rand(2, 4))

    networks = [Net(compute, build) for _ in range(2)]
    population = Population(networks)
    for x in (numbers(2, 5, 4) for _ in range(3)):
        torch.testing.assert_close(population(x), torch.stack([net(x[k]) for k, net in enumerate(networks)]))
    for k, network in enumerate(networks):
        torch.testing.assert_close(population[k].rows, network.rows)


def test_where_the_members_are_in_memory_needs_no_other_graph() -> None:
    calls: list[int] = []

    def compute(net: Any, x: Tensor) -> Tensor:
        calls.append(1)
        return net.a(x)

    population = Population([Net(compute) for _ in range(2)])
    for length in range(9, 12):
        population(numbers(2, length, 4)[:, -3:])
    traced = len(calls)
    population(numbers(3, 2, 4), in_dims=1)
    population(numbers(2, 3, 4))
    assert len(calls) == traced


@pytest.mark.parametrize("training", [True, False])
def test_batch_norms_of_one_image_have_the_gradients_of_each_member(training: bool) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)).double()

    population, x = Population(make, seeds=range(3)).train(training), torch.randn(3, 1, 3, 4, 7, dtype=torch.float64)
    members = list(population)
    population(x).sin().sum().backward()
    for k, member in enumerate(members):
        member(x[k]).sin().sum().backward()
        for name, parameter in member.named_parameters():
            torch.testing.assert_close(population.stacked.get_parameter(name).grad[k], parameter.grad)


def test_padded_images_have_the_size_of_their_padding() -> None:
    x = torch.randn(2, 2, 3, 5, 6)
    made: Value = RULES[torch.ops.aten.pad.default](Context(2, x, x), Value(x, 0), [1, 2, 3, 4])
    assert made.shape == made.tensor.shape[1:] == (2, 3, 12, 9)
