"""Members with unlike activations in one population compute what they compute alone, derivatives of every order too."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hullo import AffineHull, ConvexHull
from hullo.population import Population, kernels

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MAKERS: tuple[Callable[[], nn.Module], ...] = (
    nn.Tanh,
    nn.SiLU,
    lambda: AffineHull(["identity", "tanh", "sin"], parametrization="free"),
    nn.GELU,
    lambda: ConvexHull(["relu", "tanh", "silu"], strict=False),
    nn.SiLU,
)


@pytest.fixture(autouse=True)
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "support", lambda x: x.dtype != torch.float64)


def features(act: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 7), act, nn.Linear(7, 5), copy.deepcopy(act), nn.Linear(5, 1))


class Product(nn.Module):
    """A network whose activation reads the product of two layers, which no kernel computes with it."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.one, self.other, self.out = nn.Linear(2, 16), nn.Linear(2, 16, bias=False), nn.Linear(16, 1)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.act(self.one(x) * self.other(x)))


def derivatives(network: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    """Return values, first and second derivatives with respect to the points."""
    x = x.detach().requires_grad_()
    y = network(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first[..., 0].square().sum(), x, create_graph=True)
    return [y, first, second]


def total(parts: list[Tensor]) -> Tensor:
    return sum((part.square().sum() for part in parts), torch.zeros((), device=parts[0].device))


class Wave(nn.Module):
    """A function of one's own, which is in no catalogue."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.frequency = frequency

    def forward(self, x: Tensor) -> Tensor:
        return x + x * torch.sin(self.frequency * x)


class Sine(nn.Module):
    """A function of one's own that is known, with a buffer."""

    frequency: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequency", torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.frequency * x)


OWN: tuple[Callable[[], nn.Module], ...] = (
    lambda: Wave(2.0),
    lambda: AffineHull(["identity", "tanh", "sin"]),
    Sine,
    nn.SiLU,
    lambda: Wave(3.0),
)


@pytest.mark.parametrize("make", [features, Product])
@pytest.mark.parametrize("makers", [MAKERS, OWN], ids=["catalogue", "own"])
def test_derivatives_of_members_of_unlike_activations(
    make: Callable[[nn.Module], nn.Module], makers: tuple[Callable[[], nn.Module], ...]
) -> None:
    networks = [make(maker()) for maker in makers]
    population = Population([copy.deepcopy(network) for network in networks]).to(DEVICE)
    x = torch.randn(len(networks), 9, 2)
    found = derivatives(population, x.to(DEVICE))
    total(found).backward()
    for k, network in enumerate(networks):
        wide = network.double()
        alone = derivatives(wide, x[k].double())
        total(alone).backward()
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one[k].cpu().double(), other, rtol=2e-4, atol=2e-4)
        for name, parameter in wide.named_parameters():
            if ".raw" not in name:
                own = population.stacked.get_parameter(name).grad[k]
                assert (own.cpu() - parameter.grad).norm() <= 1e-4 * (1 + parameter.grad.norm()), name
        hulls = [module for module in wide.modules() if isinstance(module, AffineHull | ConvexHull)]
        for hull, own in zip(hulls, population.activations.split(k, population.activations.raw.grad[k]), strict=False):
            torch.testing.assert_close(own[0].cpu().double()[: len(hull.raw)], hull.raw.grad, rtol=1e-3, atol=1e-3)


def test_members_of_unlike_activations_have_their_own_tensors() -> None:
    networks = [nn.Sequential(nn.Linear(3, 4), maker()) for maker in OWN]
    for member, network in zip(Population(networks), networks, strict=True):
        torch.testing.assert_close(member.state_dict(), network.state_dict())


def test_slopes_per_channel_beside_a_hull_of_other_channels() -> None:
    networks = [
        nn.Sequential(nn.Linear(3, 8), act)
        for act in (nn.PReLU(6), AffineHull("identity", "tanh", groups=4, channel_dim=-1))
    ]
    x = torch.randn(2, 5, 6, 3)
    y = Population([copy.deepcopy(network) for network in networks]).to(DEVICE)(x.to(DEVICE))
    for k, network in enumerate(networks):
        torch.testing.assert_close(y[k].cpu(), network(x[k]), rtol=1e-5, atol=1e-5)


def test_features_in_any_order_in_memory() -> None:
    class Permuted(nn.Module):
        def __init__(self, act: nn.Module) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(2, 16), act

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.linear(x).permute(0, 3, 1, 2))

    networks = [Permuted(maker()) for maker in MAKERS]
    x = torch.randn(len(networks), 2, 3, 5, 2)
    y = Population([copy.deepcopy(network) for network in networks]).to(DEVICE)(x.to(DEVICE))
    for k, network in enumerate(networks):
        torch.testing.assert_close(y[k].cpu(), network(x[k]), rtol=1e-5, atol=1e-5)
