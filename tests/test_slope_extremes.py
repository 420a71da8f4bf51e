"""Test that slope bounds hold: no search finds a slope beyond them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import hullo
import oracle
from hullo.bases.slope_extremes import largest_slope

MEMBERS = [
    *hullo.list_bases(), "leaky_relu(0.2)", "leaky_relu(-0.5)", "leaky_relu(2)", "elu(0.5)", "elu(2)", "celu(0.3)",
    "celu(2)", "softplus(3)", "unit_softplus(3)", "sin(30)", "snake(0.5)",
]  # fmt: skip
WAVES = ["sin", "sin(30)", "snake", "snake(0.5)"]
NO_WAVES = [name for name in MEMBERS if name not in WAVES]
large = st.floats(-1e3, 1e3).filter(lambda c: c == 0 or abs(c) > 1e-6)  # a search sees no smaller slope
numbers = st.floats(-3, 3).map(lambda c: round(c, 3)) | large | st.sampled_from([-1.0, 1.0, 1e-3, -1e-3])


@st.composite
def combinations(draw: st.DrawFn) -> tuple[list[float], list[str]]:
    names = draw(st.lists(st.sampled_from(NO_WAVES), min_size=1, max_size=5, unique=True))
    if draw(st.booleans()):  # a wave beside constant slopes
        names = [draw(st.sampled_from(WAVES)), *draw(st.sampled_from([[], ["identity"], ["constant", "identity"]]))]
    return draw(st.lists(numbers, min_size=len(names), max_size=len(names))), names


def independent(names: list[str]) -> bool:
    try:
        hullo.bases.resolve(names, strict=False)
    except ValueError:
        return False
    return True


def slopes_at(x: Tensor, coefficients: list[float], names: list[str]) -> Tensor:
    return sum((c * hullo.get_base(name).derivative(x) for c, name in zip(coefficients, names, strict=True)), 0 * x)


def search(coefficients: list[float], names: list[str]) -> float:
    """Return the least slope that a search finds: on 100,000 points, then ever closer around the lowest valleys."""
    far, tiny = torch.logspace(1, 12, 20_000, dtype=torch.float64), torch.logspace(-9, 0, 2_000, dtype=torch.float64)
    kinks = torch.tensor([kink for name in names for kink in hullo.get_base(name).kinks], dtype=torch.float64)
    x = torch.cat([torch.linspace(-20, 20, 60_001, dtype=torch.float64) + 1e-7, far, -far, tiny, -tiny])
    x = torch.cat([x, kinks - 1e-11, kinks + 1e-11]).sort().values
    slopes = slopes_at(x, coefficients, names)
    least = slopes.min().item()
    valleys = 1 + ((slopes[1:-1] <= slopes[:-2]) & (slopes[1:-1] <= slopes[2:])).nonzero().flatten()
    lowest = valleys[slopes[valleys].argsort()[:32]].tolist()
    for at in [int(slopes.argmin()), *lowest]:
        low, high = x[max(at - 1, 0)].item(), x[min(at + 1, len(x) - 1)].item()
        for _ in range(5):
            closer = torch.linspace(low, high, 65, dtype=torch.float64)
            result = slopes_at(closer, coefficients, names).where(~torch.isin(closer, kinks), math.inf)
            least, best = min(least, result.min().item()), int(result.argmin())
            low, high = closer[max(best - 1, 0)].item(), closer[min(best + 1, 64)].item()
    return least


def grows(coefficients: list[float], names: list[str]) -> float:
    """Return the coefficient of the highest power of ReLU, which decides where the slope goes on the far right."""
    powers = [c for power in ("relu3", "relu2") for c, name in zip(coefficients, names, strict=True) if name == power]
    return next((c for c in powers if c), 0.0)


@given(combinations().filter(lambda combination: independent(combination[1])))
@example(([-0.02, 1.01991, 9e-5], ["asinh", "arctan", "identity"]))
@example(([1.0, -1.0], ["identity", "tanh"]))
@example(([-1e3, 1e-3], ["relu2", "relu3"]))  # the least slope is far out
@example(([0.6, -1.0, 0.4], ["hardsigmoid", "hardswish", "unit_silu"]))  # two kinks at one point
def test_bounds_hold_and_are_attained(combination: tuple[list[float], list[str]]) -> None:
    coefficients, names = combination
    scale = largest_slope(coefficients, [hullo.get_base(name) for name in names])
    bounds = hullo.slope_bounds(coefficients, names)
    assert isinstance(bounds, tuple)
    least, most = search(coefficients, names), -search([-c for c in coefficients], names)
    scale = max(scale, *(abs(bound) for bound in bounds if math.isfinite(bound)))
    assert bounds[0] <= least + 2e-7 * scale
    assert bounds[1] >= most - 2e-7 * scale
    # a search that ends where multiples of pi are not exact
    assert bounds[0] >= least - 1e-6 * scale if math.isfinite(bounds[0]) else grows(coefficients, names) < 0
    assert bounds[1] <= most + 1e-6 * scale if math.isfinite(bounds[1]) else grows(coefficients, names) > 0
    floor = -1e-6 * min(1.0, max(map(abs, coefficients)))
    if abs(least - floor) > 2e-7 * scale:
        assert hullo.is_monotone(coefficients, names) == (least >= floor)


@given(combinations().filter(lambda made: independent(made[1]) and oracle.CLOSED_FORMS.keys() >= set(made[1])))
def test_oracle_slopes_are_within_the_bounds(combination: tuple[list[float], list[str]]) -> None:
    """By automatic differentiation of formulas that tests wrote, not of the catalogue's."""
    coefficients, names = combination
    low, high = hullo.slope_bounds(coefficients, names)  # type: ignore[misc]
    x = torch.cat([torch.linspace(-30, 30, 20_011, dtype=torch.float64), torch.logspace(1.5, 2.5, 500).double()])
    x = (x + 1.234e-5).requires_grad_()
    combined = oracle.combine(x, torch.tensor(coefficients, dtype=torch.float64), names)
    slopes = torch.autograd.grad(combined.sum(), x)[0].nan_to_num(low)  # of closed forms that overflow
    scale = largest_slope(coefficients, [hullo.get_base(name) for name in names])
    assert low - 1e-8 * scale <= slopes.min().item()
    assert slopes.max().item() <= high + 1e-8 * scale


