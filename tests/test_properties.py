"""Test properties of combinations against dense samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

import hullo
import oracle

NAMES = st.lists(st.sampled_from(["identity", "relu", "tanh", "hardtanh", "unit_gelu"]), min_size=1, unique=True)


@st.composite
def combinations(draw: st.DrawFn) -> tuple[list[float], list[str]]:
    names = draw(NAMES)
    return draw(st.lists(st.floats(-3, 3), min_size=len(names), max_size=len(names))), names


def slopes_on_many_points(coefficients: list[float], names: list[str]) -> Tensor:
    x = torch.linspace(-40, 40, 80_001, dtype=torch.float64)
    x = torch.cat([x - 1e-7, x + 1e-7]).requires_grad_()  # both sides of every kink
    return torch.autograd.grad(oracle.combine(x, torch.tensor(coefficients), names).sum(), x)[0]


@given(combinations())
@example(([1.0, 1.0], ["hardtanh", "unit_gelu"]))
@example(([-1.0, 2.0], ["unit_gelu", "relu"]))
def test_slope_bounds_hold_and_are_attained(combination: tuple[list[float], list[str]]) -> None:
    slopes = slopes_on_many_points(*combination)
    low, high = hullo.slope_bounds(*combination)
    assert low == pytest.approx(slopes.min().item(), abs=2e-5)
    assert high == pytest.approx(slopes.max().item(), abs=2e-5)


@given(combinations())
def test_is_monotone_iff_nondecreasing(combination: tuple[list[float], list[str]]) -> None:
    least = slopes_on_many_points(*combination).min().item()
    if abs(least) > 1e-4:
        assert hullo.is_monotone(*combination) == (least > 0)


@given(combinations())
@example(([1.0], ["relu"]))
@example(([1.0, 2.0], ["identity", "relu"]))
@example(([2.0, -1.0], ["arctan", "tanh"]))
def test_approximates_identity_iff_first_order_equal(combination: tuple[list[float], list[str]]) -> None:
    x = torch.tensor([-1e-6, 1e-6], dtype=torch.float64)
    error = ((oracle.combine(x, torch.tensor(combination[0], dtype=torch.float64), combination[1]) - x) / x).abs().max()
    if not 1e-7 < error < 1e-5:
        assert hullo.properties.approximates_identity(*combination) == bool(error < 1e-6)


def test_functions_with_offset_do_not_approximate_the_identity() -> None:
    assert not hullo.properties.approximates_identity([1.0, 0.5], ["identity", "sigmoid"])
    assert not hullo.properties.approximates_identity([2.0], ["softplus"])
    assert hullo.properties.approximates_identity([2.0], ["gelu"])


@pytest.mark.parametrize("name", hullo.list_bases())
def test_single_base_has_its_own_properties(name: str) -> None:
    base = hullo.get_base(name)
    assert hullo.slope_bounds([1.0], [name]) == pytest.approx(base.slope_bounds, abs=1e-6)
    assert hullo.is_monotone([1.0], [name]) == base.is_monotone
    assert hullo.identify([1.0], [name]) is base


@given(st.floats(0, 1))
def test_convex_identity_relu_is_identified_as_leaky_relu(p: float) -> None:
    known = hullo.identify(hullo.ConvexHull("identity", "relu", init=[p, 1 - p]))
    assert isinstance(known, hullo.Base)
    assert known.slopes_at_zero == pytest.approx((p, 1.0), abs=2e-6)
    assert known.name.split("(")[0] in ("identity", "relu", "leaky_relu")


@pytest.mark.parametrize(
    ("coefficients", "bases", "name"),
    [
        ([0.01, 0.99], ["identity", "relu"], "leaky_relu"),
        ([0.0, 1.0], ["identity", "relu"], "relu"),
        ([1.0, 0.0], ["identity", "relu"], "identity"),
        ([2.0, -1.0], ["identity", "relu"], "leaky_relu(2)"),
        ([0.5, 0.5], ["relu", "leaky_relu(0.2)"], "leaky_relu(0.1)"),
        ([0.0, 1.0, 0.0], ["identity", "tanh", "relu"], "tanh"),
        ([0.0, 1.0, 1e-9], ["identity", "elu(2)", "relu"], "elu(2)"),
        ([0.5, 0.5], ["relu", "elu"], "elu(0.5)"),
        ([1.0, 0.0], ["celu", "relu"], "celu"),
    ],
)
def test_well_known_functions_are_identified(coefficients: list[float], bases: list[str], name: str) -> None:
    assert hullo.identify(coefficients, bases) is hullo.get_base(name)
    if min(coefficients) >= 0:
        assert hullo.identify(hullo.ConvexHull(*bases, init=coefficients)) is hullo.get_base(name)


SELU = hullo.get_base("selu").slopes_at_zero
KNOWN = (0.0, 1.0, *SELU, SELU[0] / SELU[1])  # near these, two bases are the combination up to the tolerance


@given(
    st.sampled_from(["leaky_relu", "elu", "selu", "other"]),
    st.floats(-2, 3).map(lambda p: round(p, 6)).filter(lambda p: min(abs(p - known) for known in KNOWN) > 1e-5),
    st.sampled_from(["elu", "elu(0.3)", "elu(-2)", "selu", "unit_selu", "celu"]),
    st.sampled_from(["identity", "leaky_relu", "leaky_relu(3)"]),
    st.permutations([0, 1, 2]),
)
def test_combination_equal_to_a_base_is_identified(
    name: str, p: float, exponential: str, straight: str, order: list[int]
) -> None:
    """With slope a on the right, b x + c (e^x - 1) on the left: every member of three families, and others."""
    a, b, c, expected = {
        "leaky_relu": (1.0, p, 0.0, f"leaky_relu({p})"),
        "elu": (1.0, 0.0, p, f"elu({p})"),
        "selu": (SELU[1], 0.0, SELU[0], "selu"),
        "other": (1.0, p, 2.0, None),
    }[name]
    curved, line = hullo.get_base(exponential), hullo.get_base(straight)
    weights = {exponential: c / curved.slopes_at_zero[0], straight: b / line.slopes_at_zero[0]}
    weights["relu"] = a - sum(weights[item.name] * item.slopes_at_zero[1] for item in (curved, line))
    names = [list(weights)[n] for n in order]
    known = hullo.identify([weights[item] for item in names], names)
    assert known is (None if expected is None else hullo.get_base(expected))


@given(
    st.sampled_from(["softplus", "unit_softplus", "celu", "elu", "leaky_relu"]),
    st.integers(10**5 + 1, 10**6 - 1),
    st.integers(-2, 1),
)
def test_scaled_base_is_identified(family: str, digits: int, exponent: int) -> None:
    spelling = f"{family}({float(f'{digits}e{exponent - 5}')})"
    hullo.add_base("half", lambda x: 0.5 * hullo.get_base(spelling).function(x))
    try:
        assert hullo.identify([2.0], ["half"]) is hullo.get_base(spelling)
    finally:
        del hullo.bases.base._families["half"], hullo.bases.base._cache["half"]


@pytest.mark.parametrize(
    ("coefficients", "bases"),
    [([0.5, 0.5], ["identity", "tanh"]), ([0.5, 0.6], ["identity", "relu"]), ([2.0], ["relu"]), ([0.0], ["tanh"])],
)
def test_other_combinations_are_not_identified(coefficients: list[float], bases: list[str]) -> None:
    assert hullo.identify(coefficients, bases) is None


def test_function_in_the_span_is_identified_beside_powers() -> None:
    assert hullo.identify([0.25, 0.75, 0.0], ["identity", "relu", "relu2"]).name == "leaky_relu(0.25)"
    assert hullo.identify([0.25, 0.75, 1e-7], ["identity", "relu", "relu2"]) is None


def test_hull_with_groups_gets_one_answer_per_group() -> None:
    act = hullo.AffineHull("identity", "tanh", groups=3, init=[[1.0, 0.0], [-1.0, 2.0], [2.0, -1.0]])
    assert hullo.is_monotone(act) == [True, False, True]
    assert hullo.slope_bounds(act) == [(1.0, 1.0), (-1.0, 1.0), (1.0, 2.0)]
    assert hullo.properties.approximates_identity(act) == [True, True, True]
    assert hullo.identify(act) == [hullo.get_base("identity"), None, None]
    assert hullo.is_monotone([[1.0, 0.0], [-1.0, 2.0]], ["identity", "tanh"]) == [True, False]


@pytest.mark.parametrize(
    "question", [hullo.slope_bounds, hullo.is_monotone, hullo.properties.approximates_identity, hullo.identify]
)
class TestQuestions:
    def test_hull_and_coefficients_give_the_same_answer(self, question: Callable[..., Any]) -> None:
        act = hullo.ConvexHull("identity", "relu", "tanh", init=[0.5, 0.25, 0.25])
        answers = [question(act), question([0.5, 0.25, 0.25], act.bases), question(act.coefficients, act.bases)]
        assert answers[0] == answers[1] == answers[2]

    def test_default_device_does_not_matter(self, question: Callable[..., Any]) -> None:
        with torch.device("meta"):
            result = question([0.5, 0.5], ["identity", "relu"])
        assert result == question([0.5, 0.5], ["identity", "relu"])

    @pytest.mark.parametrize("coefficients", [[1.0], [0.5, torch.nan], 1.0, [[[1.0, 0.0]]], [torch.inf, 0.0]])
    def test_mismatched_coefficients_are_rejected(self, question: Callable[..., Any], coefficients: Any) -> None:
        with pytest.raises(ValueError, match="2 finite coefficients per row, got shape"):
            question(coefficients, ["identity", "relu"])

    def test_bases_are_required_once(self, question: Callable[..., Any]) -> None:
        with pytest.raises(TypeError, match="got a list: give a hull, or coefficients"):
            question([0.5, 0.5])
        for subject, message in (
            (nn.Linear(2, 2), r"got a Linear: .*summary\(model\)\.hulls"),
            (1.0, "got a float: give a hull"),
        ):
            with pytest.raises(TypeError, match=message):
                question(subject)
        with pytest.raises(TypeError, match="together with a hull"):
            question(hullo.AffineHull("identity", "relu"), ["identity", "relu"])
