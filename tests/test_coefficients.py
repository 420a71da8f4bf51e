"""Test that coefficients lie in their set exactly: for any raw parameters, and after a step of any optimizer."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import hullo
from hullo.coefficients import CoefficientSet
from hullo.modules import HULLS as KINDS
from hullo.parametrizations import feasible_gradient, get_parametrization

SIMPLEX = hullo.coefficients.SIMPLEX.choices
HYPERPLANE = hullo.coefficients.HYPERPLANE.choices
ORTHANT = hullo.coefficients.ORTHANT.choices
PARAMETRIZATIONS = (*SIMPLEX, *HYPERPLANE, *ORTHANT, *hullo.coefficients.SPACE.choices)
NEVER_ZERO = ("softmax", "softplus")
HULLS = {
    parametrization: hull
    for hull in (hullo.ConvexHull, hullo.AffineHull, hullo.ConicHull, hullo.LinearHull)
    for parametrization in hull.coefficient_set.choices
}
DTYPES = (torch.float32, torch.float64)

numbers = st.floats(-1e9, 1e9, width=32) | st.floats(-3, 3, width=32)
raws = st.lists(numbers, min_size=1, max_size=7)
small = st.lists(st.floats(-3, 3), min_size=2, max_size=6)


def closest_in_simplex(raw: Tensor) -> Tensor:
    """Return max(r - t, 0) with t found by bisection so that the sum is one."""
    low, high = raw.min() - 1, raw.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (raw - middle).clamp(min=0).sum() > 1 else (low, middle)
    return (raw - high).clamp(min=0)


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
class TestEveryParametrization:
    @given(numbers=raws)
    def test_coefficients_are_in_their_set_for_any_raw_parameters(
        self, parametrization: str, dtype: torch.dtype, numbers: list[float]
    ) -> None:
        raw = torch.tensor(numbers, dtype=dtype)
        result = get_parametrization(parametrization).transform(raw)
        assert len(result) == len(raw) + get_parametrization(parametrization).fewer
        if parametrization in SIMPLEX + HYPERPLANE:
            # A coefficient of 1e9 is known to within 1e9 times the type's precision, and so is the sum.
            size = 1.0 if parametrization in SIMPLEX else max(1.0, raw.abs().max().item())
            assert result.double().sum().item() == pytest.approx(1, abs=4 * len(result) * torch.finfo(dtype).eps * size)
        if parametrization in SIMPLEX + ORTHANT:
            assert result.min() >= 0

    @given(numbers=small)
    def test_inverse_round_trips(self, parametrization: str, dtype: torch.dtype, numbers: list[float]) -> None:
        given = torch.tensor(numbers, dtype=dtype)
        if parametrization in SIMPLEX:
            given = given.softmax(-1)
        elif parametrization in HYPERPLANE:
            given = given - given.mean() + 1 / len(given)
        elif parametrization in ORTHANT:
            given = given.abs() + 0.1
        actual = get_parametrization(parametrization).transform(get_parametrization(parametrization).inverse(given))
        torch.testing.assert_close(actual, given, rtol=0, atol=32 * torch.finfo(dtype).eps)

    def test_rows_are_independent(self, parametrization: str, dtype: torch.dtype) -> None:
        raw = 3 * torch.randn(2, 5, 4, dtype=dtype)
        gradient = torch.randn(2, 5, 4 + get_parametrization(parametrization).fewer, dtype=dtype)
        together = get_parametrization(parametrization).transform(raw)
        pulled = get_parametrization(parametrization).pullback(raw, together, gradient)
        for i in range(2):
            for j in range(5):
                alone = get_parametrization(parametrization).transform(raw[i, j])
                torch.testing.assert_close(together[i, j], alone)
                torch.testing.assert_close(
                    pulled[i, j], get_parametrization(parametrization).pullback(raw[i, j], alone, gradient[i, j])
                )

    @given(numbers=raws)
    def test_backward_equals_the_pullback(self, parametrization: str, dtype: torch.dtype, numbers: list[float]) -> None:
        raw = torch.tensor(numbers, dtype=dtype, requires_grad=True)
        actual = get_parametrization(parametrization).transform(raw)
        gradient = torch.linspace(-1, 2, len(actual), dtype=dtype).sin()
        (automatic,) = torch.autograd.grad(actual, raw, gradient)
        pulled = get_parametrization(parametrization).pullback(raw.detach(), actual.detach(), gradient)
        torch.testing.assert_close(automatic, pulled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "parametrization", [parametrization for parametrization in PARAMETRIZATIONS if parametrization not in NEVER_ZERO]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 20])
def test_vertices_are_reached_exactly(parametrization: str, dtype: torch.dtype, n: int) -> None:
    corners = torch.eye(n, dtype=dtype)
    assert torch.equal(
        get_parametrization(parametrization).transform(get_parametrization(parametrization).inverse(corners)), corners
    )


@pytest.mark.parametrize("parametrization", [*PARAMETRIZATIONS, "given"])
def test_parametrization_is_the_same_object_after_pickling(parametrization: str) -> None:
    assert pickle.loads(pickle.dumps(get_parametrization(parametrization))) is get_parametrization(parametrization)
    assert copy.deepcopy(get_parametrization(parametrization)) is get_parametrization(parametrization)
    assert repr(get_parametrization(parametrization)) == f"Parametrization({parametrization!r})"


def test_smallest_positive_coefficients_have_raw_parameters() -> None:
    for hull, parametrization in ((hullo.ConvexHull, "softmax"), (hullo.ConicHull, "softplus")):
        act = hull("identity", "relu", init=[1e-12, 1 - 1e-12], parametrization=parametrization)
        torch.testing.assert_close(act.coefficients.tolist(), [1e-12, 1.0], rtol=1e-5, atol=0)
    act.coefficients = [1000.0, 1e-12]
    torch.testing.assert_close(act.coefficients.tolist(), [1000.0, 1e-12], rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_coefficients_have_accurate_gradients(dtype: torch.dtype) -> None:
    raw = torch.tensor([-80.0, -30.0, -17.0, -3.0, 0.0, 5.0, 40.0], dtype=dtype)
    softplus = get_parametrization("softplus")
    pulled = softplus.pullback(raw, softplus.transform(raw), torch.ones_like(raw))
    torch.testing.assert_close(pulled, raw.sigmoid(), rtol=1e-5, atol=0)


def test_clamped_coefficients_at_zero_move_only_up() -> None:
    raw, gradient = torch.tensor([-1.0, -1.0, 0.0, 2.0, 2.0]), torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
    restrict = get_parametrization("clamped").restrict
    assert restrict is not None
    assert restrict(raw, gradient).tolist() == [0.0, -1.0, 0.0, 1.0, -1.0]


class TestProjection:
    @given(raws)
    def test_projection_is_the_closest_point(self, numbers: list[float]) -> None:
        raw = torch.tensor(numbers, dtype=torch.float64)
        actual = get_parametrization("projection").transform(raw)
        torch.testing.assert_close(actual, closest_in_simplex(raw), rtol=0, atol=1e-6)

    @given(small)
    def test_projection_fixes_the_simplex(self, numbers: list[float]) -> None:
        inside = torch.tensor(numbers).softmax(-1)
        torch.testing.assert_close(get_parametrization("projection").transform(inside), inside, rtol=0, atol=1e-7)

    def test_small_coefficients_keep_their_precision(self) -> None:
        given = torch.tensor([1e-6, 0.25, 0.749999])
        torch.testing.assert_close(get_parametrization("projection").transform(given)[0], given[0], rtol=0.05, atol=0)

    def test_coefficients_that_sum_to_one_are_returned_exactly(self) -> None:
        inside = torch.tensor([0.1, 0.9], dtype=torch.float64)
        assert torch.equal(get_parametrization("projection").transform(inside), inside)

    @given(small, st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 2**31))
    def test_feasible_gradient_is_the_closest_feasible_one(
        self, numbers: list[float], at_zero: list[bool], seed: int
    ) -> None:
        """The conditions of Karush, Kuhn and Tucker for min |g - gradient| with sum g = 0, g_i <= 0 where c_i = 0."""
        zero = torch.tensor(at_zero[: len(numbers)])
        zero[0] = False
        coefficients = torch.tensor(numbers, dtype=torch.float64).masked_fill(zero, -torch.inf).softmax(-1)
        generator = torch.Generator().manual_seed(seed)
        gradient = torch.randn(len(numbers), dtype=torch.float64, generator=generator)
        g = feasible_gradient(coefficients, gradient)
        multiplier = gradient - g - (gradient - g)[~zero].mean()
        assert g.sum().abs() < 1e-12
        assert bool((g[zero] <= 0).all())
        assert multiplier[~zero].abs().max() < 1e-12  # nothing else restrains those inside
        assert bool((multiplier[zero] >= -1e-12).all())
        assert bool(((multiplier * g).abs()[zero] < 1e-12).all())

    def test_rounding_does_not_move_a_coefficient_off_its_face(self) -> None:
        raw, gradient = torch.tensor([0.0, 0.5138302, 0.4861697]), torch.tensor([1.0, 0.0, 0.0])
        assert 0 < get_parametrization("projection").transform(raw)[0] < 1e-7  # a rounding error
        restrict = get_parametrization("projection").restrict
        assert restrict is not None
        assert restrict(raw, gradient).tolist() == [0.0, 0.0, 0.0]

    @given(small)
    def test_gradient_inside_the_simplex_matches_the_formula(self, numbers: list[float]) -> None:
        inside = torch.tensor(numbers, dtype=torch.float64).softmax(-1)
        raw = (inside + 0.3).requires_grad_()
        plain = (raw - (raw.sum() - 1) / len(raw)).clamp(min=0)
        gradient = torch.arange(len(raw), dtype=torch.float64).cos()
        (expected,) = torch.autograd.grad(plain, raw, gradient)
        (actual,) = torch.autograd.grad(get_parametrization("projection").transform(raw), raw, gradient)
        torch.testing.assert_close(actual, expected)

    @given(small)
    def test_forward_mode_has_the_derivative_of_reverse_mode(self, numbers: list[float]) -> None:
        raw = torch.tensor(numbers, dtype=torch.float64)
        for transform in (get_parametrization(name).transform for name in ("projection", "clamped")):
            torch.testing.assert_close(torch.func.jacfwd(transform)(raw), torch.func.jacrev(transform)(raw))

    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
    def test_coefficient_at_zero_can_grow_again(self, optimizer: type[torch.optim.Optimizer]) -> None:
        act = hullo.ConvexHull("identity", "relu", "tanh", init="relu")
        assert act.coefficients.tolist() == [0.0, 1.0, 0.0]
        learn(act, lambda x: 0.6 * x + 0.4 * torch.tanh(x), optimizer(act.parameters(), lr=0.02), steps=300)
        torch.testing.assert_close(act.coefficients.detach(), torch.tensor([0.6, 0.0, 0.4]), rtol=0, atol=0.05)

    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
    def test_training_reaches_a_vertex_exactly(self, optimizer: type[torch.optim.Optimizer]) -> None:
        act = hullo.ConvexHull("identity", "relu", "tanh")
        learn(act, torch.abs, optimizer(act.parameters(), lr=0.02), steps=200)
        assert act.coefficients[[0, 2]].tolist() == [0.0, 0.0]
        assert act.coefficients[1].item() == pytest.approx(1, abs=1e-6)


def learn(
    act: torch.nn.Module,
    target: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
    after_each: Callable[[], None] = lambda: None,
) -> None:
    x = torch.linspace(-3, 3, 61)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (act(x) - target(x)).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
        after_each()


OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.3),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.5),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.3),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.3, weight_decay=0.5),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1.0),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=10.0),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.5),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=1.0, max_iter=4),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_coefficients_stay_in_the_set_with_any_optimizer(optimizer: str, parametrization: str) -> None:
    act = HULLS[parametrization]("identity", "relu", "tanh", parametrization=parametrization)
    moved = []

    def check() -> None:
        c = act.coefficients.detach().double()
        moved.append((c - 1 / 3).abs().max().item())
        if parametrization in SIMPLEX + HYPERPLANE:
            assert c.sum().item() == pytest.approx(1, abs=1e-6 * max(1, act.raw.abs().max().item()))
        if parametrization in SIMPLEX + ORTHANT:
            assert c.min() >= 0

    learn(act, lambda x: torch.sin(2 * x), OPTIMIZERS[optimizer](list(act.parameters())), steps=25, after_each=check)
    assert max(moved) > 0.05


class TestSets:
    @pytest.mark.parametrize("allowed", [hullo.coefficients.SIMPLEX, hullo.coefficients.HYPERPLANE])
    def test_errors_describe_the_violation(self, allowed: CoefficientSet) -> None:
        describe = allowed.describe_violation
        assert describe(torch.tensor([0.25, 0.75])) == ""
        assert describe(torch.tensor([0.5, 0.6])) == "coefficients must sum to one, these sum to 1.1"

    @pytest.mark.parametrize("allowed", [hull.coefficient_set for hull in KINDS.values()])
    @pytest.mark.parametrize("number", [torch.nan, torch.inf])
    def test_coefficients_are_finite(self, allowed: CoefficientSet, number: float) -> None:
        assert allowed.describe_violation(torch.tensor([0.5, number])) == "coefficients must be finite numbers"

    def test_sums_are_as_exact_as_the_largest_coefficient(self) -> None:
        describe = hullo.coefficients.HYPERPLANE.describe_violation
        assert not describe(torch.tensor([300000.3, -299999.28]))  # float32
        assert describe(torch.tensor([300010.3, -299999.3]))

    def test_one_invalid_row_is_an_error(self) -> None:
        rows = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 0.9]])
        found = hullo.coefficients.HYPERPLANE.describe_violation(rows)
        assert found == "coefficients must sum to one, these sum to 0.9"

    @pytest.mark.parametrize(
        ("row", "kinds"),
        [
            ([0.5, 0.5], {"convex", "affine", "conic", "linear"}),
            ([1.5, -0.5], {"affine", "linear"}),
            ([2.0, 0.5], {"conic", "linear"}),
            ([2.0, -0.5], {"linear"}),
        ],
    )
    def test_each_set_has_its_rows(self, row: list[float], kinds: set[str]) -> None:
        found = {k for k, hull in KINDS.items() if not hull.coefficient_set.describe_violation(torch.tensor(row))}
        assert found == kinds

    @pytest.mark.parametrize("allowed", [hullo.coefficients.SIMPLEX, hullo.coefficients.ORTHANT])
    def test_positive_parametrization_cannot_start_at_zero(self, allowed: CoefficientSet) -> None:
        vertex, (closed, never_zero) = torch.tensor([1.0, 0.0]), allowed.choices
        assert not allowed.describe_violation(vertex, closed)
        assert f"parametrization={closed!r} can start there" in allowed.describe_violation(vertex, never_zero)

    @pytest.mark.parametrize(("kind", "name"), [("convex", "free"), ("affine", ""), ("affine", "given"), ("convex", 3)])
    def test_unknown_parametrization_is_rejected(self, kind: str, name: object) -> None:
        choices = KINDS[kind].coefficient_set.choices
        with pytest.raises(ValueError, match=f"{name!r}.*{choices[0]}.*{choices[1]}"):
            KINDS[kind]("identity", "relu", parametrization=name)  # type: ignore[arg-type]
