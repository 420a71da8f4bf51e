"""Test derivatives at 0 and at kinks, where autograd of functions such as abs does not find those of smooth bases."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor

import hullo
from hullo.bases import Formula
from hullo.bases.formulas import FUNCTIONS

MEMBERS = [*hullo.list_bases(), "leaky_relu(0.3)", "elu(0.5)", "celu(2)", "softplus(3)", "unit_softplus(3)", "snake(2)"]
C = torch.ones(1, dtype=torch.float64)


def _logistic(x: mpf) -> mpf:
    return 1 / (1 + mpmath.exp(-x))


def _softplus(x: mpf) -> mpf:
    return mpmath.log(1 + mpmath.exp(x))


def _mish(x: mpf) -> mpf:
    return x * mpmath.tanh(_softplus(x))


def _gelu_tanh(x: mpf) -> mpf:
    return x / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpf("0.044715") * x**3)))


SMOOTH: dict[str, Callable[[mpf], mpf]] = {
    "identity": lambda x: x,
    "tanh": mpmath.tanh,
    "arctan": mpmath.atan,
    "asinh": mpmath.asinh,
    "sin": mpmath.sin,
    "gelu": lambda x: x * mpmath.ncdf(x),
    "unit_gelu": lambda x: 2 * x * mpmath.ncdf(x),
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * _logistic(mpf("1.702") * x),
    "silu": lambda x: x * _logistic(x),
    "unit_silu": lambda x: 2 * x * _logistic(x),
    "mish": _mish,
    "unit_mish": lambda x: _mish(x) / mpf("0.6"),
    "softplus": _softplus,
    "softplus(3)": lambda x: _softplus(3 * x) / 3,
    "unit_softplus": lambda x: 2 * _softplus(x),
    "unit_softplus(3)": lambda x: 2 * _softplus(3 * x) / 3,
    "sigmoid": _logistic,
    "unit_sigmoid": lambda x: 4 * _logistic(x),
    "erf": mpmath.erf,
    "unit_erf": lambda x: mpmath.erf(x) * mpmath.sqrt(mpmath.pi) / 2,
    "snake": lambda x: x + mpmath.sin(x) ** 2,
    "snake(2)": lambda x: x + mpmath.sin(2 * x) ** 2 / 2,
}


def combined(name: str) -> Callable[[Tensor], Tensor]:
    return lambda x: hullo.combine(x, C.to(x.dtype), [name])


def derivatives(function: Callable[[Tensor], Tensor], at: float, count: int) -> list[float]:
    """Return derivatives by automatic differentiation, the first one first."""
    x = torch.tensor([at], dtype=torch.float64, requires_grad=True)
    y, found = function(x), list[float]()
    for _ in range(count):
        if y.requires_grad:
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True, allow_unused=True, materialize_grads=True)
        else:
            y = torch.zeros_like(x)
        found.append(y.item())
    return found


def slopes(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return first derivatives in float64, by automatic differentiation."""
    return torch.tensor([derivatives(function, at, 1)[0] for at in x.tolist()], dtype=torch.float64)


@pytest.mark.parametrize("name", SMOOTH)
def test_three_derivatives_of_smooth_bases_are_right_at_0(name: str) -> None:
    exact = [float(mpmath.diff(SMOOTH[name], 0, order)) for order in (1, 2, 3)]
    item = hullo.get_base(name)
    assert item.formula is not None
    symbolic = [Formula(item.formula.derivative(order), "0.0").functions(FUNCTIONS)[0] for order in (1, 2, 3)]
    assert derivatives(combined(name), 0.0, 3) == pytest.approx(exact, abs=1e-12)
    assert derivatives(item.function, 0.0, 3) == pytest.approx(exact, abs=1e-12)
    assert [float(f(torch.zeros(1).double())) for f in symbolic] == pytest.approx(exact, abs=1e-12)


def test_every_smooth_base_has_an_exact_function() -> None:
    """Others have kinks in the value, the slope or its derivative."""
    others = {"softsign", "elu", "celu", "constant", "relu2", "relu3", "xielu_negative"}
    assert {name for name in hullo.list_bases() if not hullo.get_base(name).kinks} == (
        SMOOTH.keys() & {*MEMBERS[:-6]}
    ) | others


