"""Test hulls: initialization, setting coefficients, rejected arguments, learning."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hullo
import oracle
from hullo.modules import Hull
from made_hulls import HULLS, TRIO, every_hull, uneven


class TestConstruction:
    @every_hull
    @pytest.mark.parametrize("groups", [1, 4])
    def test_initial_coefficients_are_uniform(self, hull: type[Hull], parametrization: str, groups: int) -> None:
        act = hull(*TRIO, parametrization=parametrization, groups=groups)
        assert act.coefficients.shape == ((3,) if groups == 1 else (groups, 3))
        torch.testing.assert_close(act.coefficients.detach(), torch.full_like(act.coefficients, 1 / 3))
        assert torch.equal(act.raw, hull(*TRIO, parametrization=parametrization, groups=groups).raw)

    @every_hull
    def test_output_is_the_combination_of_bases(self, hull: type[Hull], parametrization: str) -> None:
        for groups, channel_dim in ((1, 1), (2, 1), (3, -1)):
            act = uneven(hull, parametrization, groups, channel_dim=channel_dim)
            x = torch.randn(4, 6, 9)
            exact = oracle.combine(x, act.coefficients.detach(), TRIO, channel_dim)
            torch.testing.assert_close(act(x).detach(), exact.float(), rtol=1e-5, atol=1e-6)

    @every_hull
    def test_any_valid_init_is_accepted(self, hull: type[Hull], parametrization: str) -> None:
        row = [0.2, 0.5, 0.3]
        for start in (row, torch.tensor(row), tuple(row), torch.tensor(row, dtype=torch.float64, requires_grad=True)):
            torch.testing.assert_close(
                hull(*TRIO, init=start, parametrization=parametrization).coefficients.tolist(), row, rtol=0, atol=1e-6
            )
        shared = hull(*TRIO, init=row, parametrization=parametrization, groups=2)
        torch.testing.assert_close(shared.coefficients.tolist(), [row, row], rtol=0, atol=1e-6)

    @pytest.mark.parametrize(
        ("hull", "parametrization"), [pair for pair in HULLS if pair[1] not in ("softmax", "softplus")]
    )
    def test_init_by_name_starts_as_that_base(self, hull: type[Hull], parametrization: str) -> None:
        x = torch.linspace(-3, 3, 25)
        for name in ("gelu", "identity", "relu"):
            act = hull("identity", "relu", "gelu", init=name, parametrization=parametrization, strict=False)
            torch.testing.assert_close(act(x), hullo.get_base(name).function(x), rtol=0, atol=0)

    @pytest.mark.parametrize("given", [["relu", "tanh"], ("relu", "tanh"), iter(["relu", hullo.get_base("tanh")])])
    def test_bases_may_be_given_as_one_list(self, given: Any) -> None:
        assert repr(hullo.ConvexHull(given, groups=2)) == repr(hullo.ConvexHull("relu", "tanh", groups=2))

    def test_inplace_argument_is_accepted(self) -> None:
        act = hullo.AffineHull(*TRIO, inplace=True)
        x = torch.randn(5)
        before = x.clone()
        assert torch.equal(act(x), hullo.AffineHull(*TRIO)(before))
        assert torch.equal(x, before)

    def test_affine_init_may_be_negative(self) -> None:
        assert hullo.AffineHull("identity", "tanh", init=[2.0, -1.0]).coefficients.tolist() == [2.0, -1.0]

    @every_hull
    def test_single_base_is_that_base(self, hull: type[Hull], parametrization: str) -> None:
        act = hull("tanh", parametrization=parametrization)
        x = torch.randn(5, requires_grad=True)
        torch.testing.assert_close(act(x), torch.tanh(x), rtol=0, atol=1e-6)
        act(x).sum().backward()
        assert act.raw.grad is not None
        has_scale = hull in (hullo.ConicHull, hullo.LinearHull)
        assert bool(act.raw.grad.any()) == has_scale

    def test_strict_false_allows_inadmissible_bases(self) -> None:
        with pytest.raises(ValueError, match=r"'gelu'.*'unit_gelu'"):
            hullo.AffineHull("identity", "gelu")
        assert hullo.AffineHull("identity", "gelu", strict=False).spelling == "affine(identity,gelu)"

    def test_base_class_of_hulls_is_abstract(self) -> None:
        with pytest.raises(TypeError, match="make one of ConvexHull, AffineHull, ConicHull, LinearHull"):
            hullo.Hull("identity", "relu")

    def test_rounding_errors_are_not_printed(self) -> None:
        assert repr(hullo.AffineHull("relu", "tanh", init=[1 + 2e-8, -2e-8])) == "AffineHull(relu=1, tanh=0)"
        assert repr(hullo.LinearHull("relu", "tanh", init=[-2e-8, -0.0])) == "LinearHull(relu=-2e-08, tanh=0)"
        assert repr(hullo.LinearHull("relu", "tanh", init=[3.0, -3.1e-6])) == "LinearHull(relu=3, tanh=-3.1e-06)"

    def test_diverged_coefficients_are_printed(self) -> None:
        act = hullo.LinearHull("relu", "tanh")
        act.raw.data.copy_(torch.tensor([torch.inf, 0.5]))
        assert repr(act) == "LinearHull(relu=inf, tanh=0.5)"

    def test_repr_shows_bases_and_options(self) -> None:
        assert repr(hullo.AffineHull(*TRIO)) == "AffineHull(identity=0.33, relu=0.33, tanh=0.33)"
        assert repr(hullo.ConvexHull("relu", "elu(2)", init=[0.25, 0.75])) == "ConvexHull(relu=0.25, elu(2)=0.75)"
        grouped = hullo.ConvexHull("relu", "tanh", groups=4, channel_dim=-1, parametrization="softmax")
        assert repr(grouped) == "ConvexHull(relu, tanh, groups=4, channel_dim=-1, parametrization='softmax')"
        assert hullo.ConvexHull(*TRIO).spelling == "convex(identity,relu,tanh)"

    @pytest.mark.parametrize("given", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_coefficients_are_stored_in_float32_or_better(self, given: torch.dtype) -> None:
        kept = torch.float64 if given == torch.float64 else torch.float32
        assert hullo.AffineHull(*TRIO, dtype=given).raw.dtype == kept

    def test_default_dtype_is_used(self) -> None:
        torch.set_default_dtype(torch.float64)
        try:
            assert hullo.AffineHull(*TRIO).raw.dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


class TestAssignment:
    @every_hull
    def test_assigned_coefficients_are_returned(self, hull: type[Hull], parametrization: str) -> None:
        act = hull(*TRIO, parametrization=parametrization)
        parameter = act.raw
        act.coefficients = [0.2, 0.3, 0.5]
        torch.testing.assert_close(act.coefficients.tolist(), [0.2, 0.3, 0.5], rtol=0, atol=1e-6)
        act.coefficients = None
        torch.testing.assert_close(act.coefficients.tolist(), [1 / 3] * 3, rtol=0, atol=1e-6)
        assert act.raw is parameter

    def test_coefficients_can_be_assigned_by_name(self) -> None:
        act = hullo.AffineHull(*TRIO, groups=2)
        act.coefficients = "relu"
        assert act.coefficients.tolist() == [[0, 1, 0], [0, 1, 0]]

    @every_hull
    @pytest.mark.parametrize(
        ("value", "error", "message"),
        [
            ([torch.nan, 0.5, 0.5], ValueError, r"invalid coefficients \[nan, 0.5, 0.5\].*finite"),
            ([torch.inf, 0.0, 1.0], ValueError, "finite"),
            ([0.5, 0.5], ValueError, r"shape \(2,\).*give 3 numbers"),
            ([[0.2, 0.3, 0.5]] * 2, ValueError, r"shape \(2, 3\).*give 3 numbers"),
            (1.0, ValueError, r"shape \(\)"),
            (["a", "b", "c"], TypeError, r"\['a', 'b', 'c'\].*give 3 numbers"),
            ({"relu": 1.0}, TypeError, "{'relu': 1.0}.*give 3 numbers"),
            ("sin", ValueError, "'sin'.*not one of the bases"),
            ("rellu", ValueError, r"unknown base function 'rellu' .did you mean 'relu'"),
        ],
    )
    def test_invalid_coefficients_are_rejected_and_change_nothing(
        self, hull: type[Hull], parametrization: str, value: Any, error: type[Exception], message: str
    ) -> None:
        act = uneven(hull, parametrization)
        before = act.raw.detach().clone()
        with pytest.raises(error, match=message):
            act.coefficients = value
        assert torch.equal(act.raw, before)
        with pytest.raises(error, match=message):
            hull(*TRIO, init=value, parametrization=parametrization)

    @pytest.mark.parametrize("hull", [hullo.ConvexHull, hullo.ConicHull])
    def test_negative_coefficients_are_rejected_in_convex_and_conic_hulls(self, hull: type[Hull]) -> None:
        with pytest.raises(ValueError, match=r"\[2.0, -1.0\] .* con\w+\(relu,tanh\): .* one is -1"):
            hull("relu", "tanh", init=[2.0, -1.0])

    @pytest.mark.parametrize("hull", [hullo.ConvexHull, hullo.AffineHull])
    def test_coefficients_not_summing_to_one_are_rejected(self, hull: type[Hull]) -> None:
        act = hull(*TRIO)
        with pytest.raises(ValueError, match=r"\[0.5, 0.6, 0.1\] .* sum to 1.2"):
            act.coefficients = [0.5, 0.6, 0.1]
        assert act.coefficients.tolist() == pytest.approx([1 / 3] * 3)

    def test_one_invalid_row_is_rejected(self) -> None:
        with pytest.raises(ValueError, match=r"2 rows.*sum to 0.5"):
            hullo.AffineHull("relu", "tanh", groups=2, init=[[1.0, 0.0], [0.5, 0.0]])


class TestRefusals:
    @pytest.mark.parametrize("groups", [0, -1, 1.5, "2", True, None])
    def test_invalid_groups_are_rejected(self, groups: Any) -> None:
        with pytest.raises(ValueError, match=r"groups=.*one activation per layer") as refusal:
            hullo.AffineHull(*TRIO, groups=groups)
        assert f"groups={groups!r}" in str(refusal.value)

    @pytest.mark.parametrize("channel_dim", ["channels_last", 1.0, None, True])
    def test_invalid_channel_dim_is_rejected(self, channel_dim: Any) -> None:
        with pytest.raises(TypeError, match=r"channel_dim="):
            hullo.AffineHull(*TRIO, channel_dim=channel_dim)

    @pytest.mark.parametrize("dtype", ["float32", torch.int64, torch.complex64, float])
    def test_invalid_dtype_is_rejected(self, dtype: Any) -> None:
        with pytest.raises(TypeError, match=r"need a floating-point torch\.dtype such as torch\.float32") as refusal:
            hullo.AffineHull(*TRIO, dtype=dtype)
        assert f"dtype={dtype!r}" in str(refusal.value)

    def test_parametrization_of_another_hull_is_rejected(self) -> None:
        with pytest.raises(ValueError, match=r"'softmax'.*'recentred', 'free'"):
            hullo.AffineHull(*TRIO, parametrization="softmax")

    def test_invalid_input_is_rejected(self) -> None:
        with pytest.raises(TypeError, match=r"got one of torch\.int64 .* x\.float\(\)"):
            hullo.AffineHull(*TRIO)(torch.arange(3))
        with pytest.raises(ValueError, match=r"7 channels .* 2 equal groups"):
            hullo.AffineHull(*TRIO, groups=2)(torch.randn(3, 7))


def test_network_of_hulls_learns() -> None:
    model = nn.Sequential(nn.Linear(1, 16), hullo.AffineHull(*TRIO, groups=16), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x = torch.linspace(-3, 3, 64)[:, None]
    losses = []
    for _ in range(300):
        loss = (model(x) - torch.sin(2 * x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    torch.testing.assert_close(model[1].coefficients.sum(-1), torch.ones(16), rtol=0, atol=1e-5)


@pytest.mark.parametrize("is_training", [True, False])
@every_hull
def test_in_place_changes_of_coefficients_raise(hull: type[Hull], parametrization: str, is_training: bool) -> None:
    act = uneven(hull, parametrization)
    before = act.coefficients.tolist()
    with torch.set_grad_enabled(is_training):
        for change in (
            lambda c: operator.setitem(c, 0, 2.0),
            lambda c: c.mul_(2),
            lambda c: c.copy_(torch.ones(3)),
            lambda c: c.apply_(abs),
        ):
            with pytest.raises(TypeError, match=r"coefficients.* in place"):
                change(act.coefficients)
        copied = act.coefficients.clone()
        copied[0] = 2.0
        unchanged = coefficients = act.coefficients
        coefficients *= 2.0  # another tensor, as with a number
    assert unchanged.tolist() == before
    assert coefficients.tolist() == pytest.approx([2 * value for value in before])
    assert act.coefficients.tolist() == before
    with torch.no_grad():
        act.coefficients *= 1.0  # assigns what the product is
    assert act.coefficients.tolist() == pytest.approx(before, abs=1e-6)


@every_hull
def test_coefficients_keep_their_values_when_parameters_change(hull: type[Hull], parametrization: str) -> None:
    act = uneven(hull, parametrization)
    coefficients = act.coefficients
    before = coefficients.tolist()
    act.raw.data.mul_(-2)
    assert coefficients.tolist() == before != act.coefficients.tolist()


def test_results_of_operations_on_coefficients_are_plain_tensors(tmp_path: Path) -> None:
    act = hullo.AffineHull("identity", "relu")
    assert type(act.coefficients.detach()) is type(act.coefficients * 2) is Tensor
    assert repr(act.coefficients).startswith("tensor([0.5000, 0.5000]")
    torch.save(act.coefficients, tmp_path / "coefficients.pt")
    assert type(torch.load(tmp_path / "coefficients.pt", weights_only=True)) is Tensor
