"""Test that differences between members are computed per member or refused, and that states load in place."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hullo
from hullo.population import SGD, AdamW, Population
from hullo.population.trace.export import LoweringError


class Head(nn.Module):
    """Apply a function to a linear layer and the input."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Any], number: float = 1.0) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(3, 3).double(), function
        self.register_buffer("number", torch.tensor(number))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def fill(network: Any, x: Tensor) -> Tensor:
    """Write into tensors that the network makes, also by way of another."""
    rows, columns = x.new_zeros(len(x), 2, 3), torch.empty_like(x)
    h = network.linear(x)
    for t in range(2):
        h = network.linear(h).tanh()
        rows[:, t] = h
    columns[:, 0] = rows[:, 1, 0]
    columns[:, 1:] = 1.0
    return rows.sum(1) + columns


def fill_without_gradients(network: Any, x: Tensor) -> Tensor:
    rows = torch.zeros(2, 3).double()
    with torch.no_grad():
        rows[0] = network.linear(x).mean(0)
    return rows + network.linear(x).mean()


FUNCTIONS = {
    "sum of all": lambda network, x: network.linear(x) / network.linear(x).abs().sum(dim=None, keepdim=True),
    "largest of all": lambda network, x: network.linear(x) - network.linear(x).amax(),
    "largest of all, kept": lambda network, x: network.linear(x) - network.linear(x).amax(dim=(), keepdim=True),
    "attention to one": lambda network, x: F.scaled_dot_product_attention(
        network.linear(x)[:, None, None], network.linear(x)[:1, None, None], x[:1, None, None]
    ),
    "filled": fill,
    "filled without gradients": fill_without_gradients,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("is_shared", [False, True])
def test_members_equal_networks_alone(name: str, is_shared: bool) -> None:
    networks = [Head(FUNCTIONS[name]) for _ in range(3)]
    x = torch.randn(4, 3).double() if is_shared else torch.randn(3, 4, 3).double()
    population = Population(networks)
    y = population(x, in_dims=None if is_shared else 0)
    y.square().sum().backward()
    for k, network in enumerate(networks):
        alone = network(x if is_shared else x[k])
        torch.testing.assert_close(y[k], alone, rtol=0, atol=1e-12)
        (expected,) = torch.autograd.grad(alone.square().sum(), network.linear.weight)
        torch.testing.assert_close(population.stacked.linear.weight.grad[k], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "function",
    [
        lambda network, x: network.linear(x) / network.number.item(),
        lambda network, x: network.linear(x)[network.linear(x).norm(dim=1).argmax()],
        lambda network, x: network.linear(x).clamp(max=network.number.item()),
    ],
)
def test_a_number_that_differs_between_members_is_refused(function: Callable[..., Tensor]) -> None:
    population, x = Population([Head(function, number) for number in (1.0, 2.0, 0.5)]), torch.randn(3, 4, 3).double()
    x[range(3), range(3)] += 1e3  # the largest row is another in each
    with pytest.raises(
        LoweringError, match=r"(differs between members|depends on the values).*test_member_diff\w+\.py:\d+"
    ):
        population(x)


class Reader(nn.Module):
    """Read the input of an activation once more, or not."""

    def __init__(self, act: nn.Module, reads: bool) -> None:
        super().__init__()
        self.linear, self.act, self.norm, self.reads = nn.Linear(3, 3), act, nn.BatchNorm1d(3), reads

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear(x))
        z: Tensor = self.act(y)
        return y + z if self.reads else z


MIXED = (nn.Tanh(), nn.ReLU(inplace=True), hullo.AffineHull("relu", "tanh"))


def test_members_may_differ_in_place_where_nothing_reads_the_input_again() -> None:
    networks, x = [Reader(copy.deepcopy(act), False) for act in MIXED], torch.randn(4, 3)
    y = Population(networks)(x, in_dims=None)
    for k, network in enumerate(networks):
        torch.testing.assert_close(y[k], network(x))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_input_that_some_members_change_in_place_is_not_read_again(order: tuple[int, int]) -> None:
    population = Population([Reader(copy.deepcopy(MIXED[i]), True) for i in order])
    with pytest.raises(ValueError, match=r"'act': inplace .* at .*return y \+ z"):
        population(torch.randn(4, 3), in_dims=None)


