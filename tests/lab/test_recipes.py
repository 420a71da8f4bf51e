"""RMSprop moves weights as Keras 2 does, step by step, each member at its own rate."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hullo.lab import networks
from hullo.lab.networks import Network
from hullo.lab.recipes import RMSprop


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    text = (Path(__file__).parent / "fixtures" / "keras2.json").read_text()
    return json.loads(text)["rmsprop"]


def population(*rows: str) -> Network:
    return networks.build("lenet5", activation=rows, members=len(rows), in_channels=1, image_size=16)


def give_gradients(network: Network, value: float = 0.0) -> None:
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, value)


def test_it_takes_the_recorded_steps_of_keras(recorded: dict[str, Any]) -> None:
    network = population("relu", "relu")  # a member for each of the two recorded learning rates
    weights = network.linear2.bias
    with torch.no_grad():
        weights.copy_(torch.tensor(recorded["start"]).expand(2, 1, 10))
    optimiser = RMSprop(network, lr=recorded["rates"], decay=recorded["decay"])
    for gradient, *expected in zip(recorded["gradients"], *recorded["paths"], strict=True):
        give_gradients(network)
        weights.grad = torch.tensor(gradient).expand(2, 1, 10).clone()
        optimiser.step()
        torch.testing.assert_close(weights.detach()[:, 0], torch.tensor(expected), rtol=2e-6, atol=1e-9)


def test_the_recorded_steps_tell_an_epsilon_beside_the_root_from_one_under_it(recorded: dict[str, Any]) -> None:
    def path(under: float, beside: float) -> Tensor:
        weights = torch.tensor(recorded["start"], dtype=torch.float64)
        square = torch.zeros_like(weights)
        for updates, gradient in enumerate(torch.tensor(recorded["gradients"], dtype=torch.float64)):
            square = 0.9 * square + 0.1 * gradient.square()
            rate = recorded["rates"][1] / (1 + recorded["decay"] * updates)
            weights = weights - rate * gradient / ((square + under).sqrt() + beside)
        return weights

    last = torch.tensor(recorded["paths"][1][-1], dtype=torch.float64)
    torch.testing.assert_close(path(under=1e-30, beside=1e-7), last, rtol=1e-6, atol=1e-9)
    assert (path(under=1e-7, beside=0.0) - last).abs().max() > 1e-3


def test_coefficients_move_at_their_own_multiple_of_the_rate() -> None:
    network = population("affine(identity,relu)", "relu")
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    optimiser = RMSprop(network, lr=[1e-3, 1e-2], decay=0.0, coefficient_lr_scale=3.0)
    give_gradients(network, 1.0)
    optimiser.step()
    first_step = 1 / (0.1**0.5 + 1e-7)
    for name, parameter in network.named_parameters():
        scale = 3.0 if name == "activations.raw" else 1.0
        moved = (before[name] - parameter.detach()).view(2, -1)
        for own, rate in zip(moved, (1e-3, 1e-2), strict=True):
            torch.testing.assert_close(own, torch.full_like(own, scale * rate * first_step), rtol=1e-4, atol=1e-6)


def test_a_missing_gradient_is_an_error_that_names_it_and_moves_nothing() -> None:
    network = population("relu")
    before = copy.deepcopy(network.state_dict())
    optimiser = RMSprop(network)
    give_gradients(network, 1.0)
    network.linear2.bias.grad = None
    with pytest.raises(RuntimeError, match=r"no gradient for linear2\.bias: call backward\(\)"):
        optimiser.step()
    assert all(torch.equal(before[key], tensor) for key, tensor in network.state_dict().items())
    assert int(optimiser.updates) == 0


def test_a_saved_state_goes_on_to_the_bit() -> None:
    def advance(network: Network, optimiser: RMSprop, steps: range) -> None:
        for step in steps:
            give_gradients(network, 0.3 - 0.1 * step)
            optimiser.step()

    straight, resumed = population("affine(identity,relu)"), population("affine(identity,relu)")
    one = RMSprop(straight, decay=0.5)
    advance(straight, one, range(6))
    first = RMSprop(resumed, decay=0.5)
    advance(resumed, first, range(3))
    saved = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    second = RMSprop(resumed, decay=0.5)
    second.load_state_dict(saved)
    advance(resumed, second, range(3, 6))
    for a, b in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_state_of_another_network_is_refused_and_changes_nothing() -> None:
    optimiser = RMSprop(population("affine(identity,relu)"))
    other = RMSprop(population("relu"))
    other.updates += 5
    with pytest.raises(ValueError, match=r"another network.*squares\.activations\.raw"):
        optimiser.load_state_dict(other.state_dict())
    assert int(optimiser.updates) == 0


@pytest.mark.parametrize(
    "options",
    [{"lr": -1.0}, {"lr": [0.1, 0.2]}, {"lr": float("nan")}, {"decay": -1e-6}, {"rho": 1.0}, {"epsilon": -1.0}],
)
def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=rf"{name}=.*: give "):
        RMSprop(population("relu"), **options)