class TestClosedForms:
    @given(*(st.floats(-5, 5) for _ in range(3)))
    @example(-0.02, 1.01991, 9e-5)
    def test_asinh_arctan_and_identity(self, a: float, b: float, c: float) -> None:
        """With u = 1 / sqrt(1 + x^2) the slope is a u + b u^2 + c, for u from 0 to 1."""
        turns = [-a / (2 * b)] if b and 0 < -a / (2 * b) < 1 else []
        values = [a * u + b * u * u + c for u in (0.0, 1.0, *turns)]
        bounds = hullo.slope_bounds([a, b, c], ["asinh", "arctan", "identity"])
        assert bounds == pytest.approx((min(values), max(values)), abs=2e-8)

    @given(*(st.floats(-5, 5) for _ in range(3)))
    def test_identity_relu_and_tanh(self, a: float, b: float, c: float) -> None:
        """On either side the slope is a, or a + b, plus c v, for v from 0 to 1."""
        values = [side + v for side in (a, a + b) for v in (0.0, c)]
        bounds = hullo.slope_bounds([a, b, c], ["identity", "relu", "tanh"])
        assert bounds == pytest.approx((min(values), max(values)), abs=2e-8)

    @given(*(st.floats(-5, 5) for _ in range(2)))
    def test_identity_and_sin(self, a: float, b: float) -> None:
        assert hullo.slope_bounds([a, b], ["identity", "sin"]) == pytest.approx((a - abs(b), a + abs(b)), abs=2e-8)

    @given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0.01, 100))
    def test_softplus_of_any_width(self, a: float, b: float, beta: float) -> None:
        """The slope of softplus goes from 0 to 1 for every beta, narrow or wide."""
        bounds = hullo.slope_bounds([a, b], ["identity", f"softplus({beta})"])
        assert bounds == pytest.approx((min(a, a + b), max(a, a + b)), abs=2e-8)

    def test_gelu(self) -> None:
        """Its slope is extreme where the density turns, at the root of two."""
        tail, density = 0.5 * math.erfc(1), math.exp(-1) / math.sqrt(2 * math.pi)
        low = tail - math.sqrt(2) * density
        assert hullo.slope_bounds([1.0], ["gelu"]) == pytest.approx((low, 1 - low), abs=1e-9)
        assert hullo.get_base("gelu").slope_bounds == pytest.approx((low, 1 - low), abs=1e-15)

    @pytest.mark.parametrize("name", hullo.list_bases())
    def test_bounds_match_the_catalogue(self, name: str) -> None:
        assert hullo.slope_bounds([1.0], [name]) == pytest.approx(hullo.get_base(name).slope_bounds, abs=2e-9)


