"""Test that activations are recognized however they are written, and other signatures are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from recognition import PLAIN, Function, Wrapped, assert_recognized, assert_refused, plain
from torch import Tensor, nn

import hullo
from hullo.surgery.recognize import read_module


class TestSignatures:
    @pytest.mark.parametrize(
        "forward",
        [
            lambda self, x, mask=None: F.relu(x),
            lambda self, x, *rest: F.relu(x),
            lambda self, x, **named: F.relu(x),
            lambda self, x, *, scale=1.0: F.relu(x) * scale,
        ],
    )
    def test_additional_arguments_are_rejected_by_name(self, forward: Any) -> None:
        reading = read_module(type("Odd", (nn.Module,), {"forward": forward})())
        assert reading is not None
        assert reading.known is None
        assert "argument" in reading.reason

    def test_module_of_two_inputs_is_not_an_activation(self) -> None:
        assert read_module(type("Two", (nn.Module,), {"forward": lambda self, x, y: F.relu(x + y)})()) is None

    def test_forward_of_the_instance_is_not_called(self) -> None:
        module = nn.ReLU()
        module.forward = lambda x: pytest.fail("called")  # type: ignore[method-assign]
        reading = read_module(module)
        assert reading is not None
        assert reading.known is None

    def test_overridden_call_is_rejected(self) -> None:
        class Called(nn.ReLU):
            def __call__(self, x: Tensor) -> Tensor:
                return super().__call__(x) + 1

        reading = read_module(Called())
        assert reading is not None
        assert reading.known is None


class TestInPlace:
    @given(plain)
    def test_in_place_function_is_recognized(self, item: tuple[str, Function]) -> None:
        reading = read_module(Wrapped(lambda x: x.copy_(item[1](x.clone()))))
        assert reading is not None
        assert reading.known is not None
        assert (reading.known.name, reading.in_place) == (item[0], True)

    @given(plain, st.sampled_from(["zeroed", "copied", "half"]))
    def test_other_input_mutations_are_rejected(self, item: tuple[str, Function], kind: str) -> None:
        def function(x: Tensor) -> Tensor:
            y = item[1](x.clone())
            with torch.no_grad():
                x.copy_({"zeroed": torch.zeros_like(y), "copied": y, "half": y / 2}[kind])
            return y

        assert_refused(function, "input")


WRITTEN: list[tuple[str, Function]] = [
    ("relu", lambda x: x * (x > 0)),
    ("relu", lambda x: torch.max(x, torch.zeros_like(x))),
    ("relu", lambda x: (x + x.abs()) / 2),
    ("relu", lambda x: torch.where(x > 0, x, torch.zeros_like(x))),
    ("relu", lambda x: F.threshold(x, 0.0, 0.0)),
    ("leaky_relu(0.2)", lambda x: torch.maximum(x, 0.2 * x)),
    ("elu", lambda x: torch.where(x > 0, x, torch.exp(x) - 1)),
    ("elu(0.7)", lambda x: torch.where(x > 0, x, 0.7 * torch.expm1(x))),
    ("selu", lambda x: 1.05070098 * F.elu(x, 1.67326324)),
    ("tanh", lambda x: 2 * torch.sigmoid(2 * x) - 1),
    ("sigmoid", lambda x: 1 / (1 + torch.exp(-x))),
    ("softsign", lambda x: x / (1 + x.abs())),
    ("silu", lambda x: x / (1 + torch.exp(-x))),
    ("mish", lambda x: x * torch.tanh(torch.log1p(torch.exp(x)))),
    ("hardswish", lambda x: x * F.relu6(x + 3) / 6),
    ("hardsigmoid", lambda x: F.relu6(x + 3) / 6),
    ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
    ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * x * (1 + 0.044715 * x * x)))),
    ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3))))),
    ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
    ("arctan", lambda x: torch.atan2(x, torch.ones_like(x))),
    ("softplus", lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    ("unit_gelu", lambda x: 2 * F.gelu(x)),
]


@pytest.mark.parametrize(("name", "function"), WRITTEN)
def test_functions_are_recognized_in_any_formulation(name: str, function: Function) -> None:
    assert_recognized(function, name)


@pytest.mark.parametrize(("name", "function"), PLAIN.items())
def test_internal_float32_is_accepted(name: str, function: Function) -> None:
    assert_recognized(lambda x: function(x.float()).to(x.dtype), name)


@settings(max_examples=20)
@given(st.sampled_from(["leaky_relu", "elu", "celu", "softplus"]), st.floats(0.03, 8))
def test_parameters_are_identified(family: str, parameter: float) -> None:
    if parameter != 1:
        made = {"leaky_relu": nn.LeakyReLU, "elu": nn.ELU, "celu": nn.CELU, "softplus": nn.Softplus}[family](parameter)
        reading = read_module(made)
        assert reading is not None
        assert reading.known is not None, reading.reason
        assert float(reading.known.name.partition("(")[2].rstrip(")")) == pytest.approx(parameter, rel=1e-7)


class TestModulesOfOthers:
    def test_uncopyable_module_is_not_called(self) -> None:
        assert read_module(Wrapped(F.relu, handle=iter([1]).__iter__, lock=__import__("threading").Lock())) is None

    def test_reference_to_the_model_is_not_followed(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2))
        assert read_module(Wrapped(F.relu, parents=[model])) is None

    def test_prelu_subclass_is_recognized_if_it_computes_the_same(self) -> None:
        class Same(nn.PReLU):
            def forward(self, x: Tensor) -> Tensor:
                return F.prelu(x, self.weight)

        class Other(nn.PReLU):
            def forward(self, x: Tensor) -> Tensor:
                return F.prelu(x, self.weight.abs() + 0.1)

        same, other = read_module(Same(3)), read_module(Other(3))
        assert same is not None
        assert same.known == read_module(nn.PReLU(3)).known  # type: ignore[union-attr]
        assert other is None or other.known is None

    def test_prelu_without_values_is_rejected(self) -> None:
        reading = read_module(nn.PReLU(device="meta"))
        assert reading is not None
        assert reading.known is None

    def test_cache_depends_on_the_state(self) -> None:
        module = Wrapped(F.relu, slope=0.0)
        module.function = lambda x: F.leaky_relu(x, module.slope)
        names = []
        for module.slope in (0.1, 0.3, 0.1):
            reading = read_module(module)
            assert reading is not None
            assert reading.known is not None
            names.append(reading.known.name)
        assert names == ["leaky_relu(0.1)", "leaky_relu(0.3)", "leaky_relu(0.1)"]

    def test_base_added_later_is_found(self) -> None:
        module = Wrapped(lambda x: torch.relu(x) ** 5)
        assert read_module(module).known is None  # type: ignore[union-attr]
        hullo.add_base("fifth_power", lambda x: torch.relu(x) ** 5)
        assert read_module(module).known.name == "fifth_power"  # type: ignore[union-attr]
