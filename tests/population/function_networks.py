"""Networks that compute any function, and their comparison with a population of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hullo.population import Population


class Net(nn.Module):
    """Compute a function of a network and its input, with two layers and what `build` adds."""

    def __init__(self, compute: Callable[..., Tensor], build: Callable[[Any], None] | None = None) -> None:
        super().__init__()
        self.a, self.b, self.conv = nn.Linear(4, 4), nn.Linear(4, 4), nn.Conv2d(2, 2, 1)
        self.double()
        self.compute = compute
        if build is not None:
            build(self)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.compute(self, *inputs)


def assert_agrees(networks: list[Net], *inputs: Tensor) -> None:
    """Compare outputs and gradients in three calls, each member with an input of its own."""
    population = Population(networks)
    for _ in range(3):
        y = population(*inputs)
        expected = torch.stack([network(*(x[k] for x in inputs)) for k, network in enumerate(networks)])
        torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
        population.zero_grad()
        y.square().sum().backward()
        for k, network in enumerate(networks):
            network.zero_grad()
            expected[k].square().sum().backward(retain_graph=True)
        for name, parameter in population.stacked.named_parameters():
            alone = [network.get_parameter(name).grad for network in networks]
            if parameter.grad is None:
                assert alone == [None] * len(alone)
            else:
                torch.testing.assert_close(parameter.grad, torch.stack(alone), rtol=1e-10, atol=1e-10)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)
