"""Train the members of a population, and the same networks alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import plain_networks
import torch
from torch import Tensor, nn

import hullo
from hullo.population import SGD, Adam, AdamW, Optimizer, Population, RMSprop

STEPS, BATCH = 10, 4

ACTIVATIONS: list[Callable[[], nn.Module | None]] = [
    lambda: None,
    nn.Tanh,
    lambda: hullo.ConvexHull("identity", "relu", init=[0.0, 1.0]),
    lambda: hullo.AffineHull("identity", "relu", "tanh"),
    lambda: hullo.AffineHull("tanh", "relu", parametrization="free"),
    lambda: hullo.ConicHull("relu", "relu3"),
    nn.PReLU,
]
# Some gradients are zero but for rounding (biases before a normalization, keys' biases); a small eps would make steps
# of the rounding.
OPTIMIZERS: dict[str, tuple[type[Optimizer], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (SGD, torch.optim.SGD, {"lr": 0.005, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}),
    "rmsprop": (RMSprop, torch.optim.RMSprop, {"lr": 1e-3, "weight_decay": 1e-2, "eps": 1e-4}),
    "adam": (Adam, torch.optim.Adam, {"lr": 1e-2, "weight_decay": 1e-2, "eps": 1e-4}),
    "adamw": (AdamW, torch.optim.AdamW, {"lr": 1e-2, "eps": 1e-4}),
}


def make(kind: Callable[..., nn.Module], activations: Sequence[Callable[[], nn.Module | None]]) -> list[nn.Module]:
    members = []
    for seed, activation in enumerate(activations):
        torch.manual_seed(seed)
        members.append(kind(activation()).double())
    return members


def inputs_of(kind: type[nn.Module], members: int, steps: int = STEPS) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if kind is plain_networks.GPT:
        return torch.randint(11, (steps, members, BATCH, 7), generator=generator)
    shape = (6,) if kind is plain_networks.MLP else (3, 8, 8)
    return torch.randn(steps, members, BATCH, *shape, generator=generator, dtype=torch.float64)


def train(population: Population, optimizer: Optimizer, batches: Tensor) -> Tensor:
    losses = torch.zeros(len(population), dtype=torch.float64)
    for x in batches:
        losses = population(x).square().flatten(1).mean(1)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
    return losses.detach()


def train_alone(member: nn.Module, optimizer: torch.optim.Optimizer, batches: Tensor) -> Tensor:
    loss = torch.zeros(())
    for x in batches:
        loss = member(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


def assert_equal_states(one: nn.Module, other: nn.Module) -> None:
    state = other.state_dict()
    assert one.state_dict().keys() == state.keys()
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")
