"""Test which known function a module or a function is found to be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hullo
from hullo.recognition.known import Reading
from hullo.recognition.probe import read_function, read_module
from hullo.recognition.table import read_call

Function = Callable[[Tensor], Tensor]

PLAIN: dict[str, Function] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "tanh": torch.tanh, "leaky_relu(0.2)": lambda x: F.leaky_relu(x, 0.2), "elu(0.5)": lambda x: F.elu(x, 0.5),
    "mish": F.mish, "hardswish": F.hardswish, "selu": F.selu, "sigmoid": torch.sigmoid, "softsign": F.softsign,
}  # fmt: skip
plain = st.sampled_from(list(PLAIN.items()))


class Wrapped(nn.Module):
    """Call a function, as an activation module that a user wrote."""

    def __init__(self, function: Function, **attributes: Any) -> None:
        super().__init__()
        self.function = function
        self.__dict__.update(attributes)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def readings(function: Function) -> list[Reading | None]:
    return [read_function(function), read_module(Wrapped(function))]


def assert_refused(function: Function, named: str = "") -> None:
    for reading in readings(function):
        assert reading is None or reading.known is None
        assert named in (reading.reason if reading else "")


def assert_recognized(function: Function, name: str, scale: float = 1.0) -> None:
    for reading in readings(function):
        assert reading is not None, name
        assert reading.known is not None, reading.reason
        assert reading.known.name == name
        assert reading.known.rows == ((pytest.approx(scale, rel=1e-6),),)


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


@pytest.mark.parametrize(
    ("name", "function", "scale"),
    [
        ("sin(30)", lambda x: torch.sin(30 * x), 1.0),  # SIREN
        ("unit_softplus", lambda x: F.softplus(x) - math.log(2), 0.5),  # SchNet
        ("silu", lambda x: F.silu(x) / 0.6, 1 / 0.6),  # GemNet
        ("tanh", lambda x: 1.7159 * torch.tanh(x), 1.7159),
    ],
)
def test_constants_outside_and_inside_are_recognized(name: str, function: Function, scale: float) -> None:
    assert_recognized(function, name, scale)


def test_scaled_module_starts_a_linear_hull() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Wrapped(lambda x: F.silu(x) / 0.6))
    x = torch.randn(5, 4)
    before = model(x)
    hullo.replace_activations(model, example_inputs=x)
    assert isinstance(model[1], hullo.LinearHull)
    torch.testing.assert_close(model(x), before)


@given(plain, st.floats(-6, -1).map(lambda exponent: 10**exponent), st.booleans())
def test_offsets_are_detected(item: tuple[str, Function], offset: float, of_input: bool) -> None:
    assert_refused(lambda x: item[1](x + offset) if of_input else item[1](x) + offset)


NOT_ELEMENTWISE: dict[str, Function] = {
    "softmax": lambda x: F.softmax(x, -1),
    "normalized": lambda x: F.relu(x - x.mean()),
    "sorted": lambda x: x.relu().sort()[0],
    "linear": lambda x: 2 * x + 1,
    "shape": lambda x: F.relu(x)[..., :1],
    "random": lambda x: F.relu(x) + torch.rand(()),
}


@pytest.mark.parametrize("name", NOT_ELEMENTWISE)
def test_other_functions_are_no_activations(name: str) -> None:
    assert readings(NOT_ELEMENTWISE[name]) == [None, None]


DETACHED: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "straight through": lambda f, x: x + (f(x) - x).detach(),
    "detached": lambda f, x: f(x).detach(),
    "half detached": lambda f, x: 0.5 * f(x) + 0.5 * f(x).detach(),
    "for some": lambda f, x: torch.where(x > 2, f(x).detach(), f(x)),
}


@given(plain, st.sampled_from(list(DETACHED)))
def test_other_gradients_are_detected(item: tuple[str, Function], kind: str) -> None:
    assert_refused(lambda x: DETACHED[kind](item[1], x))


@given(plain)
def test_in_place_function_is_recognized(item: tuple[str, Function]) -> None:
    reading = read_module(Wrapped(lambda x: x.copy_(item[1](x.clone()))))
    assert reading is not None
    assert reading.known is not None
    assert reading.known.name == item[0]


def test_functions_that_depend_on_the_mode_are_refused() -> None:
    class Modes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu() if self.training else x.tanh()

    reading = read_module(Modes())
    assert reading is not None
    assert "training" in reading.reason


def test_module_of_children_is_one_activation() -> None:
    class HardSigmoid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU6()

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(x + 3) / 6

    class HardSwish(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sigmoid = HardSigmoid()

        def forward(self, x: Tensor) -> Tensor:
            return x * self.sigmoid(x)

    model = nn.Sequential(nn.Linear(4, 4), HardSwish())
    hullo.replace_activations(model, example_inputs=torch.randn(3, 4))
    assert model[1].spelling == "affine(identity,tanh,hardswish)"


@pytest.mark.parametrize(
    "forward",
    [lambda self, x, mask=None: F.relu(x), lambda self, x, *rest: F.relu(x), lambda self, x, **named: F.relu(x)],
)
def test_additional_arguments_are_refused(forward: Any) -> None:
    reading = read_module(type("Odd", (nn.Module,), {"forward": forward})())
    assert reading is not None
    assert reading.known is None
    assert "argument" in reading.reason


def test_module_of_two_inputs_is_no_activation() -> None:
    assert read_module(type("Two", (nn.Module,), {"forward": lambda self, x, y: F.relu(x + y)})()) is None


def test_prelu_subclass_is_recognized_only_if_it_has_the_forward() -> None:
    class Other(nn.PReLU):
        def forward(self, x: Tensor) -> Tensor:
            return F.prelu(x, self.weight.abs() + 0.1)

    assert read_module(type("Same", (nn.PReLU,), {})(3)) == read_module(nn.PReLU(3))
    assert read_module(Other(3)) is None
    assert read_module(nn.PReLU(device="meta")).known is None  # type: ignore[union-attr]


def test_base_added_later_is_found() -> None:
    module = Wrapped(lambda x: torch.relu(x) ** 5)
    assert read_module(module).known is None  # type: ignore[union-attr]
    hullo.add_base("fifth_power", lambda x: torch.relu(x) ** 5)
    assert read_module(module).known.name == "fifth_power"  # type: ignore[union-attr]


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], str | None]] = [
    (F.relu, (), {}, "relu"),
    (torch.Tensor.tanh_, (), {}, "tanh"),
    (F.leaky_relu, (0.2,), {}, "leaky_relu(0.2)"),
    (F.leaky_relu, (), {"negative_slope": 0.01}, "leaky_relu"),
    (F.elu, (), {"alpha": 0.5, "inplace": True}, "elu(0.5)"),
    (F.gelu, (), {"approximate": "tanh"}, "gelu_tanh"),
    (F.softplus, (2.0,), {}, "softplus(2)"),
    (F.softplus, (1.0, 3.0), {}, None),
    (F.hardtanh, (0.0, 6.0), {}, "relu6"),
    (F.hardtanh, (-2.0, 2.0), {}, None),
    (F.threshold, (0.0, 0.0), {}, "relu"),
    (torch.special.expit, (), {}, "sigmoid"),
    (F.glu, (), {}, None),
    (F.leaky_relu, (torch.tensor(0.1),), {}, None),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "name"), CALLS)
def test_calls_are_read_by_their_settings(function: Any, args: Any, kwargs: Any, name: str | None) -> None:
    reading = read_call(function, (torch.zeros(1), *args), kwargs)
    assert (reading.known and reading.known.name) == name
    assert bool(reading.reason) == (name is None)


MODULES = [
    nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh(), nn.LeakyReLU(0.2), nn.ELU(0.3), nn.CELU(0.5),
    nn.SELU(), nn.Mish(), nn.Hardswish(), nn.Hardtanh(), nn.Hardtanh(0.0, 6.0), nn.ReLU6(), nn.Softsign(), nn.Sigmoid(),
    nn.Hardsigmoid(), nn.Softplus(2.0), nn.Threshold(0.0, 0.0),
]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_type_and_settings_tell_what_values_tell(module: nn.Module) -> None:
    by_values = read_function(module.forward)
    assert by_values is not None
    assert by_values.known is not None
    assert read_module(module) == by_values
