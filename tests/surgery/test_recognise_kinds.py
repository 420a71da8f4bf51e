"""What only looks like an activation is not taken for one; what is one is, however it is written.

Each kind of impostor is generated: any activation, spoilt in any place or by any amount.
"""

from __future__ import annotations

import copy
import logging
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hullo
from hullo.surgery.recognise import Reading, read_function, read_module

Function = Callable[[Tensor], Tensor]

PLAIN: dict[str, Function] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "tanh": torch.tanh, "leaky_relu(0.2)": lambda x: F.leaky_relu(x, 0.2), "elu(0.5)": lambda x: F.elu(x, 0.5),
    "mish": F.mish, "hardswish": F.hardswish, "selu": F.selu, "sigmoid": torch.sigmoid, "softsign": F.softsign,
}  # fmt: skip
plain = st.sampled_from(list(PLAIN.items())).filter(lambda item: item[0] != "sigmoid")
magnitudes = st.floats(1.7, 30).map(lambda exponent: 10**exponent)


class Wrapped(nn.Module):
    """An activation written by somebody."""

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


def assert_is_no_activation(function: Function) -> None:
    assert readings(function) == [None, None]


def assert_recognised(function: Function, name: str) -> None:
    for reading in readings(function):
        assert reading is not None, name
        assert reading.known is not None, reading.reason
        assert reading.known.name == name


@pytest.mark.parametrize(("name", "function"), PLAIN.items())
def test_plain_functions_are_recognised(name: str, function: Function) -> None:
    assert_recognised(function, name)


MIXES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "mean": lambda y, amount: y + amount * y.clamp(-9, 9).mean(),
    "mean of the batch": lambda y, amount: y + amount * y.clamp(-9, 9).mean(0),
    "mean of a row": lambda y, amount: y + amount * y.clamp(-9, 9).mean(-1, keepdim=True),
    "largest": lambda y, amount: y / (1 + amount * y.abs().max().clamp(max=9)),
    "norm": lambda y, amount: y / (1 + amount * y.clamp(-9, 9).norm(dim=-1, keepdim=True)),
    "neighbour": lambda y, amount: y + amount * y.clamp(-9, 9).roll(1, -1),
    "first row": lambda y, amount: y + amount * y[:1].clamp(-9, 9),
    "sum so far": lambda y, amount: y + amount * y.clamp(-9, 9).cumsum(0),
}


@given(plain, st.sampled_from(list(MIXES)), st.floats(-9, 0).map(lambda exponent: 10**exponent))
def test_what_mixes_entries_is_no_activation(item: tuple[str, Function], mix: str, amount: float) -> None:
    assert_is_no_activation(lambda x: MIXES[mix](item[1](x), amount))


SHAPES: dict[str, Function] = {
    "flatten": torch.flatten,
    "flatten from 1": lambda y: y.flatten(1),
    "rows": lambda y: y.reshape(len(y), -1),
    "transpose": lambda y: y.transpose(0, -1),
    "flip": lambda y: y.flip(0),
    "flip columns": lambda y: y.flip(-1),
    "sort": lambda y: y.sort(-1).values,
    "unsqueeze": lambda y: y.unsqueeze(0),
    "squeeze": lambda y: y[None].squeeze(),
    "flip large batches": lambda y: y.flip(0) if len(y) > 32 else y,
    "average images": lambda y: y.mean((2, 3), keepdim=True).expand_as(y) if y.dim() == 4 else y,
    "channels last": lambda y: y.movedim(1, -1) if y.dim() == 4 else y,
    "volumes": lambda y: y.flip(1) if y.dim() == 5 else y,
    "tuple": lambda y: (y,),  # type: ignore[dict-item, return-value]
    "integers": lambda y: y.long(),
}


@given(plain, st.sampled_from(list(SHAPES)), st.booleans())
def test_what_moves_entries_is_no_activation(item: tuple[str, Function], shape: str, first: bool) -> None:
    if first and shape not in ("tuple", "integers"):
        assert_is_no_activation(lambda x: item[1](SHAPES[shape](x)))
    else:
        assert_is_no_activation(lambda x: SHAPES[shape](item[1](x)))


CONDITIONS: dict[str, Callable[[Tensor], Any]] = {
    "none is negative": lambda x: x.min() >= 0,
    "none is positive": lambda x: x.max() <= 0,
    "all are small": lambda x: x.abs().max() < 1,
    "all are large": lambda x: x.abs().min() > 100,
    "all are zero": lambda x: not x.any(),
    "few": lambda x: x.numel() < 40,
    "many": lambda x: x.numel() > 100,
    "one dimension": lambda x: x.dim() == 1,
    "three dimensions": lambda x: x.dim() == 3,
}