class Average(nn.Module):
    """Change a buffer in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("constant", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) * self.constant
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y - self.mean


def test_states_load_before_and_after_buffers_come_to_differ() -> None:
    one, other = (Population(Average, seeds=range(3)) for _ in range(2))
    start = copy.deepcopy(one.state_dict())
    with torch.inference_mode():
        one(torch.randn(4, 3), in_dims=None)
    one(torch.randn(4, 3), in_dims=None).sum().backward()
    nn.ModuleDict({"population": other}).load_state_dict(nn.ModuleDict({"population": one}).state_dict())
    assert all(torch.equal(tensor, one.state_dict()[name]) for name, tensor in other.state_dict().items())
    one.load_state_dict(start)
    assert not one.state_dict()["stacked.mean"].any()


SQUARE = hullo.parametrizations.Parametrization("square", torch.square, torch.sqrt)


def frozen(init: str) -> nn.Module:
    scaled = hullo.ConvexHull("relu", "tanh", init=init, inner_scale=2.0 if init == "relu" else 3.0)
    hulls = [
        scaled,
        hullo.ConicHull("relu", "tanh", init=[0.25, 0.5], parametrization=SQUARE),
    ]
    slope = nn.PReLU(init=0.1 if init == "relu" else 0.3)
    return nn.Sequential(nn.Linear(3, 3), *(act.requires_grad_(False) for act in (*hulls, slope)))


def test_a_state_has_what_is_frozen_and_the_weight_decay() -> None:
    networks, x = [frozen("relu"), frozen("relu")], torch.randn(4, 3)
    one, other = Population(networks), Population([frozen("tanh"), frozen("tanh")])
    other = pickle.loads(pickle.dumps(other))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x, in_dims=None), other(x, in_dims=None))
    torch.testing.assert_close(one(x, in_dims=None)[1], networks[1](x))
    torch.testing.assert_close(other[1].state_dict(), networks[1].state_dict())
    optimizers = [AdamW(population, lr=0.1) for population in (one, other)]
    optimizers[0].weight_decay = [0.5, 0.1]
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    assert optimizers[1].weight_decay.tolist() == [0.5, 0.1]


def test_rows_that_a_captured_step_reads_are_updated_in_place() -> None:
    one, other = (Population([frozen(init), frozen(init)]) for init in ("relu", "tanh"))
    rows = [table for site in one.activations.rows() for table in site]
    one.load_state_dict(other.state_dict())
    after = [table for site in one.activations.rows() for table in site]
    assert [table.data_ptr() for table in after] == [table.data_ptr() for table in rows]
    assert all(torch.equal(a, b) for a, b in zip(after, (t for s in other.activations.rows() for t in s), strict=True))


def test_scalar_parameters_are_clipped_and_modes_must_agree() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    population, x = Population(Scaled, seeds=range(2)), torch.randn(2, 4, 3)
    alone, before = population[1], population.stacked.scale.detach().clone()
    population(x).square().sum().backward()
    SGD(population, lr=1.0, max_norm=0.1).step()
    alone(x[1]).square().sum().backward()
    nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
    torch.testing.assert_close(before[1] - population.stacked.scale[1], alone.scale.grad)
    with pytest.raises(ValueError, match=r"training mode.*evaluation mode.*train\(\) or eval\(\)"):
        Population([Scaled(), Scaled().eval()])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_backward_pass_that_computes_again_draws_the_same_mask(use_reentrant: bool) -> None:
    population = Population(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)), seeds=range(2))
    x, gradients = torch.randn(2, 4, 8, requires_grad=True), []
    for call in (lambda x: checkpoint(population, x, use_reentrant=use_reentrant), population):  # which traces it first
        population.steps.zero_()
        population.zero_grad()
        call(x).sum().backward()
        gradients.append([parameter.grad for parameter in population.parameters()])
        assert population.steps.tolist() == [1, 1]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_explain_changes_no_state() -> None:
    population = Population(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), seeds=range(2))
    before = copy.deepcopy(population.state_dict())
    assert "operations" in population.explain(torch.randn(2, 4, 8))
    assert all(torch.equal(tensor, before[name]) for name, tensor in population.state_dict().items())


def test_parameters_that_were_frozen_are_not_left_out_silently() -> None:
    population = Population(lambda: nn.Sequential(nn.Linear(3, 3), hullo.AffineHull("relu", "tanh")), seeds=range(2))
    population.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in population[0].parameters())
    weight = population.stacked.get_submodule("0").weight
    population.requires_grad_(True)
    weight.requires_grad_(False)
    optimizer = SGD(population, lr=0.1)
    weight.requires_grad_(True)
    population(torch.randn(4, 3), in_dims=None).sum().backward()
    with pytest.raises(RuntimeError, match=r"stacked\.0\.weight was frozen.*make the optimizer after"):
        optimizer.step()


def test_fixed_rows_have_the_precision_of_the_population() -> None:
    networks, x = [nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(0.01)) for _ in range(2)], torch.randn(4, 3).double()
    y = Population(networks).float().double()(x, in_dims=None)
    for k, network in enumerate(networks):
        torch.testing.assert_close(y[k], network.double()(x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("in_dims", [{"x": 0}, [None], 2, -3])
def test_other_in_dims_are_refused(in_dims: Any) -> None:
    population = Population([nn.Linear(3, 3), nn.Linear(3, 3)])
    with pytest.raises((TypeError, ValueError), match=r"in_dims"):
        population(torch.randn(2, 3), in_dims=in_dims)


@pytest.mark.parametrize("dim", [1, 2, -1, -2])
def test_members_may_be_in_any_dimension_of_an_input(dim: int) -> None:
    population, x = Population([nn.Linear(3, 3), nn.Linear(3, 3)]), torch.randn(2, 4, 3)
    torch.testing.assert_close(population(x.movedim(0, dim), in_dims=dim), population(x))


class Clamped(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


def test_explain_restores_parameters_that_a_forward_pass_changes() -> None:
    population = Population(lambda: Clamped(3, 3), seeds=range(2))
    before = copy.deepcopy(population.state_dict())
    population.explain(torch.randn(2, 4, 3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in population.state_dict().items())
    population(torch.randn(2, 4, 3))
    assert population.stacked.weight.abs().max() <= 0.1


def test_assigned_states_have_memory_of_their_own() -> None:
    population = Population(Average, seeds=range(2))
    start = copy.deepcopy(population.state_dict())
    population(torch.randn(4, 3), in_dims=None)
    population.load_state_dict(start, assign=True)
    population(torch.randn(4, 3), in_dims=None)
    assert population.stacked.mean.any()
