"""Networks go into a population and come out of it; differences between them are found."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import plain_networks
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trained_alone import ACTIVATIONS, assert_equal_states, inputs_of, make, train

import hullo
from hullo.population import SGD, Adam, ContractError, Population


def test_members_keep_class_ties_buffers_and_modes() -> None:
    members = make(plain_networks.GPT, ACTIVATIONS[:2])
    for network in members:
        network.blocks[0].eval()
    population = Population(members)
    member = population[-1]
    assert member.head.weight is member.tokens.weight
    assert_equal_states(member, members[1])
    assert not member.blocks[0].training
    assert member.training
    member.tokens.weight.data.zero_()
    assert population[-1].tokens.weight.any()
    population.stacked.tokens.weight.requires_grad_(False)
    assert not population[0].tokens.weight.requires_grad
    assert len(list(population)) == len(population) == 2
    with pytest.raises(IndexError, match="2"):
        population[2]


def test_state_dict_round_trips_exactly() -> None:
    members = make(plain_networks.ResNet, ACTIVATIONS)
    batches = inputs_of(plain_networks.ResNet, len(members))
    population = Population(members)
    optimizer = Adam(population)
    train(population, optimizer, batches[:5])
    saved = copy.deepcopy((population.state_dict(), optimizer.state_dict()))
    train(population, optimizer, batches[5:])
    other = Population(make(plain_networks.ResNet, ACTIVATIONS))
    resumed = Adam(other)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    train(other, resumed, batches[5:])
    for name, tensor in population.state_dict().items():
        assert tensor.equal(other.state_dict()[name]), name


def test_factory_and_seeds_make_members_without_touching_global_rng() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    population = Population(plain_networks.MLP, seeds=[5, 6])
    assert torch.rand(1).equal(expected)
    torch.manual_seed(6)
    assert_equal_states(population[1], plain_networks.MLP())
    assert not population[0].hidden.weight.equal(population[1].hidden.weight)


def test_different_architectures_are_rejected_with_the_difference() -> None:
    def network(width: int = 3, slope: float = 1.0) -> nn.Module:
        made = nn.Sequential(nn.Linear(4, width), nn.Softplus(slope), nn.LayerNorm(width))
        made.note = torch.tensor(slope)
        return made

    with pytest.raises(ValueError, match=r"members 0 and 1 differ.*\(3, 4\) and .*\(5, 4\)"):
        Population([network(), network(5)])
    with pytest.raises(ValueError, match="LayerNorm and Identity"):
        Population([nn.Sequential(nn.LayerNorm(3)), nn.Sequential(nn.Identity())])
    with pytest.raises(ValueError, match="Applied and Applied of different code"):
        Population([Applied(F.relu), hullo.replace_activations(Applied(F.relu), example_inputs=torch.randn(1, 3))])
    with pytest.raises(TypeError, match=r"replace_activations.*population\[k\]"):
        hullo.replace_activations(Population([network()]))
    shared = network()
    with pytest.raises(ValueError, match=r"share 0\.weight"):
        Population([shared, shared])
    with pytest.raises(ValueError, match="frozen"):
        Population([network(), network().requires_grad_(False)])
    with pytest.raises(TypeError, match="seeds"):
        Population(plain_networks.MLP)
    with pytest.raises(TypeError, match="not iterable"):
        Population(plain_networks.MLP, seeds=3)
    with pytest.raises(TypeError, match="members"):
        Population([])
    with pytest.raises(ValueError, match="2 members"):
        Population([network(), network()], seeds=[1])


class Applied(nn.Module):
    """A function that is not a module, in an attribute."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(3, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


