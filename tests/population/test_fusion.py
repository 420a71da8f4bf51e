"""Patterns of a graph are fused where, and only where, the kernel computes the same as the plain modules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo.population import Population, kernels
from hullo.population.values import Value

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(kernels, "support", lambda x: x.dtype != torch.float64)


class Network(nn.Module):
    """A convolution, norms, an activation, and any function of them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.conv, self.norm, self.groups = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        self.up = nn.ConvTranspose2d(4, 6, 2, 2)
        for parameter in self.groups.parameters():
            nn.init.normal_(parameter)
        self.act, self.function = nn.ReLU(), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


class Features(nn.Module):
    """Linear layers, norms, and any function of them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.other, self.function = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), function
        self.norm, self.rms = nn.LayerNorm(6), nn.RMSNorm(6)
        for parameter in (*self.norm.parameters(), *self.rms.parameters()):
            nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def assert_equals_members(function: Callable[..., Any], fused: int, kind: type[nn.Module] = Network) -> None:
    """Compare outputs, gradients and running statistics of a population with those of its members.

    `fused` is the number of kernels that compute several operations.
    """
    torch.manual_seed(0)
    members = [kind(function).to(DEVICE) for _ in range(2)]
    population = Population(members)
    x = torch.randn(2, 3, 3, 7, 7, device=DEVICE) if kind is Network else torch.randn(2, 3, 5, 6, device=DEVICE)
    y = population(x)
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    for k, member in enumerate(members):
        expected = member(x[k])
        torch.testing.assert_close(y[k], expected, rtol=1e-4, atol=1e-5)
        (expected * weights[k]).sum().backward()
        for name, parameter in member.named_parameters():
            if parameter.grad is not None:
                found = population.stacked.get_parameter(name).grad[k]
                torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-4, msg=name)
        torch.testing.assert_close(population[k].state_dict(), member.state_dict(), rtol=1e-4, atol=1e-5)
    found = re.match(r"(\d+) operations with their neighbors", population.explain(x))
    assert (int(found[1]) if found else 0) == fused


@pytest.mark.parametrize(
    ("arguments", "fused"),
    [
        ({"kernel_size": 2}, True),
        ({"kernel_size": (2, 2), "stride": 2, "padding": 0, "dilation": (1, 1), "ceil_mode": False}, True),
        ({"kernel_size": 2, "padding": 1}, False),
        ({"kernel_size": 2, "padding": (1, 0)}, False),
        ({"kernel_size": 2, "dilation": 2}, False),
        ({"kernel_size": 2, "ceil_mode": True}, False),
        ({"kernel_size": 2, "stride": 1}, False),
        ({"kernel_size": (2, 1)}, False),
        ({"kernel_size": 3, "stride": 2}, False),
    ],
)
def test_only_pools_of_two_by_two_are_fused(arguments: dict[str, Any], fused: bool) -> None:
    assert_equals_members(lambda net, x: F.max_pool2d(net.act(net.conv(x)), **arguments), fused)


@pytest.mark.parametrize(
    "activation",
    [
        F.relu,
        torch.relu_,
        F.gelu,
        lambda x: F.gelu(x, approximate="tanh"),
        torch.tanh,
        F.silu,
        lambda x: F.leaky_relu(x, 0.2, inplace=True),
        lambda x: F.leaky_relu(x, 2.0),
        lambda x: F.elu(x, 0.5),
        F.hardswish,
        lambda x: F.relu6(x, inplace=True),
        F.hardtanh,
        F.softplus,
        torch.sigmoid,
    ],
)
def test_functions_are_fused_like_modules(activation: Callable[[Tensor], Tensor]) -> None:
    assert_equals_members(lambda net, x: F.max_pool2d(activation(net.conv(x)), 2), True)


@pytest.mark.parametrize(
    "activation", [lambda x: F.hardtanh(x, -0.5, 2.0), lambda x: F.threshold(x, 0.1, 0.2), lambda x: x.abs()]
)
def test_functions_that_are_no_base_are_computed_alone(activation: Callable[[Tensor], Tensor]) -> None:
    assert_equals_members(lambda net, x: activation(net.norm(net.conv(x))), False)


def test_pools_without_activation_and_norms_with_functions_are_fused() -> None:
    assert_equals_members(lambda net, x: F.max_pool2d(net.conv(x), 2), True)
    assert_equals_members(lambda net, x: F.max_pool2d(net.norm(x[:, :1].expand(-1, 4, -1, -1)), 2), True)
    assert_equals_members(lambda net, x: F.relu(net.norm(net.conv(x))), True)
    assert_equals_members(lambda net, x: F.max_pool2d(F.relu(net.norm(net.conv(x))), 2), 2)


def _down_and_up(net: nn.Module, x: Tensor) -> Tensor:
    y = F.silu(net.groups(net.conv(x[..., :6, :6])))
    z = F.interpolate(F.max_pool2d(y, 2), scale_factor=2.0)
    return torch.cat([y, z, x[:, :1, :6, :6], net.up(y[..., ::2, ::2])], 1)


@pytest.mark.parametrize(
    ("function", "fused"),
    [
        (lambda net, x: F.relu(net.groups(net.conv(x))), 1),
        (lambda net, x: net.act(net.groups(net.conv(x)) + x.mean(1, keepdim=True).expand(-1, 4, -1, -1)), 1),
        (lambda net, x: net.groups(net.conv(x)), 1),
        (lambda net, x: (lambda y: F.relu(y) + y)(net.groups(net.conv(x))), 1),
        (lambda net, x: F.relu(net.groups(net.norm(net.conv(x)))), 1),
        (lambda net, x: F.group_norm(net.conv(x), 4), 1),
        (lambda net, x: torch.tanh(F.instance_norm(net.conv(x))), 0),
        (lambda net, x: F.group_norm(net.conv(x), 1, net.groups.weight, 2 * net.groups.bias), 0),
        (lambda net, x: F.group_norm(net.conv(x).flatten(2), 2, net.groups.weight, net.groups.bias), 1),
        (lambda net, x: F.group_norm(net.conv(x).mean((2, 3)), 2, net.groups.weight, net.groups.bias), 0),
        (
            lambda net, x: F.instance_norm(net.conv(x), net.norm.running_mean, net.norm.running_var, None, None, False),
            0,
        ),
        (lambda net, x: F.silu(net.groups(F.conv1d(x[..., 0], net.conv.weight[..., 0], net.conv.bias))), 1),
        (lambda net, x: F.relu(net.groups(net.conv(x)[..., 0]) + net.conv(x)[..., 1]) + net.norm.bias[:, None], 1),
        (_down_and_up, 2),
    ],
)
def test_norms_of_groups_are_fused(function: Callable[..., Any], fused: int) -> None:
    assert_equals_members(function, fused)


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_group_norm_under_autocast_is_rounded_for_products_alone(is_moved: bool) -> None:
    def function(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        y = net.groups(net.conv(x))
        return y if not is_moved else torch.cat([net.conv(F.max_pool2d(y, 2)[:, :3]), net.up(y)[:, :4, :3, :3]], 1)

    members = [Network(function).to(DEVICE) for _ in range(2)]
    x = torch.randn(2, 3, 3, 7, 7, device=DEVICE)
    half = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter has no products in bfloat16
    with torch.autocast(DEVICE, half):
        y = Population(members)(x)
    assert y.dtype == (half if is_moved else torch.float32)
    expected = torch.stack([member(x[k]) for k, member in enumerate(members)])
    torch.testing.assert_close(y.float(), expected, rtol=0.03, atol=0.03)


def _sequences(net: nn.Module, x: Tensor) -> Tensor:
    """Two convolutions of sequences with batch norms and a residual."""
    y = F.conv1d(x[..., 0], net.conv.weight[..., 0], net.conv.bias, padding=1)
    for_norm = net.norm.running_mean, net.norm.running_var, net.norm.weight, net.norm.bias, net.training
    y = F.relu(F.batch_norm(y, *for_norm))
    z = F.conv1d(F.max_pool1d(y, 2), net.up.weight[:, :, :1, 0].transpose(0, 1), padding="same")
    return z * F.conv_transpose1d(y, net.up.weight[..., 0], stride=2, padding=1)[..., :3]


def test_norms_of_sequences_are_fused() -> None:
    assert_equals_members(_sequences, 1)


def _residual(net: nn.Module, x: Tensor) -> Tensor:
    y = net.conv(x)
    z = net.norm(y * 2)
    z += y
    return F.relu_(z) + y


def _changed_by_its_activation(net: nn.Module, x: Tensor) -> Tensor:
    y = net.norm(net.conv(x))
    z = F.relu_(y)
    return y * 2 + z


def _changed_meanwhile(net: nn.Module, x: Tensor) -> Tensor:
    residual = net.conv(x).detach() * 2
    first = residual[:, 0]
    y = net.norm(net.conv(x)) + residual
    first.zero_()
    return F.relu(y) + residual


def _shift_changed_meanwhile(net: nn.Module, x: Tensor) -> Tensor:
    y = net.norm(net.conv(x))
    with torch.no_grad():
        net.norm.bias.add_(1)
    return F.relu(y)


def _statistics_read_meanwhile(net: nn.Module, x: Tensor) -> Tensor:
    y = net.norm(net.conv(x))
    mean = net.norm.running_mean.clone()
    return net.act(y) + mean.view(1, -1, 1, 1)


def _convolved_without_gradients(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = net.conv(x)
    return F.relu(net.norm(y))


@pytest.mark.parametrize(
    ("function", "fused"),
    [
        (_residual, True),
        (_shift_changed_meanwhile, False),
        (_statistics_read_meanwhile, False),
        (_convolved_without_gradients, False),
        (lambda net, x: F.relu(net.norm(net.conv(x)) + x.mean((2, 3), keepdim=True).mean(1, keepdim=True)), False),
        (lambda net, x: F.relu(torch.add(net.norm(net.conv(x)), net.conv(x), alpha=2)), False),
        (lambda net, x: (lambda y: F.relu(y + y))(net.norm(net.conv(x))), False),
        (_changed_by_its_activation, True),
        (_changed_meanwhile, True),
    ],
)
def test_residuals_and_operations_in_place(function: Callable[..., Any], fused: bool) -> None:
    assert_equals_members(function, fused)


def _used_before_and_after(net: nn.Module, x: Tensor) -> Tensor:
    y = x + net.linear(x)
    z = y * 2
    return net.norm(y) * z + y


def _two_norms_of_a_sum(net: nn.Module, x: Tensor) -> Tensor:
    y = net.linear(x)
    y += x
    return net.rms(y) * net.norm(y)


def _sum_changed_afterwards(net: nn.Module, x: Tensor) -> Tensor:
    y = x + x
    row = y[:, 0]
    z = F.layer_norm(y, (6,))
    row.zero_()
    return z + y + net.linear(x)


@pytest.mark.parametrize(
    ("function", "fused"),
    [
        (lambda net, x: net.norm(x + net.linear(x)), 1),
        (lambda net, x: net.rms(net.other(x) + net.linear(x)), 1),
        (lambda net, x: net.norm(x + x), 1),
        (_used_before_and_after, 1),
        (_two_norms_of_a_sum, 2),
        (_sum_changed_afterwards, 1),
        (lambda net, x: net.norm(x + net.linear(x).mean(1, keepdim=True)), 1),
        (lambda net, x: net.norm(torch.add(x, net.linear(x), alpha=2)), 1),
        (lambda net, x: F.layer_norm(x + net.linear(x), (6,), net.norm.weight * 2, None), 0),
        (lambda net, x: F.layer_norm(net.linear(x), (5, 6)), 0),
        (lambda net, x: F.gelu(net.linear(x)) + torch.tanh(net.other(x)), 2),
        (lambda net, x: (lambda y: F.relu(y) + y)(net.linear(x)), 0),
    ],
)
def test_sums_norms_and_activations_after_linear_layers(function: Callable[..., Any], fused: int) -> None:
    assert_equals_members(function, fused, Features)


def _dropped(net: nn.Module, x: Tensor) -> Tensor:
    return F.dropout(net.linear(x), 0.4, net.training)


@pytest.mark.parametrize(
    ("function", "fused"),
    [
        (lambda net, x: net.norm(x + _dropped(net, x)), 1),
        (lambda net, x: (lambda y: net.rms(y) * y)(_dropped(net, x) + x), 1),
        (lambda net, x: net.norm(_dropped(net, x) + net.linear(x)), 1),
        (lambda net, x: net.norm(x + F.dropout(x.sin(), 0.4, net.training)), 1),
        (lambda net, x: (lambda y: net.norm(y + x) + y)(_dropped(net, x)), 1),
        (lambda net, x: (lambda y: net.norm(y + y))(_dropped(net, x)), 1),
        (lambda net, x: net.norm(x[:, None] + _dropped(net, x[:, None])), 1),
    ],
)
def test_dropouts_before_sums_and_norms(function: Callable[..., Any], fused: int) -> None:
    population = Population(lambda: Features(function), seeds=range(3)).to(DEVICE)
    x = torch.randn(3, 4, 5, 6, device=DEVICE)
    population.check(x)
    assert population.explain(x).startswith(f"{fused} operations with their neighbors")
    first, second = population(x), population(x)
    assert not first.equal(second)
    population.steps.zero_().add_(1)
    population.first_sample = 2
    torch.testing.assert_close(population(x[:, 2:]), second[:, 2:])


@pytest.mark.parametrize(
    "function",
    [
        lambda net, x: net.norm(x),
        lambda net, x: net.rms(x).transpose(0, 1),
        lambda net, x: net.norm(x + x.sin()) * x,
        lambda net, x: (lambda y: y + 0 * net.linear(y))(net.norm(x)),
        lambda net, x: (lambda y: y.view(-1, 6) + 0 * net.linear(y).view(-1, 6))(net.rms(x - x.cos())),
    ],
)
def test_norms_under_autocast_are_rounded_for_products_alone(function: Callable[..., Any]) -> None:
    members = [Features(function).to(DEVICE) for _ in range(2)]
    x = torch.randn(2, 3, 5, 6, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        y = Population(members)(x)
    expected = torch.stack([member(x[k]) for k, member in enumerate(members)])
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def test_products_of_a_value_share_its_cast_and_the_gradients_of_both() -> None:
    value = Value(torch.randn(2, 3).requires_grad_(), 0)
    with torch.no_grad():
        assert not value.cast(torch.bfloat16).tensor.requires_grad
    assert value.cast(torch.bfloat16).tensor.requires_grad
    assert value.cast(torch.bfloat16) is value.cast(torch.bfloat16)
    assert value.cast(torch.float32) is value

    def function(net: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            frozen = net.linear(x)
        return net.linear(x) * net.other(x) + frozen

    members = [Features(function).to(DEVICE) for _ in range(2)]
    x = torch.randn(2, 5, 6, device=DEVICE, requires_grad=True)
    with torch.autocast(DEVICE, torch.bfloat16):
        (found,) = torch.autograd.grad(Population(members)(x).float().sum(), x)
        (expected,) = torch.autograd.grad(sum(member(x[k]).float().sum() for k, member in enumerate(members)), x)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_an_rms_norm_of_small_halves_has_the_eps_of_pytorch() -> None:
    members = [nn.RMSNorm(6).bfloat16().to(DEVICE) for _ in range(2)]
    x = (1e-3 * torch.randn(2, 5, 6, device=DEVICE)).bfloat16()
    torch.testing.assert_close(
        Population(members)(x), torch.stack([members[k](x[k]) for k in range(2)]), rtol=0.02, atol=0
    )


def test_gradients_of_fused_layers_can_be_differentiated() -> None:
    members = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(DEVICE) for _ in range(2)]
    population, x = Population(members), torch.randn(2, 5, 3, device=DEVICE, requires_grad=True)
    (slope,) = torch.autograd.grad(population(x).sum(), x, create_graph=True)
    slope.square().sum().backward()
    for k, member in enumerate(members):
        (own,) = torch.autograd.grad(member(x[k]).sum(), x, create_graph=True)
        own.square().sum().backward()
        for name, parameter in member.named_parameters():
            if parameter.grad is not None:
                found = population.stacked.get_parameter(name).grad[k]
                torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-4, msg=name)
