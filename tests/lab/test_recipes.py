"""RMSprop moves weights as Keras 2 does and SGD as Caffe does, step by step, each member at its own rate."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hullo.lab import networks
from hullo.lab.networks import Network
from hullo.lab.recipes import SGD, Optimiser, RMSprop

every_recipe = pytest.mark.parametrize(
    "recipe", [partial(RMSprop, decay=0.5), partial(SGD, every=2)], ids=["rms", "sgd"]
)


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
    optimiser = RMSprop(network, lr=[1e-3, 1e-2], decay=0.0, coefficient_lr_scale=[3.0, 5.0])
    give_gradients(network, 1.0)
    optimiser.step()
    first_step = 1 / (0.1**0.5 + 1e-7)
    for name, parameter in network.named_parameters():
        scales = (3.0, 5.0) if name == "activations.raw" else (1.0, 1.0)
        moved = (before[name] - parameter.detach()).view(2, -1)
        for own, rate, scale in zip(moved, (1e-3, 1e-2), scales, strict=True):
            torch.testing.assert_close(own, torch.full_like(own, scale * rate * first_step), rtol=1e-4, atol=1e-6)


@every_recipe
def test_a_missing_gradient_is_an_error_that_names_it_and_moves_nothing(recipe: Callable[..., Optimiser]) -> None:
    network = population("relu")
    before = copy.deepcopy(network.state_dict())
    optimiser = recipe(network)
    give_gradients(network, 1.0)
    network.linear2.bias.grad = None
    with pytest.raises(RuntimeError, match=r"no gradient for linear2\.bias: call backward\(\)"):
        optimiser.step()
    assert all(torch.equal(before[key], tensor) for key, tensor in network.state_dict().items())
    assert int(optimiser.updates) == 0


@every_recipe
def test_a_saved_state_goes_on_to_the_bit(recipe: Callable[..., Optimiser]) -> None:
    def advance(network: Network, optimiser: Optimiser, steps: range) -> None:
        for step in steps:
            give_gradients(network, 0.3 - 0.1 * step)
            optimiser.step()

    straight, resumed = population("affine(identity,relu)"), population("affine(identity,relu)")
    one = recipe(straight)
    advance(straight, one, range(6))
    first = recipe(resumed)
    advance(resumed, first, range(3))
    saved = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    second = recipe(resumed)
    second.load_state_dict(saved)
    advance(resumed, second, range(3, 6))
    for a, b in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


@every_recipe
def test_the_state_of_another_network_is_refused_and_changes_nothing(recipe: Callable[..., Optimiser]) -> None:
    optimiser = recipe(population("affine(identity,relu)"))
    other = recipe(population("relu"))
    other.updates += 5
    with pytest.raises(ValueError, match=r"another network.*(squares|velocities)\.activations\.raw"):
        optimiser.load_state_dict(other.state_dict())
    assert int(optimiser.updates) == 0


def test_the_state_of_another_recipe_is_refused() -> None:
    network = population("relu")
    with pytest.raises(ValueError, match=r"differ in .*squares\.conv1\.bias"):
        SGD(network).load_state_dict(RMSprop(network).state_dict())


@pytest.mark.parametrize(
    "options",
    [{"lr": -1.0}, {"lr": [0.1, 0.2]}, {"lr": float("nan")}, {"decay": -1e-6}, {"rho": 1.0}, {"epsilon": -1.0}],
)
def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=rf"{name}=.*: give "):
        RMSprop(population("relu"), **options)


class TestSGD:
    """Rates and factors are exact in float32, so that float64 parameters can be held to float64's accuracy."""

    @staticmethod
    def gradients(network: Network, steps: int) -> list[dict[str, Tensor]]:
        return [{name: torch.randn_like(p) for name, p in network.named_parameters()} for _ in range(steps)]

    @staticmethod
    def take(network: Network, optimiser: Optimiser | torch.optim.Optimizer, gradients: dict[str, Tensor]) -> None:
        for name, parameter in network.named_parameters():
            parameter.grad = gradients[name].clone()
        optimiser.step()

    def test_it_takes_the_steps_of_caffes_solver_across_two_falls_of_the_rate(self) -> None:
        network = population("affine(identity,relu)", "relu").double()
        rates, scales, momentum, decay, every = (2.0**-5, 2.0**-7), (4.0, 8.0), 0.9, 0.05, 2
        optimiser = SGD(network, lr=rates, gamma=0.25, every=every, coefficient_lr_scale=scales, weight_decay=decay)
        weights = {name: p.detach().unflatten(0, (2, -1)).clone() for name, p in network.named_parameters()}
        history = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for updates, gradients in enumerate(self.gradients(network, 5)):
            self.take(network, optimiser, gradients)
            for name, parameter in network.named_parameters():
                for k in range(2):
                    weight = weights[name][k]
                    rate, own_decay = rates[k] * 0.25 ** (updates // every), decay
                    if name.endswith(".bias"):
                        rate, own_decay = 2 * rate, 0.0
                    if name == "activations.raw":
                        rate, own_decay = scales[k] * rate, 0.0
                    difference = gradients[name].unflatten(0, (2, -1))[k] + own_decay * weight
                    history[name][k] = momentum * history[name][k] + rate * difference
                    weights[name][k] = weight - history[name][k]
                found = parameter.detach().unflatten(0, (2, -1))
                torch.testing.assert_close(found, weights[name], rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize("weight_decay", [0.0, 0.05])
    def test_at_a_constant_rate_it_is_pytorchs(self, weight_decay: float) -> None:
        ours, theirs = (population("relu").double() for _ in range(2))
        biases = [p for name, p in theirs.named_parameters() if name.endswith("bias")]
        others = [p for name, p in theirs.named_parameters() if not name.endswith("bias")]
        groups = [{"params": others, "weight_decay": weight_decay}, {"params": biases, "lr": 2 * 2.0**-6}]
        peer = torch.optim.SGD(groups, lr=2.0**-6, momentum=0.9)
        optimiser = SGD(ours, lr=2.0**-6, weight_decay=weight_decay)
        for gradients in self.gradients(ours, 4):
            self.take(ours, optimiser, gradients)
            self.take(theirs, peer, gradients)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize(
        ("updates", "falls"),
        [(0, 0), (99_999, 0), (100_000, 1), (199_999, 1), (200_000, 2), (449_999, 4)],
    )
    def test_the_rate_falls_at_exactly_every_100_000_updates(self, updates: int, falls: int) -> None:
        optimiser = SGD(population("relu", "relu"), lr=[0.01, 0.03])
        optimiser.updates.fill_(updates)
        expected = torch.tensor([0.01, 0.03]) * 0.1**falls
        torch.testing.assert_close(optimiser.current_rates(), expected, rtol=1e-6, atol=0)

    def test_what_was_gathered_at_a_higher_rate_is_spent_after_it_has_fallen(self) -> None:
        network = population("relu")
        optimiser = SGD(network, lr=0.25, gamma=0.0, every=1, momentum=0.5, weight_decay=0.0)
        before = network.conv1.weight.detach().clone()
        give_gradients(network, 1.0)
        for moved in (0.25, 0.25 + 0.125, 0.25 + 0.125 + 0.0625):
            optimiser.step()
            torch.testing.assert_close(before - network.conv1.weight.detach(), torch.full_like(before, moved))

    def test_without_a_gradient_weights_decay_and_coefficients_do_not(self) -> None:
        network = population("affine(identity,relu)", "relu")
        before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
        optimiser = SGD(network, lr=0.01, weight_decay=0.5)
        give_gradients(network)
        optimiser.step()
        assert torch.equal(network.activations.raw, before["activations.raw"])
        torch.testing.assert_close(network.linear1.weight.detach(), before["linear1.weight"] * (1 - 0.01 * 0.5))

    @pytest.mark.parametrize(
        "options",
        [{"lr": -1.0}, {"gamma": -0.1}, {"every": 0}, {"every": 2.5}, {"momentum": 1.0}, {"weight_decay": -1e-4}],
    )
    def test_options_that_make_no_sense_are_refused_by_name(self, options: dict[str, Any]) -> None:
        (name,) = options
        with pytest.raises(ValueError, match=rf"{name}=.*: give "):
            SGD(population("relu"), **options)

    @pytest.mark.gpu
    def test_the_rate_falls_within_a_cuda_graph(self) -> None:
        graphed, eager = (population("affine(identity,relu)", "relu").cuda() for _ in range(2))
        optimisers = [SGD(network, every=2) for network in (graphed, eager)]
        for network in (graphed, eager):
            give_gradients(network, 1.0)
        for optimiser in optimisers:
            optimiser.step()  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            optimisers[0].step()
        for _ in range(4):
            graph.replay()
            optimisers[1].step()
        for a, b in zip(graphed.parameters(), eager.parameters(), strict=True):
            assert torch.equal(a, b)