@given(plain, st.sampled_from(list(CONDITIONS)))
def test_what_depends_on_the_whole_input_is_no_activation(item: tuple[str, Function], condition: str) -> None:
    assert_is_no_activation(lambda x: item[1](x) * 2 + 1 if CONDITIONS[condition](x) else item[1](x))


@given(plain.filter(lambda item: item[0] not in ("tanh", "softsign")), magnitudes, st.booleans())
def test_clamps_far_out_are_noticed(item: tuple[str, Function], bound: float, of_input: bool) -> None:
    if of_input:
        assert_refused(lambda x: item[1](x.clamp(-bound, bound)), "catalogue")
    else:
        assert_refused(lambda x: item[1](x).clamp(-bound, bound), "catalogue")


@given(plain, st.floats(-60, 60), st.floats(-5, 0).map(lambda exponent: 10**exponent), st.floats(1e-5, 0.1))
def test_windows_are_noticed_wherever_they_are(
    item: tuple[str, Function], start: float, width: float, change: float
) -> None:
    end = start + width
    assert_refused(lambda x: torch.where((x > start) & (x < end), item[1](x) + change, item[1](x)))


@given(plain, st.floats(-60, 60), st.floats(0.05, 1), st.floats(1e-5, 0.1))
def test_wide_windows_are_noticed_without_reading_numbers_in_the_code(
    item: tuple[str, Function], start: float, width: float, change: float
) -> None:
    hidden = {"init": torch.tensor([start, 0.0])}  # a tensor of two is no number that the code mentions
    assert_refused(
        lambda x: torch.where(
            (x - hidden["start"][0].to(x) - width / 2).abs() < width / 2, item[1](x) + change, item[1](x)
        )
    )


@given(plain, st.floats(-11, -1).map(lambda exponent: 10**exponent), st.sampled_from([-1, 1]), st.booleans())
def test_offsets_are_noticed(item: tuple[str, Function], offset: float, sign: int, of_input: bool) -> None:
    if of_input:
        assert_refused(lambda x: item[1](x + sign * offset), "catalogue")
    else:
        assert_refused(lambda x: item[1](x) + sign * offset, "catalogue")


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("offset", [1e-7, -1e-6])
def test_offsets_in_float32_inside_are_noticed(name: str, offset: float) -> None:
    assert_refused(lambda x: (PLAIN[name](x.float()) + offset).to(x.dtype), "catalogue")


@given(plain, st.floats(-5.5, -1).map(lambda exponent: 10**exponent))
def test_scales_are_noticed(item: tuple[str, Function], amount: float) -> None:
    assert_refused(lambda x: item[1](x) * (1 + amount), "catalogue")


