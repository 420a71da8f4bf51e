"""Test bases that users write as formulas: derivatives, checks, and support by every backend."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

import hullo
from hullo.bases import Formula
from hullo.bases import base as bases
from hullo.bases.formulas import FUNCTIONS, differentiate, fill_in
from hullo.kernels import reference

SMOOTH = ("asinh", "atan", "cos", "erf", "expm1", "normal_pdf", "sigmoid", "sin", "square", "tanh")
KINKED = (
    "abs({})",
    "positive_part({})",
    "minimum({}, 0.5)",
    "clamp({}, -0.5, 0.7)",
    "where({} < 0.3, 0.2 * x, x)",
    "where({} > 0.1, x, 3 * x)",
)
texts = st.recursive(
    st.sampled_from(["x", "0.5 * x", "x - 0.25"]),
    lambda inner: st.one_of(
        st.builds(lambda word, a: f"{word}({a})", st.sampled_from(SMOOTH), inner),
        st.builds(lambda pattern, a: pattern.format(a), st.sampled_from(KINKED), inner),
        st.builds(lambda a, sign, b: f"({a}) {sign} ({b})", inner, st.sampled_from("+-*"), inner),
        st.builds(lambda a, b: f"({a}) / (1.5 + square({b}))", inner, inner),
        st.builds(lambda a: f"-({a})", inner),
        st.builds(lambda a: f"log1p(square({a})) + sqrt(1 + square({a}))", inner),
    ),
    max_leaves=5,
)


@pytest.fixture(autouse=True)
def _restore_catalogue() -> Iterator[None]:
    families, known = dict(bases._families), dict(bases._cache)
    yield
    for kept, before in ((bases._families, families), (bases._cache, known)):
        kept.clear()
        kept.update(before)  # type: ignore[arg-type]


@given(texts)
def test_derivative_of_a_formula_is_correct(text: str) -> None:
    value, slope = Formula(fill_in(text, {}), differentiate(text)).functions(FUNCTIONS)
    x = torch.linspace(-2.013, 2.017, 37, dtype=torch.float64).requires_grad_()
    (expected,) = torch.autograd.grad(value(x).sum(), x)
    actual = torch.as_tensor(slope(x.detach(), None), dtype=torch.float64).expand_as(x)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_formula_has_the_properties_of_the_same_function() -> None:
    made = hullo.add_base("quick", "x * sigmoid(rate * x)", parameters={"rate": 1.702})
    known = hullo.get_base("quick_gelu")
    assert made.slope_bounds == pytest.approx(known.slope_bounds, abs=1e-6)
    assert (made.value_at_zero, made.slopes_at_zero) == (0.0, (0.5, 0.5))
    assert made.is_monotone is False
    assert hullo.identify([1.0], ["quick"]) is not None
    assert hullo.add_base("cube", "x * x * x").slope_bounds[1] == float("inf")
    assert not hullo.get_base("cube").has_bounded_slope
    assert hullo.is_monotone([1.0, 1.0], ["cube", "tanh"]) is None
    with pytest.raises(ValueError, match="linear combination of quick_gelu"):
        hullo.LinearHull("quick_gelu", "quick")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_kernel_supports_it(dtype: torch.dtype) -> None:
    hullo.add_base("bell", "x * exp(-square(x / width))", parameters={"width": 1.0})
    act, x = hullo.AffineHull("identity", "bell(2)"), torch.randn(8, 16).to(dtype)
    exact = 0.5 * x.double() + 0.5 * x.double() * torch.exp(-(x.double() / 2).square())
    torch.testing.assert_close(act(x).double(), exact, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


_FUSED = """
import torch, hullo
from hullo.parametrizations import get_parametrization
from hullo.kernels import CombineSpec, reference, triton
hullo.add_base("bell", "x * exp(-square(x / width))", parameters={"width": 1.0})
hullo.add_base("bent", "where(x < 0, 0.3 * x, x) / (1 + abs(x))")
spec = CombineSpec(tuple(map(hullo.get_base, ["bell(2)", "bent", "relu"])), get_parametrization("given"), 1)
x, dy, raw = torch.randn(5, 6, 7), torch.randn(5, 6, 7), torch.randn(6, 3)
for found, expected in zip(
    (triton.forward(x, raw, spec), *triton.backward(dy, x, raw, spec)),
    (reference.forward(x, raw, spec), *reference.backward(dy, x, raw, spec)),
):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
"""


def test_fused_kernel_supports_it() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", _FUSED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_keras_supports_it() -> None:
    pytest.importorskip("keras")
    import hullo.keras

    hullo.add_base("bent", "where(x < 0, slope * x, x) + 0.1 * sin(x)", parameters={"slope": 0.2})
    layer = hullo.keras.LinearHull(["relu", "bent(0.5)"], init=[0.25, 2.0])
    x = torch.linspace(-3, 3, 13)
    expected = reference.forward(x, torch.tensor([0.25, 2.0]), layer.to_torch().spec)
    torch.testing.assert_close(torch.as_tensor(layer(x.numpy())).detach(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("x +", "invalid formula"),
        ("y * x", "contains 'y'"),
        ("x ** 2", r"contains 'x \*\* 2'"),
        ("__import__('os').getcwd()", "contains"),
        ("x.real", "contains 'x.real'"),
        ("(lambda: x)()", "contains"),
        ("x * True", "contains 'True'"),
        ("tanh(x, x)", r"contains 'tanh\(x, x\)'"),
        ("2.0", "must return a tensor"),
        ("where(x < 0, 1.0, 2.0)", "contains 'where.*with x in a branch"),
        ("where(x <= 0, x, 1.0)", "contains 'where"),
        ("where(x < square(x), x, 1.0)", "contains 'where.*where.x < number"),
        ("clamp(x, -x, 1)", "contains 'clamp.*whose bounds are numbers"),
        ("1 / x", "a finite one at the origin"),
        ("sqrt(1 + x)", "must have a value everywhere"),
        ("1 / (1 + exp(-x))", r"it is nan at x = "),
        ("where(x > 0, x, expm1(x))", r"infinite slope in a branch .* expm1\(minimum\(x, 0.0\)\)"),
        ("where(x > 0, log1p(x), x)", "infinite slope in a branch"),
    ],
)
def test_invalid_formula_is_rejected_and_not_added(formula: str, message: str) -> None:
    before = hullo.list_bases()
    with pytest.raises(ValueError, match=message):
        hullo.add_base("broken", formula)
    assert hullo.list_bases() == before


def test_derivative_belongs_to_a_function() -> None:
    with pytest.raises(TypeError, match=r"derivative=.*omit it, as for a formula"):
        hullo.add_base("mixed", "tanh(x)", torch.cos)
    with pytest.raises(TypeError, match="derivative='1 - square"):
        hullo.add_base("mixed", torch.tanh, "1 - square(tanh(x))")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [torch.device("meta"), FakeTensorMode()], ids=["device", "fake"])
def test_formulas_are_accepted_in_modes(mode: AbstractContextManager[object]) -> None:
    with mode:
        made = hullo.add_base("made", "tanh(x * rate)", parameters={"rate": 2.0})
        other = hullo.get_base("made(3)")
    assert (made.slope_bounds[1], other.slope_bounds[1]) == pytest.approx((2.0, 3.0))
    assert made.function(torch.ones(1)).item() == pytest.approx(math.tanh(2))


@pytest.mark.parametrize("text", ["x + ...", "where(0 < 1, x, -x)", "x * sqrt(b + 2)", "x + clamp(-b, -1, 1)"])
def test_functions_are_of_x(text: str) -> None:
    with pytest.raises(ValueError, match="formula"):
        fill_in(text, {"b": 2.0})


def test_function_without_a_derivative_in_pytorch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"disagrees with its values: .* give another derivative"):
        hullo.add_base("bessel", lambda x: torch.special.bessel_j1(x) * 2)
