"""Define models of several styles, and check what must hold after replacing their activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hullo


def assert_replaced(model: nn.Module, *inputs: Tensor, hulls: list[str] | None = None, tolerance: float = 1e-6) -> None:
    """Assert that replacing keeps the outputs, and gives every site its own coefficients and these a gradient."""
    model.eval()
    names = set(model.state_dict())
    with torch.no_grad():
        before = model(*inputs)
        after = hullo.replace_activations(model, example_inputs=inputs)(*inputs)
    torch.testing.assert_close(after, before, rtol=tolerance, atol=tolerance)
    actual = hullo.summary(model).hulls
    assert {name for name in names if name.rpartition(".")[0] not in actual} <= set(model.state_dict())
    assert len({id(hull.raw) for hull in actual.values()}) == len(actual)
    if hulls is not None:
        assert sorted(actual) == sorted(hulls)
    model.train()
    result = model(*inputs)
    result.square().sum().backward()
    for name, hull in actual.items():
        assert hull.raw.grad is not None, name
        assert bool(hull.raw.grad.abs().sum() > 0), name


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class FunctionalNet(nn.Module):
    """A CNN in functional style, with most ways of calling an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.slope = 0.2
        self.__scale = 2.0

    def forward(self, x: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return a docstring
        of two lines."""
        x = F.relu(self.first(x))
        x = torch.tanh(self.second(x)).relu() * self.__scale
        if offset is not None:
            x = x + offset
        x = F.dropout(x, 0.5, self.training)
        x = F.leaky_relu(x.mean((2, 3)) - 0.1, negative_slope=self.slope)
        for i, layer in enumerate(self.layers):
            x = F.gelu(layer(x), approximate="tanh") if i < len(self.layers) - 1 else layer(x)
        return swish(x)


FUNCTIONAL_SITES = [
    "first_relu",
    "second_tanh",
    "second_relu",
    "second_leaky_relu",
    "layers_gelu_tanh.0",
    "layers_gelu_tanh.1",
    "layers_silu",
]


class Block(nn.Module):
    """One in-place module, called twice, as residual blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.first(x))
        return self.relu(self.second(out) + x)


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def step(self, x: Tensor, slope: float) -> Tensor:
        return F.leaky_relu(self.layer(x), slope)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.step(self.step(x, 0.1), 0.3))


class Child(Parent):
    def forward(self, x: Tensor) -> Tensor:
        act = torch.tanh
        return act(super().forward(x) + super().forward(-x))
