"""Test the warning about optimizers that do not update the hulls of the model they train."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import hullo


def made() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 8) -> None:
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def test_early_optimizer_warns_once_and_the_remedy_works() -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    hullo.replace_activations(model)
    with pytest.warns(UserWarning, match=r"coefficients of 1 hull \(1\).*add_param_group"):
        train(model, optimizer)
    before = model[1].coefficients.tolist()
    assert before == [0, 1, 0]
    optimizer.add_param_group({"params": hullo.coefficient_parameters(model), "weight_decay": 0.0})
    train(model, optimizer)
    assert model[1].coefficients.tolist() != before


@pytest.mark.parametrize(
    "optimizers",
    [
        lambda model: [torch.optim.Adam(model.parameters())],
        lambda model: [
            torch.optim.SGD(model[0].parameters(), lr=1e-3),
            torch.optim.Adam([*model[2].parameters(), *hullo.coefficient_parameters(model)]),
        ],
        lambda model: [torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1e-3)],
        lambda model: [torch.optim.SGD(model[1].requires_grad_(False) and model[0].parameters(), lr=1e-3)],
    ],
    ids=["all", "two optimizers", "another model", "frozen hulls"],
)
def test_correct_optimizers_do_not_warn(optimizers: Callable[[nn.Sequential], list[torch.optim.Optimizer]]) -> None:
    model = hullo.replace_activations(made())
    assert isinstance(model, nn.Sequential)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, *optimizers(model))


class WithoutHooks:
    """Update parameters as an optimizer of another library, which runs none of PyTorch's hooks."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self._parameters:
            parameter.add_(parameter.grad, alpha=-1e-3)  # type: ignore[arg-type]


def test_optimizer_without_hooks_that_updates_hulls_does_not_warn() -> None:
    model = made()
    weights = torch.optim.SGD(model.parameters(), lr=1e-3)
    hullo.replace_activations(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, weights, WithoutHooks(hullo.coefficient_parameters(model)))  # type: ignore[arg-type]


def test_steps_before_the_replacement_are_not_counted() -> None:
    other = hullo.replace_activations(made())  # its hulls get gradients, too, and are still watched
    other(torch.randn(5, 3)).sum().backward()
    model = made()
    weights = torch.optim.SGD(model.parameters(), lr=1e-3)
    train(model, weights)
    hullo.replace_activations(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, weights, torch.optim.Adam(hullo.coefficient_parameters(model)))


def test_replacing_twice_reports_existing_hulls() -> None:
    model = hullo.replace_activations(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    with pytest.raises(ValueError, match="1 hulls already, such as 1, and no other activations"):
        hullo.replace_activations(model)
    with pytest.raises(ValueError, match=r"1 hulls already, .*2 \(sigmoid\)"):
        hullo.replace_activations(model.append(nn.Sigmoid()))  # type: ignore[operator]
