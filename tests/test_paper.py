"""The paper's mathematics, as properties: Manessi and Rozza, "Learning Combinations of Activation Functions", 2018."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hullo

TWO_SIDED = ["identity", "tanh", "softsign", "arctan", "asinh", "sin", "hardtanh", "elu", "unit_silu", "unit_sigmoid"]
MONOTONE = [*(name for name in TWO_SIDED if hullo.get_base(name).is_monotone), "relu", "leaky_relu(0.1)"]
SETS = [("identity", "relu"), ("identity", "tanh"), ("relu", "tanh"), ("identity", "relu", "tanh")]


@st.composite
def bases_and_numbers(draw: st.DrawFn, names: list[str], low: float, high: float) -> tuple[list[str], list[float]]:
    chosen = draw(st.lists(st.sampled_from(names), min_size=2, max_size=5, unique=True))
    if {"identity", "relu", "leaky_relu(0.1)"} <= set(chosen):
        chosen.remove("leaky_relu(0.1)")
    return chosen, draw(st.lists(st.floats(low, high), min_size=len(chosen), max_size=len(chosen)))


def values(x: Tensor, coefficients: list[float], bases: list[str]) -> Tensor:
    return hullo.combine(x, torch.tensor(coefficients, dtype=x.dtype), bases)


def falls(coefficients: list[float], bases: list[str]) -> bool:
    x = torch.linspace(-20, 20, 20_001, dtype=torch.float64)
    return bool((values(x, coefficients, bases).diff() < -1e-12).any())


@given(bases_and_numbers(TWO_SIDED, -2, 2), st.booleans())
def test_proposition_combination_approximates_identity_iff_coefficients_sum_to_one(
    drawn: tuple[list[str], list[float]], summing_to_one: bool
) -> None:
    bases, c = drawn
    if summing_to_one:
        c[-1] = 1 - sum(c[:-1])
    x = torch.tensor([-1e-6, 1e-6], dtype=torch.float64)
    slopes = values(x, c, bases) / x
    torch.testing.assert_close(slopes, torch.full_like(slopes, sum(c)), rtol=0, atol=1e-5)
    if summing_to_one or abs(sum(c) - 1) > 1e-5:
        assert hullo.properties.approximates_identity(c, bases) == summing_to_one


@given(bases_and_numbers(TWO_SIDED, -2, 2))
def test_trained_affine_hull_approximates_the_identity(drawn: tuple[list[str], list[float]]) -> None:
    bases, raw = drawn
    act = hullo.AffineHull(*bases, dtype=torch.float64)
    with torch.no_grad():
        act.raw.copy_(torch.tensor(raw))
    assert hullo.properties.approximates_identity(act)


@given(bases_and_numbers(MONOTONE, 0, 1))
def test_convex_hull_of_monotone_bases_is_monotone(drawn: tuple[list[str], list[float]]) -> None:
    bases, numbers = drawn
    act = hullo.ConvexHull(*bases, dtype=torch.float64)
    with torch.no_grad():
        act.raw.copy_(torch.tensor(numbers))
    assert hullo.is_monotone(act)
    assert not falls(act.coefficients.tolist(), bases)


def test_affine_hull_of_monotone_bases_may_decrease() -> None:
    assert falls([-1.0, 2.0], ["identity", "tanh"])
    assert not hullo.is_monotone(hullo.AffineHull("identity", "tanh", init=[-1.0, 2.0]))


def test_monotone_combination_may_have_a_negative_coefficient() -> None:
    assert not falls([2.0, -1.0], ["identity", "tanh"])
    assert hullo.is_monotone([2.0, -1.0], ["identity", "tanh"])
    assert hullo.coefficients.SIMPLEX.describe_violation(torch.tensor([2.0, -1.0]))


@given(st.lists(st.floats(-1, 2), min_size=2, max_size=5), st.booleans(), st.booleans())
def test_convex_hull_is_the_intersection_of_cone_and_affine_hull(c: list[float], positive: bool, one: bool) -> None:
    numbers = torch.tensor(c, dtype=torch.float64)
    if positive:
        numbers = numbers.abs()
    if one:
        numbers = numbers + (1 - numbers.sum()) / len(numbers)
    in_cone = bool((numbers >= 0).all())
    in_affine_hull = not hullo.coefficients.HYPERPLANE.describe_violation(numbers)
    assert (not hullo.coefficients.SIMPLEX.describe_violation(numbers)) == (in_cone and in_affine_hull)


@given(st.floats(0, 1))
def test_convex_identity_relu_is_leaky_relu(p: float) -> None:
    act = hullo.ConvexHull("identity", "relu", init=[p, 1 - p], dtype=torch.float64)
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    torch.testing.assert_close(act(x), F.leaky_relu(x, p))


@pytest.mark.parametrize("bases", SETS)
def test_paper_sets_are_accepted_by_both_hulls(bases: tuple[str, ...]) -> None:
    for hull in (hullo.ConvexHull, hullo.AffineHull):
        assert hull(*bases).coefficients.tolist() == pytest.approx([1 / len(bases)] * len(bases))


@pytest.mark.parametrize("convolutional", [False, True])
@pytest.mark.parametrize("bases", SETS)
def test_layer_with_hull_equals_the_papers_two_stage_pipeline(bases: tuple[str, ...], convolutional: bool) -> None:
    """N stacked layers that share weights, one base each, then a 1-D convolution of kernel size 1 across the N."""
    double = torch.float64
    layer = (nn.Conv2d(3, 5, 3) if convolutional else nn.Linear(3, 5)).to(double)
    x = torch.randn((4, 3, 7, 6) if convolutional else (4, 3), dtype=double, requires_grad=True)
    act = hullo.AffineHull(
        *bases, parametrization="free", dtype=double, init=[1.5, *[-0.5 / (len(bases) - 1)] * (len(bases) - 1)]
    )
    mix = nn.Conv1d(len(bases), 1, kernel_size=1, bias=False, dtype=double)
    with torch.no_grad():
        mix.weight.copy_(act.coefficients[None, :, None])

    functions = {"identity": lambda z: z, "relu": torch.relu, "tanh": torch.tanh}
    stacked = torch.stack([functions[name](layer(x)).flatten(1) for name in bases], dim=1)
    batch, _, features = stacked.shape
    pipeline = mix(stacked).reshape(batch, features)
    hull = act(layer(x)).flatten(1)
    torch.testing.assert_close(hull, pipeline)

    upstream = torch.randn_like(hull)
    shared = (x, *layer.parameters())
    actual = torch.autograd.grad(hull, (*shared, act.raw), upstream)
    expected = torch.autograd.grad(pipeline, (*shared, mix.weight), upstream)
    for a, b in zip(actual[:-1], expected[:-1], strict=True):
        torch.testing.assert_close(a, b)
    weights = expected[-1].flatten()
    torch.testing.assert_close(actual[-1], weights[:-1] - weights[-1])  # the last is one less the others
    (direct,) = torch.autograd.grad(
        hullo.combine(layer(x), given := act.coefficients.detach().requires_grad_(), bases).flatten(1), given, upstream
    )
    torch.testing.assert_close(direct, weights)


def test_small_signals_pass_many_hulls_unscaled() -> None:
    """The reason for f(0) = 0 and slope one: near the origin a deep stack of hulls is the identity."""
    x = torch.linspace(-1e-3, 1e-3, 21, dtype=torch.float64)
    stack = nn.Sequential(
        *(hullo.AffineHull("identity", "tanh", "sin", init=[2.0, -0.5, -0.5], dtype=torch.float64) for _ in range(50))
    )
    assert torch.allclose(stack(x), x, rtol=1e-3)
    assert math.isclose(torch.func.grad(lambda z: stack(z))(torch.zeros((), dtype=torch.float64)).item(), 1)
