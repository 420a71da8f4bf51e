"""Test that activations are recognized by what they compute."""

from __future__ import annotations

import pytest
import torch
from models_to_swap import assert_replaced
from torch import Tensor, nn

import hullo

MODULES: list[tuple[nn.Module, str]] = [
    (nn.ReLU(), "relu"),
    (nn.ReLU(inplace=True), "relu"),
    (nn.GELU(), "gelu"),
    (nn.GELU(approximate="tanh"), "gelu_tanh"),
    (nn.SiLU(), "silu"),
    (nn.Tanh(), "tanh"),
    (nn.LeakyReLU(0.2), "leaky_relu(0.2)"),
    (nn.ELU(0.3), "elu(0.3)"),
    (nn.CELU(0.5), "celu(0.5)"),
    (nn.SELU(), "selu"),
    (nn.Mish(), "mish"),
    (nn.Hardswish(), "hardswish"),
    (nn.Hardtanh(), "hardtanh"),
    (nn.Hardtanh(0.0, 6.0), "relu6"),
    (nn.ReLU6(), "relu6"),
    (nn.Softsign(), "softsign"),
]


@pytest.mark.parametrize(("module", "function"), MODULES, ids=lambda item: str(item))
def test_pytorch_activation_modules_are_recognized(module: nn.Module, function: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), module)
    assert hullo.summary(model).not_replaced[0].function == function
    assert_replaced(model, torch.randn(50, 4), hulls=["1"])


@pytest.mark.parametrize("count", [1, 5])
def test_prelu_slopes_become_coefficients(count: int) -> None:
    prelu = nn.PReLU(count)
    prelu.weight.data = torch.linspace(0.1, 0.9, count)
    model = nn.Sequential(nn.Conv1d(2, 5, 1), prelu)
    assert_replaced(model, torch.randn(3, 2, 4), hulls=["1"])
    assert model[1].groups == count
    torch.testing.assert_close(model[1].coefficients.reshape(count, 3)[:, 0], torch.linspace(0.1, 0.9, count))


class Unfamiliar(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.erf(x / 2.0**0.5))


def test_activation_class_is_recognized_by_its_values() -> None:
    assert_replaced(nn.Sequential(nn.Linear(4, 4), Unfamiliar()), torch.randn(3, 4), hulls=["1"])


def test_custom_base_is_recognized() -> None:
    hullo.add_base("relu_to_the_fourth", lambda x: torch.relu(x).square().square())

    class FourthPower(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x) ** 4

    model = hullo.replace_activations(nn.Sequential(nn.Linear(4, 4), FourthPower()))
    assert model[1].spelling == "affine(identity,tanh,relu_to_the_fourth)"


ACT2FN = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "silu": "silu",
    "swish": "silu", "mish": "mish", "relu": "relu", "relu6": "relu6", "leaky_relu": "leaky_relu", "tanh": "tanh",
    "hardswish": "hardswish", "sigmoid": "sigmoid", "relu2": "relu2", "xielu": "xielu", "laplace": "LaplaceActivation",
}  # fmt: skip


@pytest.mark.parametrize("name", ACT2FN)
def test_transformers_activations_are_recognized_or_reported(name: str) -> None:
    activations = pytest.importorskip("transformers.activations")
    (site,) = hullo.summary(nn.Sequential(activations.ACT2FN[name])).not_replaced
    assert site.function == ACT2FN[name]
    assert bool(site.reason) == site.function.endswith("Activation")
