"""Test that a population agrees with its networks where the order, the sharing and the writing of memory matter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from function_networks import Net, assert_agrees, numbers
from torch import Tensor, nn

from hullo.population import LoweringError, Population


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("between", [0, 1])
def test_norms_of_images_have_the_right_gradients(norm: Any, training: bool, batch: int, between: int) -> None:
    layers = [nn.Conv2d(3, 4, 3, padding=1), norm(4, affine=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2)]
    layers[2:2] = [nn.Conv2d(4, 4, 1)] * between  # whose gradient has channels last
    network = nn.Sequential(*layers).double().train(training)
    x = numbers(1, batch, 3, 4, 4)
    population = Population([network])
    population(x).square().sum().backward()
    network(x[0]).square().sum().backward()
    for name, parameter in population.stacked.named_parameters():
        torch.testing.assert_close(parameter.grad[0], network.get_parameter(name).grad, rtol=1e-10, atol=1e-10)


def collect(net: Any) -> None:
    net.weights, net.table = [net.a.weight], {"bias": net.b.bias}
    net.linear = functools.partial(F.linear, weight=net.b.weight)


def test_parameters_in_collections_are_those_of_each_member() -> None:
    def compute(net: Any, x: Tensor) -> Tensor:
        return net.linear(x @ net.weights[0]) + net.table["bias"]

    assert_agrees([Net(compute, collect) for _ in range(3)], numbers(3, 5, 4))


def written(net: Any, x: Tensor) -> Tensor:
    y = net.a(x)
    y *= net.b.bias
    y.sin_()
    y[:, 0] = 0.0
    return y


def strided(net: Any, x: Tensor) -> Tensor:
    return net.a(x).as_strided((2, 2, 4), (4, 4, 1))


@pytest.mark.parametrize(
    "compute",
    [written, strided, lambda net, x: torch.select_scatter(x, net.a(x)[:, 0], 1, 2)],
    ids=["written", "strided", "scattered"],
)
def test_memory_is_that_of_one_network(compute: Callable[..., Tensor]) -> None:
    assert_agrees([Net(compute) for _ in range(2)], numbers(2, 3, 4))
    networks, x = [Net(compute) for _ in range(2)], numbers(3, 4)
    expected = torch.stack([network(x) for network in networks])
    torch.testing.assert_close(Population(networks)(x, in_dims=None), expected, rtol=1e-10, atol=1e-10)


def regions(net: Any, x: Tensor) -> Tensor:
    y = net.a(x)
    with torch.no_grad():
        kept = y * 2
        with torch.autocast("cpu", torch.bfloat16):
            rounded = net.b.weight.float() @ net.a.weight.float()
            with torch.enable_grad():
                y = y + net.b(y.detach())
        kept[:, 1] = rounded[0, 0]
        net.a.bias.clamp_(-0.1, 0.1)
    return y * kept + net.a.bias


def test_gradients_and_autocast_are_switched_where_a_network_does() -> None:
    assert_agrees([Net(regions) for _ in range(2)], numbers(2, 3, 4))


def test_grids_sample_the_images_of_their_members() -> None:
    def compute(net: Any, x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(net.conv(x), grid, align_corners=False)

    assert_agrees([Net(compute) for _ in range(2)], numbers(2, 3, 2, 4, 4), numbers(2, 3, 4, 4, 2))


def test_complex_layers_have_conjugate_gradients() -> None:
    networks = [nn.Linear(4, 4, dtype=torch.complex128) for _ in range(2)]
    x = torch.randn(2, 3, 4, dtype=torch.complex128)
    population = Population(networks)
    population(x).abs().square().sum().backward()
    for k, network in enumerate(networks):
        network(x[k]).abs().square().sum().backward()
        torch.testing.assert_close(population.stacked.get_parameter("weight").grad[k], network.weight.grad)


def lazily(net: Any, x: Tensor) -> Tensor:
    if not hasattr(net, "positions"):
        net.register_buffer("positions", torch.arange(len(x), dtype=x.dtype)[:, None])
    return net.a(x) + net.positions


def adding(net: Any, x: Tensor) -> Tensor:
    return net.a(x) * net.number.add_(1)


def stateful(net: Any) -> None:
    net.number = torch.zeros((), dtype=torch.float64)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lazily, "registers 'positions'.*call the networks once"),
        (adding, "not registered.*register it as a buffer"),
        (lambda net, x: torch.view_as_real(net.a(x) + 0j).mul_(2), "a view of another type is written in place"),
    ],
)
def test_state_that_members_do_not_have_is_refused(compute: Callable[..., Tensor], message: str) -> None:
    x = numbers(2, 3, 4)
    before = x.clone()
    with pytest.raises(LoweringError, match=message):
        Population([Net(compute, stateful) for _ in range(2)])(x)
    torch.testing.assert_close(x, before, rtol=0.0, atol=0.0)


def test_outputs_that_members_share_are_copies() -> None:
    _, twice = Population([Pair(), Pair()])(numbers(3, 4), in_dims=None)
    other = twice[1].clone()
    twice[0] += 1
    torch.testing.assert_close(twice[1], other, rtol=0.0, atol=0.0)


class Pair(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x * 2


def test_learned_activations_are_mapped_by_vmap() -> None:
    networks = [nn.Sequential(nn.Linear(4, 4), nn.PReLU()).double() for _ in range(2)]
    population, x = Population(networks).eval(), numbers(5, 2, 3, 4)
    expected = torch.stack([population(item) for item in x])
    torch.testing.assert_close(torch.vmap(population)(x), expected, rtol=1e-12, atol=1e-12)


def test_mixtures_of_distributions_are_traced() -> None:
    def compute(net: Any, x: Tensor) -> Tensor:
        mixture = torch.distributions.Categorical(logits=net.a(x))
        parts = torch.distributions.Normal(net.b(x), 1.0)
        return torch.distributions.MixtureSameFamily(mixture, parts).log_prob(x[:, 0])

    assert_agrees([Net(compute) for _ in range(2)], numbers(2, 3, 4))


def masked_copy(net: Any, x: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    z[:] = x
    z *= 2
    return net.a(z) + net.b(x)


def noisy_copy(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    z = torch.empty_like(h)
    z.copy_(h.view(-1, 4))
    z += 1
    h *= 3
    return net.b(h) * z


def old_buffer(net: Any, x: Tensor) -> Tensor:
    old = torch.empty_like(net.memory)
    old.copy_(net.memory)
    net.memory.add_(1)
    return net.a(x) + old


def scaled_input(net: Any, x: Tensor) -> Tensor:
    y = x + 0
    rows = y.view(-1, 4)
    y *= net.a.bias
    return net.b(rows)


def changed_after_a_write(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    h[:, 0] = 1.0
    return net.b(net.act(h))


def changed_in_a_slice(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.b(torch.cat([net.act(h[:, :2]), h[:, 2:]], 1))


def part_of_a_copied_part(net: Any, x: Tensor) -> Tensor:
    z = torch.empty(3, 4, dtype=x.dtype)
    z.copy_(net.a(x).repeat(2, 1)[3:])
    z[0] += 1
    return net.b(z) + z[1:2]


def copied_without_gradients(net: Any, x: Tensor) -> Tensor:
    y, z = net.a(x), torch.empty_like(x)
    with torch.no_grad():
        z.copy_(y)
    return y * z


def in_float32(net: Any, x: Tensor) -> Tensor:
    y = net.a(x).float()
    y += net.b(x)
    return y.double()


def read_when_counted(net: Any, x: Tensor) -> Tensor:
    count = net.memory + 1
    net.memory.copy_(count)
    return net.a(x) * count


def copied_into_float32(net: Any, x: Tensor) -> Tensor:
    y = torch.empty(x.shape, dtype=torch.float32)
    y.copy_(net.a(x))
    return (y * 1e4).double() - net.b(x)


@pytest.mark.parametrize(
    "compute",
    [
        masked_copy,
        noisy_copy,
        old_buffer,
        scaled_input,
        changed_after_a_write,
        changed_in_a_slice,
        part_of_a_copied_part,
        copied_without_gradients,
        in_float32,
        copied_into_float32,
        read_when_counted,
    ],
)
def test_copies_and_activations_in_place_are_those_of_a_network(compute: Callable[..., Tensor]) -> None:
    def build(net: Any) -> None:
        net.register_buffer("memory", torch.zeros(4, dtype=torch.float64))
        net.act = nn.ReLU(inplace=True)

    assert_agrees([Net(compute, build) for _ in range(2)], numbers(2, 3, 4))


def of_a_transpose(y: Tensor) -> Tensor:
    return y.t().as_strided((4, 3), (3, 1))


def windows_of_a_row(y: Tensor) -> Tensor:
    return y[0].as_strided((3, 2), (1, 1))


def behind_an_offset(y: Tensor) -> Tensor:
    return y.as_strided((2, 4), (4, 1), 4)


def of_a_slice(y: Tensor) -> Tensor:
    return y[1:].as_strided((2, 2), (4, 1), 5)  # an offset counts from the beginning of the memory of y


@pytest.mark.parametrize("stride", [of_a_transpose, windows_of_a_row, behind_an_offset, of_a_slice])
def test_strides_are_those_of_each_network(stride: Callable[[Tensor], Tensor]) -> None:
    assert_agrees([Net(lambda net, x: stride(net.a(x))) for _ in range(3)], numbers(3, 3, 4))


@pytest.mark.parametrize(
    "read", [lambda y: y[1:].as_strided((3, 4), (4, 1), 0), lambda y: y[:, :2].as_strided((2,), (4,))]
)
def test_strides_beyond_the_input_are_refused(read: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(LoweringError, match=r"as_strided.*memory"):
        Population([Net(lambda net, x: read(net.a(x)))])(numbers(1, 3, 4))


def test_activations_of_complex_parts_are_computed_in_their_precision() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(4, 4, dtype=torch.complex128), nn.LeakyReLU(0.1)

        def forward(self, x: Tensor) -> Tensor:
            z = self.linear(x)
            return torch.complex(self.act(z.real), self.act(z.imag))

    network, x = Parts(), torch.randn(1, 50, 4, dtype=torch.complex128)
    torch.testing.assert_close(Population([network])(x)[0], network(x[0]), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("change", [lambda y: y.t_(), lambda y: y.unsqueeze_(0), lambda y: y.swapaxes_(0, 1)])
def test_shapes_that_change_in_place_are_refused(change: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(LoweringError, match=r"in place at .*function_networks"):
        Population([Net(lambda net, x: change(net.a(x)))])(numbers(1, 4, 4))
