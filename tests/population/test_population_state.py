"""Test that what a network remembers from call to call is that of each member, or is refused."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from hullo._compat import buffer_hooks
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


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_on_buffers_are_those_of_before(fails: bool) -> None:
    def compute(net: Any, x: Tensor) -> Tensor:
        net.h = net.h + 1
        if fails and type(x) is not Tensor:  # in the trace alone
            raise ValueError
        return net.lin(x)

    called = []
    hook = register_module_buffer_registration_hook(lambda module, name, buffer: called.append(name))
    before = dict(buffer_hooks)
    try:
        Population([Memory(compute)])(torch.randn(1, 5, 3, dtype=torch.float64))
    except LoweringError:
        assert fails
    assert dict(buffer_hooks) == before
    hook.remove()


def test_threads_that_trace_at_once_leave_the_hooks_on_buffers() -> None:
    before, x = dict(buffer_hooks), torch.randn(1, 5, 3, dtype=torch.float64)
    networks = [Memory(centered) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda network: Population([copy.deepcopy(network)])(x)[0], networks))
    torch.testing.assert_close(found, [network(x[0]) for network in networks])
    assert dict(buffer_hooks) == before


@pytest.mark.parametrize(
    ("assign", "said"),
    [
        (lambda net, y: setattr(net, "h", y.detach()), r"torch.float64 of shape \(5, 3\) to the buffer 'h', which is"),
        (lambda net, y: setattr(net, "h", y.detach().float().mean(0)), r"torch.float32 of shape \(3,\) to the buffer"),
        (lambda net, y: setattr(net, "h", y.mean(0)), r"a value with a gradient to the buffer 'h'; use detach"),
        (lambda net, y: setattr(net, "h", None), "assigns None to the buffer 'h'"),
    ],
)
def test_what_does_not_fit_into_a_buffer_is_refused(assign: Callable[..., None], said: str) -> None:
    def compute(net: Any, x: Tensor) -> Tensor:
        y: Tensor = net.lin(x)
        assign(net, y)
        return y

    with pytest.raises(LoweringError, match=said):
        Population([Memory(compute)])(torch.randn(1, 5, 3, dtype=torch.float64))


def test_a_buffer_of_two_modules_cannot_be_assigned() -> None:
    network: Any = nn.Sequential(Memory(centered), Memory(centered))
    network[1].h = network[0].h
    with pytest.raises(LoweringError, match=r"the buffer '0\.h', which other modules use, too; change it in place"):
        Population([network])(torch.randn(1, 5, 3, dtype=torch.float64))


def count_in_a_list(net: Any, y: Tensor) -> Tensor:
    net.state["calls"][0] += 1
    return y * net.state["calls"][0]


def keep_in_a_dictionary(net: Any, y: Tensor) -> Tensor:
    y = y + net.state["h"]
    net.state["h"] = y.detach().mean(0)
    return y


def keep_in_a_queue(net: Any, y: Tensor) -> Tensor:
    y = y + (sum(net.queue) / len(net.queue) if net.queue else 0)
    net.queue.append(y.detach().mean(0))
    return y


def keep_in_an_object(net: Any, y: Tensor) -> Tensor:
    y = y + net.object.h
    net.object.h = y.detach().mean(0)
    return y


def change_the_mode(net: Any, y: Tensor) -> Tensor:
    y = net.norm(y)
    net.norm.eval()
    return y


@pytest.mark.parametrize(
    "compute", [count_in_a_list, keep_in_a_dictionary, keep_in_a_queue, keep_in_an_object, change_the_mode]
)
def test_state_outside_of_buffers_is_refused(compute: Callable[..., Tensor]) -> None:
    network: Any = Memory(lambda net, x: compute(net, net.lin(x)))
    network.state = {"h": torch.zeros(3, dtype=torch.float64), "calls": [0]}
    network.queue = collections.deque([torch.zeros(3, dtype=torch.float64)], maxlen=4)
    network.object = SimpleNamespace(h=torch.zeros(3, dtype=torch.float64))
    network.norm = nn.BatchNorm1d(3).double()
    with pytest.raises(LoweringError, match="and its next call would compute something else"):
        Population([network])(torch.randn(1, 5, 3, dtype=torch.float64))


KEPT: dict[str, Any] = {}


@pytest.mark.parametrize("place", ["global", "closure", "object"])
def test_values_that_are_kept_outside_of_the_networks_are_refused(place: str) -> None:
    features: list[Tensor] = []
    holder: Any = SimpleNamespace(kept=[])

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if place == "closure":
            features.append(output)
        elif place == "object":
            holder.kept.append(output)
        else:
            KEPT["h"] = output

    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    network[0].register_forward_hook(keep)
    with pytest.raises(LoweringError, match=r"a value is kept outside of Sequential by .*keep \(.*; return it from"):
        Population([network])(torch.randn(1, 5, 3))
    KEPT.clear()


@pytest.mark.parametrize("seed", [torch.manual_seed, torch.random.manual_seed])
def test_seeds_that_forward_sets_are_refused(seed: Callable[[int], Any]) -> None:
    def compute(net: Any, x: Tensor) -> Tensor:
        (torch if seed is torch.manual_seed else torch.random).manual_seed(0)
        return net.lin(x) + torch.randn(3)

    with pytest.raises(LoweringError, match="forward seeds the random numbers of PyTorch"):
        Population([Memory(compute)])(torch.randn(1, 5, 3, dtype=torch.float64))


def test_members_may_have_equal_arrays_queues_and_dataclasses() -> None:
    def make(numbers: Any) -> Any:
        network: Any = Memory(lambda net, x: net.lin(x) * float(net.betas[1]))
        network.betas, network.queue = np.array(numbers), collections.deque([torch.ones(2)])
        return network

    x = torch.randn(2, 5, 3, dtype=torch.float64)
    networks = [make([1.0, 2.0]) for _ in range(2)]
    torch.testing.assert_close(Population(networks)(x)[1], networks[1](x[1]))
    for numbers in ([1.0, 3.0], [1.0, 2.0, 3.0], [1, 2]):
        with pytest.raises(ValueError, match="members 0 and 1 differ in the networks: betas is array"):
            Population([make([1.0, 2.0]), make(numbers)])


def test_sparse_tensors_are_refused_by_name() -> None:
    network = Memory(lambda net, x: torch.sparse.mm(x, net.lin.weight))
    with pytest.raises(LoweringError, match="forward uses sparse tensors"):
        Population([network])(torch.eye(3, dtype=torch.float64).to_sparse(), in_dims=None)
    network.register_buffer("adjacency", torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="adjacency of member 0 is sparse; register a dense tensor"):
        Population([network])


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


features: list[Tensor] = []


def test_a_global_variable_with_the_name_of_an_attribute_is_not_looked_at() -> None:
    network: Any = Memory(lambda net, x: net.features(x))
    network.features = network.lin
    hook = network.lin.register_forward_hook(lambda module, inputs, output: features.append(output))
    with pytest.raises(LoweringError, match="a value is kept outside"):
        Population([network])(torch.randn(1, 5, 3, dtype=torch.float64))
    hook.remove()
    assert Population([network])(torch.randn(1, 5, 3, dtype=torch.float64)).shape == (1, 5, 3)
    features.clear()


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
