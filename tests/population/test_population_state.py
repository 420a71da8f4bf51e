"""Test that what a network remembers from call to call is that of each member, or is refused."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hullo.population import LoweringError, Population


class Memory(nn.Module):
    """Call a function that reads and assigns the buffer `h`."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("none", None)
        self.register_buffer("h", torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))
        self.double()
        self.compute = compute

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def centered(net: Any, x: Tensor) -> Tensor:
    net.h = 0.9 * net.h + 0.1 * net.lin(x).detach().mean(0)
    return net.lin(x) - net.h


def normalized(net: Any, x: Tensor) -> Tensor:
    y = net.lin(x)
    net.h = net.h + y.detach().mean(0)
    net.h /= net.h.norm()
    return y * net.h


def recurrent(net: Any, x: Tensor) -> Tensor:
    y = torch.tanh(net.lin(x) + net.lin(net.h))
    net.h = y.detach().mean(0)
    return y


def with_previous(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    previous, view = net.h, net.h[1:]
    net.h = net.lin(x).detach().mean(0)
    return previous, net.lin(x)[:, 1:] + view


def by_dictionary(net: Any, x: Tensor) -> Tensor:
    y = net.lin(x) + net.h
    net._buffers["h"] = y.detach().mean(0)
    return y


def counted(net: Any, x: Tensor) -> Tensor:
    net.h = net.h + x.detach().mean(0)
    net.calls += 1
    return net.lin(x) * net.calls + net.h


@pytest.mark.parametrize("compute", [centered, normalized, recurrent, with_previous, by_dictionary, counted])
@pytest.mark.parametrize("inside", [False, True])
def test_buffers_that_forward_assigns_are_those_of_each_member(compute: Callable[..., Any], inside: bool) -> None:
    torch.manual_seed(0)
    networks: list[Any] = [nn.Sequential(Memory(compute)) if inside else Memory(compute) for _ in range(2)]
    population = Population(copy.deepcopy(networks))
    for _ in range(3):
        x = torch.randn(2, 5, 3, dtype=torch.float64)
        y, expected = population(x), [network(x[k]) for k, network in enumerate(networks)]
        if compute is with_previous:
            torch.testing.assert_close(y[0], torch.stack([pair[0] for pair in expected]))
            y, expected = y[1], [pair[1] for pair in expected]
        torch.testing.assert_close(y, torch.stack(expected), rtol=1e-10, atol=1e-10)
        population.zero_grad()
        y.square().sum().backward()
        for k, network in enumerate(networks):
            network.zero_grad()
            expected[k].square().sum().backward()
            member = population[k]
            torch.testing.assert_close(dict(member.named_buffers()), dict(network.named_buffers()))
            name = "0.lin.weight" if inside else "lin.weight"
            gradient = population.stacked.get_parameter(name).grad[k]
            torch.testing.assert_close(gradient, network.get_parameter(name).grad, rtol=1e-10, atol=1e-10)


def growing(net: Any, x: Tensor) -> Tensor:
    net.h = torch.cat([net.h, x[0]])
    return net.lin(x)


def registering(net: Any, x: Tensor) -> Tensor:
    net.register_buffer("new", x.mean(0))
    return net.lin(x)


@pytest.mark.parametrize("compute", [growing, registering])
def test_buffers_that_members_do_not_have_are_refused(compute: Callable[..., Tensor]) -> None:
    with pytest.raises(LoweringError, match=r"registers '(h|new)'"):
        Population([Memory(compute)])(torch.randn(1, 5, 3, dtype=torch.float64))


def test_a_parent_may_assign_the_buffer_of_a_child() -> None:
    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            self.norm.running_mean = self.norm.running_mean * 0.5
            return self.norm(x)

    networks = [Parent(), Parent()]
    population = Population(copy.deepcopy(networks))
    for _ in range(3):
        x = torch.randn(2, 5, 3) + 3
        population(x)
        for k, network in enumerate(networks):
            network(x[k])
            torch.testing.assert_close(population[k].state_dict(), network.state_dict())


def test_members_may_have_arrays_and_queues() -> None:
    def make(numbers: Any) -> Any:
        network: Any = Memory(lambda net, x: net.lin(x) * float(net.betas[1]))
        network.betas, network.queue = np.array(numbers), collections.deque([torch.ones(2)])
        return network

    x = torch.randn(2, 5, 3, dtype=torch.float64)
    for numbers in ([1.0, 2.0], [1.0, 3.0], [1.0, 2.0, 3.0], [1, 2]):  # which differ in a factor at most
        networks = [make([1.0, 2.0]), make(numbers)]
        torch.testing.assert_close(Population(networks)(x)[1], networks[1](x[1]))


def test_sparse_tensors_are_refused_by_name() -> None:
    network = Memory(lambda net, x: torch.sparse.mm(x, net.lin.weight))
    with pytest.raises(LoweringError, match="sparse tensors"):
        Population([network])(torch.eye(3, dtype=torch.float64).to_sparse(), in_dims=None)


def by_names(net: Any, x: Tensor) -> Tensor:
    for name, buffer in list(net.named_buffers()):
        setattr(net, name, 0.9 * buffer + 1)
    return net.lin(x) + net.h + net.state_dict()["h"]


def by_other_names(net: Any, x: Tensor) -> Tensor:
    net.h = net.h + 1
    net.register_buffer("calls", net._buffers["calls"] + 2)
    return net.lin(x) + sum(buffer.sum() for buffer in net.buffers()) + net.get_buffer("h")


def in_a_hook(net: Any, x: Tensor) -> Tensor:
    return net.lin(x) - net.h


@pytest.mark.parametrize("compute", [by_names, by_other_names, in_a_hook])
def test_assigned_buffers_are_found_by_every_name(compute: Callable[..., Tensor]) -> None:
    networks = [Memory(compute) for _ in range(2)]
    if compute is in_a_hook:
        for network in networks:
            network.register_forward_pre_hook(lambda net, inputs: setattr(net, "h", net.h + inputs[0].mean(0)))
    population, x = Population(copy.deepcopy(networks)), torch.randn(2, 5, 3, dtype=torch.float64)
    for _ in range(3):
        torch.testing.assert_close(population(x), torch.stack([net(x[k]) for k, net in enumerate(networks)]))
        for k, network in enumerate(networks):
            torch.testing.assert_close(population[k].state_dict(), network.state_dict())


def test_the_random_state_may_be_kept() -> None:
    def compute(net: Any, x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            return net.lin(x)

    network, x = Memory(compute), torch.randn(1, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(Population([network])(x)[0], network(x[0]))


class Settings:
    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.dtype, self.scale = "float64", 2.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and vars(self) == vars(other)


def test_equal_objects_of_a_class_with_its_own_equality_are_equal() -> None:
    networks: list[Any] = [Memory(lambda net, x: net.lin(x) * net.settings.scale) for _ in range(2)]
    for network in networks:
        network.settings = Settings()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(Population(networks)(x)[1], networks[1](x[1]))
