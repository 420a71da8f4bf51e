"""Test every base function of the catalogue: its formula, its slope and its properties."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import hullo
from hullo.bases.formulas import FUNCTIONS
from oracle import CLOSED_FORMS

MEMBERS = list(CLOSED_FORMS)
UNITS = [name for name in MEMBERS if name.startswith("unit_")]
ROUNDING = 5e-9  # PyTorch's softplus is linear beyond 20, and exact only to this
SLOPE_ROUNDING = 5e-8  # PyTorch keeps a constant of celu's and of hardsigmoid's derivative in float32


def grid() -> Tensor:
    return torch.linspace(-30, 30, 60_001, dtype=torch.float64)


def automatic_slope(base: hullo.Base, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(base.function(x).sum(), x)[0]


def away_from_kinks(base: hullo.Base, x: Tensor) -> Tensor:
    for kink in base.kinks:
        x = x[(x - kink).abs() > 1e-6]
    return x


def sides_of_kinks(base: hullo.Base) -> Tensor:
    return torch.tensor([kink + side for kink in base.kinks for side in (-1e-9, 1e-9)], dtype=torch.float64)


def test_catalogue_has_the_documented_bases_in_order() -> None:
    names = hullo.list_bases()
    assert names[:3] == ("identity", "relu", "tanh")
    promised = ["leaky_relu", "elu", "celu", "softsign", "arctan", "asinh", "sin", "hardtanh", "relu6"]
    raw = ["gelu", "silu", "mish", "softplus", "sigmoid", "selu", "erf", "hardswish"]
    assert {*promised, *raw, *(f"unit_{name}" for name in raw)} <= set(names)


def test_every_base_has_an_oracle() -> None:
    catalogue = {name for name in hullo.list_bases() if hullo.get_base(name).formula is not None}
    assert catalogue <= set(MEMBERS)


@pytest.mark.parametrize("name", MEMBERS)
def test_function_matches_the_oracle(name: str) -> None:
    x = grid()
    torch.testing.assert_close(hullo.get_base(name).function(x), CLOSED_FORMS[name](x), rtol=1e-9, atol=ROUNDING)


@pytest.mark.parametrize("name", MEMBERS)
def test_function_matches_its_formula(name: str) -> None:
    base, x = hullo.get_base(name), grid()
    assert base.formula is not None
    value, slope = base.formula.functions(FUNCTIONS)
    torch.testing.assert_close(value(x), base.function(x), rtol=1e-12, atol=ROUNDING)
    torch.testing.assert_close(torch.as_tensor(slope(x, value(x))).double().expand_as(x), base.derivative(x))


@pytest.mark.parametrize("name", MEMBERS)
def test_slope_is_the_derivative(name: str) -> None:
    base = hullo.get_base(name)
    x = away_from_kinks(base, grid())
    rounding = SLOPE_ROUNDING if name.startswith(("celu", "hardsigmoid", "softplus")) else 1e-12
    torch.testing.assert_close(base.derivative(x), automatic_slope(base, x), rtol=1e-12, atol=rounding)


@pytest.mark.parametrize("name", MEMBERS)
def test_slope_at_a_kink_is_between_both_sides(name: str) -> None:
    base = hullo.get_base(name)
    for kink in base.kinks:
        left, at, right = base.derivative(torch.tensor([kink - 1e-9, kink, kink + 1e-9], dtype=torch.float64)).tolist()
        assert min(left, right) - 1e-6 <= at <= max(left, right) + 1e-6


@pytest.mark.parametrize("name", MEMBERS)
def test_value_and_slopes_at_the_origin_are_correct(name: str) -> None:
    base = hullo.get_base(name)
    step = 1e-7
    value, left, right = CLOSED_FORMS[name](torch.tensor([0.0, -step, step], dtype=torch.float64)).tolist()
    assert base.value_at_zero == pytest.approx(value, abs=1e-15)
    assert base.slopes_at_zero == pytest.approx(((value - left) / step, (right - value) / step), abs=1e-6)
    automatic = automatic_slope(base, torch.tensor([-1e-13, 1e-13], dtype=torch.float64)).tolist()
    assert base.slopes_at_zero == pytest.approx(automatic, abs=SLOPE_ROUNDING)


@pytest.mark.parametrize("name", MEMBERS)
def test_slope_bounds_hold_and_are_tight(name: str) -> None:
    base = hullo.get_base(name)
    far = torch.logspace(1.5, 9, 100, dtype=torch.float64)
    x = torch.cat([-far, away_from_kinks(base, grid()), far, sides_of_kinks(base)])
    low, high = base.slope_bounds
    for sign, bound in ((-1, -low), (1, high)):
        best = x[(sign * automatic_slope(base, x)).argmax()]
        around = away_from_kinks(base, best + torch.linspace(-1e-3, 1e-3, 4001, dtype=torch.float64))
        result = (sign * automatic_slope(base, torch.cat([x, around]))).max().item()
        assert result == pytest.approx(bound, abs=1e-8) if math.isfinite(bound) else result > 1e9


@pytest.mark.parametrize("name", MEMBERS)
def test_is_monotone_exactly_if_nondecreasing(name: str) -> None:
    base = hullo.get_base(name)
    never_falls = bool((base.function(grid()).diff() >= -1e-12).all())
    assert base.is_monotone == never_falls


@pytest.mark.parametrize("name", MEMBERS)
def test_slope_jumps_only_at_kinks(name: str) -> None:
    base = hullo.get_base(name)
    x = grid() + 0.00025  # so that every kink lies between two points
    steps = automatic_slope(base, x).diff().abs()
    jumps = steps[2:-2] > 0.02 + 3 * torch.maximum(steps[:-4], steps[4:])  # larger than those of steep functions around
    between = (x[2:-3] + x[3:-2])[jumps] / 2
    torch.testing.assert_close(between, torch.tensor(base.kinks, dtype=torch.float64), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("size", [50.0, 1e4, 65504.0])
def test_values_and_slopes_are_correct_far_from_the_origin(name: str, size: float) -> None:
    base = hullo.get_base(name)
    x = torch.tensor([-size, size])
    assert base.formula is not None
    value, slope = base.formula.functions(FUNCTIONS)
    exact, exact_slope = base.function(x.double()).float(), base.derivative(x.double()).float()
    for actual in (base.function(x), value(x)):
        torch.testing.assert_close(actual, exact, rtol=1e-5, atol=1e-6)
    for actual in (base.derivative(x), automatic_slope(base, x), torch.as_tensor(slope(x, value(x))).expand(2)):
        torch.testing.assert_close(actual, exact_slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UNITS)
def test_unit_form_is_shifted_and_scaled(name: str) -> None:
    unit, raw = hullo.get_base(name), hullo.get_base(name.removeprefix("unit_"))
    x = grid()
    moved = (raw.function(x) - raw.value_at_zero) / raw.slopes_at_zero[1]
    torch.testing.assert_close(unit.function(x), moved, rtol=1e-9, atol=2 * ROUNDING)
    assert unit.is_admissible


@pytest.mark.parametrize("name", UNITS)
def test_unit_form_is_accurate_near_the_origin(name: str) -> None:
    x = torch.tensor([1e-6, 1e-5, 1e-4])
    exact = hullo.get_base(name).function(x.double()).float()
    torch.testing.assert_close(hullo.get_base(name).function(x), exact, rtol=2e-6, atol=0)


def test_inadmissible_bases_are_listed() -> None:
    inadmissible = {name for name in MEMBERS if not hullo.get_base(name).is_admissible}
    raw = {name.removeprefix("unit_") for name in UNITS}
    assert inadmissible == raw | {
        "gelu_tanh", "quick_gelu", "hardsigmoid", "sin(3)", "constant", "relu2", "relu3", "xielu_negative",
    }  # fmt: skip


@pytest.mark.parametrize(
    "spelling", ["celu(0)", "celu(-1)", "softplus(0)", "unit_softplus(-2)", "softplus(1e-320)", "unit_softplus(1e-320)"]
)
def test_meaningless_parameter_is_rejected(spelling: str) -> None:
    with pytest.raises(ValueError, match=r"from 5.42e-20 to 1.84e\+19, got (0|-1|-2|9.99989e-321)"):
        hullo.get_base(spelling)


EXACT: dict[str, Callable[[Tensor, float], Tensor]] = {
    "leaky_relu": lambda x, a: torch.where(x > 0, x, a * x),
    "elu": lambda x, a: torch.where(x > 0, x, a * torch.expm1(x.clamp(max=0))),
    "celu": lambda x, a: torch.where(x > 0, x, a * torch.expm1(x.clamp(max=0) / a)),
    "softplus": lambda x, b: x.clamp(min=0) + torch.log1p(torch.exp(-b * x.abs())) / b,
    "unit_softplus": lambda x, b: 2 * (x.clamp(min=0) + torch.log1p(0.5 * torch.expm1(-b * x.abs())) / b),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", EXACT)
@given(exponent=st.integers(-330, 307), digit=st.integers(1, 9), sign=st.sampled_from([1, -1]))
@example(exponent=0, digit=1, sign=1)
@example(exponent=19, digit=1, sign=-1)
@example(exponent=-19, digit=1, sign=1)
def test_any_parameter_is_rejected_or_gives_correct_properties(
    family: str, dtype: torch.dtype, exponent: int, digit: int, sign: int
) -> None:
    parameter = sign * float(f"{digit}e{exponent}") + 0.0  # no -0.0
    spelling, positive = f"{family}({parameter!r})", family in ("celu", "softplus", "unit_softplus")
    if not (2.0**-64 <= parameter <= 2.0**64 if positive else abs(parameter) <= 2.0**64):
        with pytest.raises(ValueError, match=rf"got {re.escape(f'{parameter:g}')}"):
            hullo.get_base(spelling)
        return
    base = hullo.get_base(spelling)
    assert base.formula is not None
    value, slope = base.formula.functions(FUNCTIONS)
    x = torch.tensor([-30.0, -1, -0.3, -1e-3, -1e-6, 0, 1e-6, 1e-3, 0.3, 1, 30], dtype=dtype)
    wide = x.double().requires_grad_()
    exact = EXACT[family](wide, parameter)
    (exact_slope,) = torch.autograd.grad(exact.sum(), wide)
    for actual in (base.function(x), value(x)):
        scale = min(1, exact.abs().max().item())
        torch.testing.assert_close(actual, exact.detach().to(dtype), rtol=1e-5, atol=1e-6 * scale)
    off, scale = x != 0, exact_slope.abs().max().item()
    for actual in (base.derivative(x), slope(x, value(x))):
        torch.testing.assert_close(actual[off], exact_slope.to(dtype)[off], rtol=1e-5, atol=1e-6 * scale)
    assert base.value_at_zero == pytest.approx(EXACT[family](torch.zeros((), dtype=torch.float64), parameter).item())
    low, high = base.slope_bounds
    assert low <= min(base.slopes_at_zero) <= max(base.slopes_at_zero) <= high
    slopes = exact_slope[off]
    assert low - 1e-6 * scale <= slopes.min() <= slopes.max() <= high + 1e-6 * scale
    assert bool(base.kinks) == (base.slopes_at_zero[0] != base.slopes_at_zero[1])