class Backward(torch.autograd.Function):
    """A function with a backward pass that somebody wrote."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Function, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function, ctx.change = function, change
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return ctx.change(torch.autograd.grad(ctx.function(x), x, gradient)[0]), None, None


BACKWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "reversed": torch.neg,
    "halved": lambda g: 0.5 * g,
    "scaled a little": lambda g: 1.0001 * g,
    "clipped": lambda g: g.clamp(-1, 1),
    "signs": torch.sign,
    "normalised": lambda g: g / g.norm().clamp_min(1e-6),
    "zero": torch.zeros_like,
    "noisy": lambda g: g + 1e-3,
}


@given(plain, st.sampled_from(list(BACKWARDS)), st.sampled_from([torch.float32, torch.float64, None]))
def test_other_gradients_are_noticed(item: tuple[str, Function], change: str, only: torch.dtype | None) -> None:
    def function(x: Tensor) -> Tensor:
        changed = only in (None, x.dtype) and not (change == "scaled a little" and x.dtype == torch.float32)
        result: Tensor = Backward.apply(x, item[1], BACKWARDS[change] if changed else torch.clone)
        return result

    if (change, only) != ("scaled a little", torch.float32):  # which is rounding
        assert_refused(function, "gradient")


DETACHED: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "straight through": lambda f, x: x + (f(x) - x).detach(),
    "detached": lambda f, x: f(x).detach(),
    "half detached": lambda f, x: 0.5 * f(x) + 0.5 * f(x).detach(),
    "without gradients": lambda f, x: torch.no_grad()(f)(x),
    "for some": lambda f, x: torch.where(x > 2, f(x).detach(), f(x)),
}


@given(plain, st.sampled_from(list(DETACHED)))
def test_detached_parts_are_noticed(item: tuple[str, Function], kind: str) -> None:
    assert_refused(lambda x: DETACHED[kind](item[1], x))


@pytest.mark.parametrize(("name", "function"), PLAIN.items())
def test_a_backward_pass_of_ones_own_may_be_right(name: str, function: Function) -> None:
    assert_recognised(lambda x: Backward.apply(x, function, torch.clone), name)


SETTINGS: dict[str, Callable[[Tensor], Any]] = {
    "requires_grad": lambda x: x.requires_grad,
    "grad mode": lambda x: torch.is_grad_enabled(),
    "autocast": lambda x: torch.is_autocast_enabled("cpu"),
    "float64": lambda x: x.dtype == torch.float64,
    "float32": lambda x: x.dtype == torch.float32,
    "float16": lambda x: x.dtype == torch.float16,
    "bfloat16": lambda x: x.dtype == torch.bfloat16,
}


@given(plain, st.sampled_from(list(SETTINGS)))
def test_what_depends_on_settings_is_refused(item: tuple[str, Function], setting: str) -> None:
    assert_refused(lambda x: item[1](x) + 1 if SETTINGS[setting](x) else item[1](x))


@given(plain, st.sampled_from([torch.float64, torch.float32, torch.float16]))
def test_what_returns_another_type_is_refused(item: tuple[str, Function], dtype: torch.dtype) -> None:
    assert_refused(lambda x: item[1](x).to(dtype))


class Stateful(nn.Module):
    def __init__(self, function: Function, kind: str) -> None:
        super().__init__()
        self.function, self.kind = function, kind
        self.calls, self.seen, self.last = 0, [], torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "counts":
            self.calls += 1
        if self.kind == "collects":
            self.seen.append(x.shape)
        if self.kind == "keeps":
            self.last = x.detach()
        if self.kind == "writes":
            self.last += 1
        if self.kind == "sets":
            self.other = True
        return self.function(x)


@given(plain, st.sampled_from(["counts", "collects", "keeps", "writes", "sets"]))
def test_modules_with_state_are_refused_and_left_as_they_were(item: tuple[str, Function], kind: str) -> None:
    module = Stateful(item[1], kind)
    before = copy.deepcopy(vars(module))
    reading = read_module(module)
    assert reading is None or reading.known is None
    assert vars(module).keys() == before.keys()
    assert (module.calls, module.seen, module.last.tolist()) == (0, [], [0.0])


CALLS = 0
SEEN: list[Any] = []
TABLE: dict[str, Any] = {"calls": 0}


class Shared(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return F.relu(x)


def test_variables_around_a_function_are_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    count, total = 0, torch.zeros(2)

    def with_global(x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        return F.relu(x)

    def with_nonlocal(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return F.relu(x)

    def with_tensor(x: Tensor) -> Tensor:
        total.add_(1)
        return F.relu(x)

    def with_table(x: Tensor) -> Tensor:
        TABLE["calls"] += 1
        TABLE["last"] = x
        return F.relu(x)

    def with_log(x: Tensor) -> Tensor:
        logging.getLogger("activation").warning("called")
        return F.relu(x)

    def with_list(x: Tensor) -> Tensor:
        SEEN.append(x)
        return F.relu(x)

    for function in (with_global, with_nonlocal, with_tensor, with_table, with_list):
        assert_refused(function)
    reading = read_module(Shared())
    assert reading is not None
    assert reading.known is None
    read_function(with_log)
    assert (CALLS, count, total.tolist(), TABLE, SEEN, Shared.calls) == (0, 0, [0.0, 0.0], {"calls": 0}, [], 0)
    assert not caplog.records


RANDOM: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "noise": lambda f, x: f(x) + 1e-3 * torch.randn_like(x),
    "noise in training": lambda f, x: f(x) * (1 + 1e-3 * torch.rand_like(x)),
    "dropout": lambda f, x: F.dropout(f(x), 0.1),
    "seldom": lambda f, x: f(x) if float(torch.rand(())) < 0.9999 else -f(x),
    "Python's": lambda f, x: f(x) if random.random() < 0.9999 else -f(x),
    "NumPy's": lambda f, x: f(x) if np.random.rand() < 0.9999 else -f(x),
}


@given(plain, st.sampled_from(list(RANDOM)))
def test_random_functions_are_refused_and_draw_nothing(item: tuple[str, Function], kind: str) -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert_refused(lambda x: RANDOM[kind](item[1], x))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


def test_what_prints_is_refused_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(lambda x: (print("called"), F.relu(x))[1], "prints")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("training", [False, True])
def test_a_module_that_depends_on_its_mode_is_refused(training: bool) -> None:
    class Moody(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x) if self.training == training else F.leaky_relu(x, 1e-3)

    reading = read_module(Moody())
    assert reading is not None
    assert reading.known is None
    assert "training" in reading.reason


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
    def test_further_arguments_are_refused_and_named(self, forward: Any) -> None:
        reading = read_module(type("Odd", (nn.Module,), {"forward": forward})())
        assert reading is not None
        assert reading.known is None
        assert "argument" in reading.reason

    def test_two_inputs_are_no_activation(self) -> None:
        assert read_module(type("Two", (nn.Module,), {"forward": lambda self, x, y: F.relu(x + y)})()) is None

    def test_a_forward_of_the_instance_is_not_called(self) -> None:
        module = nn.ReLU()
        module.forward = lambda x: pytest.fail("called")  # type: ignore[method-assign]
        reading = read_module(module)
        assert reading is not None
        assert reading.known is None

    def test_a_call_of_ones_own_is_refused(self) -> None:
        class Called(nn.ReLU):
            def __call__(self, x: Tensor) -> Tensor:
                return super().__call__(x) + 1

        reading = read_module(Called())
        assert reading is not None
        assert reading.known is None


class TestInPlace:
    @given(plain)
    def test_a_function_in_place_is_recognised_as_that(self, item: tuple[str, Function]) -> None:
        reading = read_module(Wrapped(lambda x: x.copy_(item[1](x.clone()))))
        assert reading is not None
        assert reading.known is not None
        assert (reading.known.name, reading.in_place) == (item[0], True)

    @given(plain, st.sampled_from(["zeroed", "copied", "half"]))
    def test_other_changes_of_the_input_are_refused(self, item: tuple[str, Function], kind: str) -> None:
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
def test_functions_are_recognised_however_they_are_written(name: str, function: Function) -> None:
    assert_recognised(function, name)


@pytest.mark.parametrize(("name", "function"), PLAIN.items())
def test_computing_in_float32_inside_is_no_other_function(name: str, function: Function) -> None:
    assert_recognised(lambda x: function(x.float()).to(x.dtype), name)


@settings(max_examples=20)
@given(st.sampled_from(["leaky_relu", "elu", "celu", "softplus"]), st.floats(0.03, 8))
def test_parameters_are_read_off(family: str, parameter: float) -> None:
    if parameter != 1:
        made = {"leaky_relu": nn.LeakyReLU, "elu": nn.ELU, "celu": nn.CELU, "softplus": nn.Softplus}[family](parameter)
        reading = read_module(made)
        assert reading is not None
        assert reading.known is not None, reading.reason
        assert float(reading.known.name.partition("(")[2].rstrip(")")) == pytest.approx(parameter, rel=1e-7)


class TestModulesOfOthers:
    def test_a_module_that_cannot_be_copied_is_not_called(self) -> None:
        assert read_module(Wrapped(F.relu, handle=iter([1]).__iter__, lock=__import__("threading").Lock())) is None

    def test_a_reference_to_the_model_is_not_followed(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2))
        assert read_module(Wrapped(F.relu, parents=[model])) is None

    def test_a_prelu_written_anew_is_one_if_it_does_the_same(self) -> None:
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

    def test_a_prelu_without_values_is_refused(self) -> None:
        reading = read_module(nn.PReLU(device="meta"))
        assert reading is not None
        assert reading.known is None

    def test_an_answer_is_not_remembered_for_another_state(self) -> None:
        module = Wrapped(F.relu, slope=0.0)
        module.function = lambda x: F.leaky_relu(x, module.slope)
        names = []
        for module.slope in (0.1, 0.3, 0.1):
            reading = read_module(module)
            assert reading is not None
            assert reading.known is not None
            names.append(reading.known.name)
        assert names == ["leaky_relu(0.1)", "leaky_relu(0.3)", "leaky_relu(0.1)"]

    def test_a_base_that_is_added_later_is_found(self) -> None:
        module = Wrapped(lambda x: torch.relu(x) ** 5)
        assert read_module(module).known is None  # type: ignore[union-attr]
        hullo.add_base("fifth_power", lambda x: torch.relu(x) ** 5)
        assert read_module(module).known.name == "fifth_power"  # type: ignore[union-attr]