@pytest.mark.parametrize("name", MEMBERS)
def test_plain_operations_have_the_same_slopes_at_0_and_at_kinks(name: str) -> None:
    item = hullo.get_base(name)
    x = torch.tensor(sorted({0.0, *item.kinks}), dtype=torch.float64)
    expected = item.derivative(x)
    leaf = x.clone().requires_grad_()
    (eager,) = torch.autograd.grad(combined(name)(leaf).sum(), leaf)
    plain = slopes(item.function, x)
    _, forward_mode = torch.func.jvp(combined(name), (x,), (torch.ones_like(x),))
    for found in (eager, plain, forward_mode):
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-8)  # PyTorch keeps a constant of celu's in float32


@pytest.mark.parametrize("name", MEMBERS)
def test_plain_operations_have_hessians(name: str) -> None:
    x = torch.tensor([-0.3, 0.4], dtype=torch.float64)
    expected = [derivatives(combined(name), at, 2)[1] for at in x.tolist()]
    found = torch.func.hessian(lambda x: combined(name)(x).sum())(x)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64).diag(), rtol=0, atol=5e-8)


@pytest.mark.parametrize("way", ["compile", "export", "fold"])
def test_unit_softplus_has_slope_one_at_0_in_graphs(way: str) -> None:
    model: torch.nn.Module = torch.nn.Sequential(hullo.AffineHull("relu", "unit_softplus")).eval()
    x = torch.tensor([-1.0, 0.0, 1.0])
    exact = 0.5 * (x > 0) + torch.sigmoid(x)
    if way == "compile":
        graph = torch.compile(model, backend="aot_eager", fullgraph=True)
    else:
        graph = torch.export.export(model, (x,)).module() if way == "export" else hullo.fold(model)
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(graph(leaf).sum(), leaf)
    torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("name", ["clamped", "least"])
def test_slopes_of_clamped_formulas_agree_at_the_bounds(name: str) -> None:
    item = hullo.add_base(name, {"clamped": "clamp(2 * x, -1, 1)", "least": "minimum(x, 0.5)"}[name])
    x = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64)
    plain = slopes(item.function, x)
    torch.testing.assert_close(plain, item.derivative(x))
    assert plain.tolist() == ([0.0, 2.0, 0.0] if name == "clamped" else [1.0, 1.0, 0.0])


class TestWhere:
    """A formula whose branch is limited has finite derivatives of every order."""

    X = torch.tensor([-200.0, -1.0, -0.25, 0.5, 3.0, 100.0, 1000.0])

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        hullo.add_base("own_elu", "where(x > 0, x, expm1(minimum(x, 0.0)))")
        return torch.nn.Sequential(hullo.AffineHull("identity", "own_elu")).eval()

    @pytest.mark.parametrize("way", ["eager", "compile", "export", "fold"])
    def test_gradients_are_finite(self, model: torch.nn.Module, way: str) -> None:
        graphs = {
            "eager": lambda: model,
            "compile": lambda: torch.compile(model, backend="aot_eager", fullgraph=True),
            "export": lambda: torch.export.export(model, (self.X,)).module(),
            "fold": lambda: hullo.fold(model),
        }
        x = self.X.clone().requires_grad_()
        (found,) = torch.autograd.grad(graphs[way]()(x).sum(), x)
        torch.testing.assert_close(found, 0.5 + 0.5 * self.X.clamp(max=0).exp())

    def test_second_derivatives_are_finite(self, model: torch.nn.Module) -> None:
        exact = torch.where(self.X > 0, 0.0, 0.5 * self.X.clamp(max=0).exp())
        x = self.X.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        torch.testing.assert_close(torch.autograd.grad(slope.sum(), x)[0], exact)
        hessian = torch.func.hessian(lambda x: model(x).sum())(self.X)
        torch.testing.assert_close(hessian, exact.diag())


@pytest.mark.parametrize("size", [8, 512])
def test_slope_of_hardswish_at_nan_is_nan(size: int) -> None:
    x = torch.full((size,), torch.nan, requires_grad=True)
    hullo.LinearHull("hardswish", init=[1.0])(x).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isnan().all())