def scaled(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor


@pytest.mark.parametrize(
    "functions",
    [
        (torch.relu, torch.tanh),
        (functools.partial(F.leaky_relu, negative_slope=0.1), functools.partial(F.leaky_relu, negative_slope=0.2)),
        ([F.relu], [F.gelu]),
        (scaled(torch.ones(3)), scaled(torch.zeros(3))),
    ],
)
def test_functions_that_perform_other_operations_are_rejected(functions: tuple[Any, Any]) -> None:
    members = [Applied(item[0] if isinstance(item, list) else item) for item in functions]
    with pytest.raises(ValueError, match="members 0 and 1 differ in the networks: function"):
        Population(members)(torch.randn(4, 3), in_dims=None)


@pytest.mark.parametrize("functions", [(lambda x: x * 2, lambda x: x * 3), (scaled(2.0), scaled(3.0))])
def test_functions_may_differ_in_a_factor(functions: tuple[Any, Any]) -> None:
    members, x = [Applied(function) for function in functions], torch.randn(4, 3)
    expected = torch.stack([member(x) for member in members])
    torch.testing.assert_close(Population(members)(x, in_dims=None), expected)


@pytest.mark.parametrize("function", [torch.relu, lambda: scaled(2.0), functools.partial(F.leaky_relu, inplace=True)])
def test_functions_with_the_same_code_and_values_are_equal(function: Any) -> None:
    own = (function(), function()) if getattr(function, "__name__", "") == "<lambda>" else (function, function)
    members = [Applied(item) for item in own]
    x = torch.randn(2, 4, 3)
    expected = torch.stack([member(x[k]) for k, member in enumerate(members)])
    torch.testing.assert_close(Population(members)(x), expected)


class Clamping(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.linear, self.rate = nn.Linear(3, 3), rate

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).clamp(max=self.rate)


class Scaling(Clamping):
    def forward(self, x: Tensor) -> Tensor:
        return (1 - self.rate) * self.linear(x) / self.rate + self.rate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_in_elementwise_operations_may_differ(dtype: torch.dtype) -> None:
    members = [Scaling(rate).to(dtype) for rate in (0.1, 0.1, 0.7)]
    x = torch.randn(3, 2, 3, dtype=dtype)
    expected = torch.stack([member(x[k]) for k, member in enumerate(members)])
    torch.testing.assert_close(Population(members)(x), expected, rtol=4 * torch.finfo(dtype).eps, atol=0)


class Counting(Clamping):
    """Combine tensors of several types with a number, and with a parameter without dimensions."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.scale = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.linear(x.float())
        whole, shared = x + self.rate, x.float().sum() * self.rate
        return whole, shared, y * self.rate, y * self.scale, y > self.scale, x * self.scale


@pytest.mark.parametrize("autocast", [False, True])
def test_numbers_leave_the_types_of_tensors_as_they_are(autocast: bool) -> None:
    members, x = [Counting(1), Counting(0)], torch.tensor([[2**40 + 1, 3, 7]])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = Population(members)(x, in_dims=None)
        for k, member in enumerate(members):
            torch.testing.assert_close([item[k] for item in found], [*member(x)])
    with pytest.raises(ValueError, match=r"rate is 1 and 0\.5"):
        Population([Counting(1), Counting(0.5)])(x, in_dims=None)  # integers in one, fractions in the other


class Positions(Clamping):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.arange(3) * self.rate


def test_integers_and_numbers_are_of_the_default_type() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        members, x = [Positions(0.1), Positions(0.7)], torch.randn(2, 3)
        expected = torch.stack([member(x) for member in members])
        torch.testing.assert_close(Population(members)(x, in_dims=None), expected, rtol=0, atol=1e-12)
    finally:
        torch.set_default_dtype(torch.float32)


def test_numbers_that_change_more_than_a_factor_are_rejected_with_the_line() -> None:
    with pytest.raises(ValueError, match=r"0 and 2 .*rate is 0\.1 and 0\.2.*clamp\(max=self\.rate"):
        Population([Clamping(0.1), Clamping(0.1), Clamping(0.2)])(torch.randn(3, 2, 3))
    with pytest.raises(ValueError, match=r"eps is 1e-05 and 0\.1"):
        Population([nn.LayerNorm(3), nn.LayerNorm(3, eps=0.1)])(torch.randn(2, 2, 3))


class Hidden(nn.Module):
    """Call a layer by a function, which refers to the network that every member is a copy of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.function = lambda x: self.layer(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_parameters_that_are_not_those_of_a_copy_break_the_contract() -> None:
    with pytest.raises(ContractError, match="member 1 alone differs"):
        Population([Hidden() for _ in range(2)]).check(torch.randn(4, 3), in_dims=None)


def test_members_with_different_forward_hooks_are_traced_each() -> None:
    hooked, x = [nn.Linear(3, 3) for _ in range(3)], torch.randn(4, 3)
    for network, factor in zip(hooked[1:], (2.0, 3.0), strict=True):
        hooked[0].register_forward_hook(lambda module, given, made: made * 1.0)
        network.register_forward_hook(lambda module, given, made, factor=factor: made * factor)
    with pytest.raises(ValueError, match="_forward_hooks is"):
        Population(hooked)(x, in_dims=None)
    torch.testing.assert_close(Population(hooked[1:])(x, in_dims=None)[1], hooked[2](x))


def test_called_population_can_be_copied() -> None:
    members = make(plain_networks.ResNet, ACTIVATIONS)
    x = inputs_of(plain_networks.ResNet, len(members))[0]
    population = Population(members)
    population(x)
    twin = copy.deepcopy(population)
    with torch.inference_mode():
        assert twin.eval()(x).equal(population.eval()(x))
    twin.activations.raw.data.zero_()
    assert not twin(x).equal(population(x))


class FlatView(nn.Module):
    """Write into a view of images: whether flattening gives one depends on the order of the images in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 2)

    def forward(self, x: Tensor) -> Tensor:
        images = self.conv(x) * 2
        images.view(len(x), -1).add_(1.0)
        return self.head(images.flatten(1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_members_keep_their_order_in_memory(layout: torch.memory_format) -> None:
    networks = [nn.Conv2d(3, 4, 3).to(memory_format=layout) for _ in range(2)]
    members = [nn.Sequential(network, nn.Flatten(), nn.Linear(16, 2)) for network in networks]
    population = Population(members)
    SGD(population, lr=0.1)  # may store parameters in another order
    for parameter, original in zip(population[1].parameters(), members[1].parameters(), strict=True):
        assert parameter.stride() == original.stride()


def test_optimizer_on_a_cpu_leaves_parameters_where_they_are() -> None:
    population = Population(FlatView, seeds=range(2)).share_memory()
    before = {name: (p.data_ptr(), p.stride()) for name, p in population.named_parameters()}
    optimizer = Adam(population, lr=0.1)
    population(torch.rand(2, 5, 3, 8, 8)).sum().backward()
    optimizer.step()
    assert {name: (p.data_ptr(), p.stride()) for name, p in population.named_parameters()} == before
    assert all(p.grad is not None and p.grad.stride() == p.stride() for p in population.parameters())


def test_images_come_out_in_the_order_of_one_network() -> None:
    population = Population([nn.Conv2d(3, 4, 3) for _ in range(2)])
    x = torch.rand(2, 5, 3, 8, 8)
    for y in (population(x), population(x[0], in_dims=None)):
        assert y.view(2, 5, -1).shape == (2, 5, 4 * 36)


def test_views_are_those_of_a_member_alone() -> None:
    members = [FlatView() for _ in range(2)]
    population = Population(members)
    SGD(population, lr=0.1)
    x = torch.rand(2, 5, 3, 8, 8)
    torch.testing.assert_close(
        population(x), torch.stack([member(own) for member, own in zip(members, x, strict=True)])
    )