@given(combinations().filter(lambda combination: independent(combination[1])), st.integers(-900, 900))
@settings(max_examples=15)
def test_bounds_scale_with_the_coefficients(combination: tuple[list[float], list[str]], exponent: int) -> None:
    coefficients, names = combination
    low, high = hullo.slope_bounds(coefficients, names)  # type: ignore[misc]
    scaled = hullo.slope_bounds([c * 2.0**exponent for c in coefficients], names)
    scale = 2.0**exponent * largest_slope(coefficients, [hullo.get_base(name) for name in names])
    assert scaled == pytest.approx((low * 2.0**exponent, high * 2.0**exponent), rel=0, abs=2e-9 * scale)


class TestWhatIsUnknown:
    @pytest.fixture
    def own(self) -> str:
        return hullo.add_base("own", "x + 0.5 * exp(-square((x - 1e7) / 1e3))").name

    def test_base_of_a_user_is_unknown(self, own: str) -> None:
        assert hullo.slope_bounds([0.5, 0.5], ["relu", own]) is None
        assert hullo.is_monotone([0.5, 0.5], ["relu", own]) is None
        assert hullo.get_base(own).is_monotone is None

    def test_zero_coefficients_are_ignored(self, own: str) -> None:
        assert hullo.slope_bounds([2.0, 0.0], ["tanh", own]) == (0.0, 2.0)
        assert hullo.is_monotone([2.0, 0.0], ["tanh", own]) is True

    def test_groups_get_one_answer_each(self, own: str) -> None:
        assert hullo.is_monotone([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], ["tanh", own]) == [True, None, False]


@pytest.mark.parametrize(
    ("coefficients", "expected"),
    [([1.0, -1.0000005], True), ([1.0, -1.000002], False), ([1e-9, -2e-9], False), ([1e-9, -1e-9], True)],
)
def test_rounding_errors_are_not_decreases(coefficients: list[float], expected: bool) -> None:
    assert hullo.is_monotone(coefficients, ["identity", "tanh"]) is expected


@pytest.mark.parametrize("name", NO_WAVES)
def test_slopes_turn_nowhere_else(name: str) -> None:
    base = hullo.get_base(name)
    edges = sorted({-35.0, 35.0, *base.kinks, *base.turns})
    for low, high in itertools.pairwise(edges):
        x = torch.linspace(low + 1e-9, high - 1e-9, 20_001, dtype=torch.float64)
        steps = base.derivative(x).diff()
        rounding = 1e-13 * max(1.0, base.derivative(x).abs().max().item())
        assert bool((steps >= -rounding).all()) or bool((steps <= rounding).all()), (low, high)
    for turn in base.turns:  # where slopes are the same on both sides
        before, after = base.derivative(torch.tensor([turn - 1e-5, turn + 1e-5], dtype=torch.float64)).tolist()
        assert before == pytest.approx(after, abs=1e-11 * max(map(abs, base.slope_bounds)))


@pytest.mark.parametrize("other", ["tanh", "relu", "relu2", "sin(2)", "snake"])
def test_waves_beside_other_slopes_have_no_certain_bounds(other: str) -> None:
    assert hullo.slope_bounds([0.2, 1.0], ["sin", other]) is None
    assert hullo.is_monotone([-1.0, 0.01], ["sin", other]) is None


def test_slope_before_a_jump_counts_wherever_the_kink_is() -> None:
    """The slope rises to 1.3 at 0.3, inside of a cell of equal width, and is 0.5 beyond."""
    bent = hullo.Base(
        "bent",
        torch.tanh,  # not read here
        lambda x, y: torch.where(x < 0.3, x.clamp(-1.0, 0.3) + 1, 0.5),
        value_at_zero=0.0,
        slopes_at_zero=(1.0, 1.0),
        slope_bounds=(0.0, 1.3),
        kinks=(0.3,),
    )
    assert hullo.slope_bounds([1.0], [bent]) == pytest.approx((0.0, 1.3), abs=1e-7)
    assert hullo.slope_bounds([-1.0, 1.0], [bent, "identity"]) == pytest.approx((-0.3, 1.0), abs=1e-7)
