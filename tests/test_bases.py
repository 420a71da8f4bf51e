"""Test the names, sets and additions of base functions, and the errors for invalid ones."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import hullo
from hullo.bases import base as bases
from hullo.bases import in_order, resolve


class TestNames:
    def test_base_has_the_name_it_was_found_by(self) -> None:
        for name in hullo.list_bases():
            assert hullo.get_base(name).name == name
            assert hullo.get_base(name) is hullo.get_base(name)
            assert repr(hullo.get_base(name)) == f"Base({name})"

    @given(st.floats(-1e6, 1e6))
    def test_names_with_parameters_round_trip(self, slope: float) -> None:
        result = hullo.get_base(f"leaky_relu({slope!r})")
        assert result.slopes_at_zero == (slope, 1.0)
        assert hullo.get_base(result.name) is result

    @pytest.mark.parametrize(
        ("written", "name"),
        [
            ("leaky_relu(0.2)", "leaky_relu(0.2)"),
            (" leaky_relu ( 0.20 ) ", "leaky_relu(0.2)"),
            ("leaky_relu(.01)", "leaky_relu"),
            ("leaky_relu()", "leaky_relu"),
            ("elu(2.0)", "elu(2)"),
            ("leaky_relu(-0.0)", "leaky_relu(0)"),
            ("unit_softplus(2)", "unit_softplus(2)"),
            ("relu()", "relu"),
        ],
    )
    def test_one_function_has_one_name(self, written: str, name: str) -> None:
        assert hullo.get_base(written).name == name
        assert hullo.get_base(written) is hullo.get_base(name)

    def test_base_accepts_a_base(self) -> None:
        relu = hullo.get_base("relu")
        assert hullo.get_base(relu) is relu

    @pytest.mark.parametrize("name", ["tanh", "leaky_relu(0.2)", "unit_gelu"])
    def test_copies_and_pickles_are_the_same_object(self, name: str) -> None:
        base = hullo.get_base(name)
        assert pickle.loads(pickle.dumps(base)) is base
        assert copy.deepcopy(base) is base
        assert copy.copy(base) is base

    @pytest.mark.parametrize(
        ("written", "name"),
        [
            ("LeakyReLU(0.2)", "leaky_relu(0.2)"),
            ("SiLU", "silu"),
            ("hard_tanh", "hardtanh"),
        ],
    )
    def test_names_of_classes_are_accepted(self, written: str, name: str) -> None:
        assert hullo.get_base(written) is hullo.get_base(name)
        assert hullo.get_base(written).name == name

    def test_pickle_contains_only_the_name(self) -> None:
        assert len(pickle.dumps(hullo.get_base("gelu"))) < 80

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            ("rellu", r"unknown base function 'rellu' \(did you mean 'relu'"),
            ("", r"unknown base function ''; hullo.list_bases\(\)"),
            ("relu(", r"unknown base function 'relu\('"),
            ("identity relu", "unknown base function 'identity relu'"),
            ("relu(1)", r"'relu\(1\)': relu is written relu, without parameters"),
            ("elu(1,2)", r"'elu\(1,2\)': elu is written elu\(alpha=1\) with finite numbers"),
            ("elu(nan)", r"'elu\(nan\)': elu is written elu\(alpha=1\) with finite numbers"),
            ("elu(inf)", r"with finite numbers"),
            ("elu(alpha=2)", r"'elu\(alpha=2\)': elu is written elu\(alpha=1\)"),
            ("elu(1,)", r"elu is written elu\(alpha=1\)"),
            ("relu(two)", r"without parameters"),
        ],
    )
    def test_unknown_name_is_quoted_with_a_suggestion(self, written: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            hullo.get_base(written)

    @pytest.mark.parametrize("value", [torch.tanh, 3, None, ["relu"]])
    def test_non_string_is_rejected(self, value: object) -> None:
        with pytest.raises(TypeError, match=r"invalid base .* of type"):
            hullo.get_base(value)  # type: ignore[arg-type]


class TestSets:
    def test_order_of_bases_is_kept(self) -> None:
        assert [item.name for item in resolve(["tanh", hullo.get_base("relu"), "identity"])] == [
            "tanh",
            "relu",
            "identity",
        ]

    def test_empty_set_of_bases_is_rejected(self) -> None:
        with pytest.raises(ValueError, match="got none; for example 'identity'"):
            resolve([])

    def test_comma_separated_string_is_rejected(self) -> None:
        with pytest.raises(TypeError, match="'identity,relu' is one string"):
            resolve("identity,relu")

    @pytest.mark.parametrize("again", ["leaky_relu", "leaky_relu(0.01)"])
    def test_repeated_base_is_rejected(self, again: str) -> None:
        with pytest.raises(ValueError, match=r"'leaky_relu' .* more than once"):
            resolve(["leaky_relu", "tanh", again])

    @pytest.mark.parametrize(
        ("names", "culprit", "others"),
        [
            (["identity", "relu", "leaky_relu"], "leaky_relu", "identity, relu"),
            (["tanh", "leaky_relu", "relu", "leaky_relu(0.3)"], "leaky_relu(0.3)", "leaky_relu, relu"),
            (["identity", "leaky_relu(1)"], "leaky_relu(1)", "identity"),
            (["elu", "relu", "tanh", "elu(2)"], "elu(2)", "elu, relu"),
            (["celu", "elu"], "elu", "celu"),
            (["identity", "sigmoid", "silu", "unit_silu"], "unit_silu", "silu"),
        ],
    )
    def test_linearly_dependent_bases_are_rejected_with_the_relation(
        self, names: list[str], culprit: str, others: str
    ) -> None:
        with pytest.raises(ValueError, match="is a linear combination of") as refusal:
            resolve(names, strict=False)
        assert f"{culprit!r} is a linear combination of {others};" in str(refusal.value)
        assert "Leave one of them out" in str(refusal.value)

    def test_bases_that_overflow_are_compared_where_they_are_finite(self) -> None:
        hullo.add_base("hyperbolic", torch.sinh)
        hullo.add_base("half_hyperbolic", lambda x: (x + torch.sinh(x)) / 2)
        assert len(resolve(["identity", "relu", "hyperbolic"])) == 3
        with pytest.raises(ValueError, match="'half_hyperbolic' is a linear combination of identity, hyperbolic"):
            resolve(["identity", "relu", "hyperbolic", "half_hyperbolic"])

    @pytest.mark.parametrize(("part", "is_apart"), [(1e-7, True), (1e-11, False)])
    def test_bases_that_differ_by_little_are_independent_and_by_rounding_are_not(
        self, part: float, is_apart: bool
    ) -> None:
        names = ["identity", hullo.add_base("near", f"x + {part} * tanh(x)").name]
        with contextlib.nullcontext() if is_apart else pytest.raises(ValueError, match="is a linear combination of"):
            resolve(names, strict=False)

    def test_all_independent_admissible_bases_combine(self) -> None:
        dependent = ("leaky_relu", "celu", "unit_selu")  # of identity, relu and elu
        admissible = [n for n in hullo.list_bases() if hullo.get_base(n).is_admissible and n not in dependent]
        assert len(resolve(admissible)) == len(admissible) >= 16

    @pytest.mark.parametrize(
        "raw", ["gelu", "silu", "mish", "softplus", "softplus(2)", "sigmoid", "selu", "erf", "hardswish"]
    )
    def test_inadmissible_base_is_rejected_with_a_working_remedy(self, raw: str) -> None:
        with pytest.raises(ValueError, match="f\\(0\\) = 0 and slope 1 from at least one side") as refusal:
            resolve(["identity", raw])
        assert f"base function {raw!r} has value" in str(refusal.value)
        assert f"use its normalized form 'unit_{raw}'" in str(refusal.value)
        assert "strict=False" in str(refusal.value)
        assert resolve(["identity", f"unit_{raw}"])[1].is_admissible
        assert resolve(["identity", raw], strict=False)[1].name == raw

    def test_no_unit_form_is_suggested_if_there_is_none(self) -> None:
        with pytest.raises(ValueError, match=r"'quick_gelu' has value 0 and slopes 0\.5 .* side: pass strict=False"):
            resolve(["quick_gelu"])


class TestAdditions:
    def test_properties_of_an_added_base_are_measured(self) -> None:
        added = hullo.add_base("damped", lambda x, rate: x * torch.exp(-rate * x * x), parameters={"rate": 1.0})
        assert hullo.list_bases()[-1] == "damped"
        assert hullo.get_base("damped") is added
        assert (added.value_at_zero, added.slopes_at_zero) == (0.0, (1.0, 1.0))
        assert added.slope_bounds == pytest.approx((-2 * math.exp(-1.5), 1.0), abs=1e-6)
        assert not added.is_monotone
        assert added.is_admissible
        other = hullo.get_base("damped(4)")
        torch.testing.assert_close(other.function(torch.tensor(0.5)), torch.tensor(0.5 * math.exp(-1)))
        assert pickle.loads(pickle.dumps(other)) is other

    @pytest.mark.parametrize(
        ("name", "function", "slopes", "bounds"),
        [
            ("leaky", lambda x: torch.where(x > 0, x, 0.1 * x), (0.1, 1.0), (0.1, 1.0)),
            ("bell", lambda x: math.e / 2 * (torch.exp(-((x - 1) ** 2)) - math.exp(-1)), (1.0, 1.0), None),
            ("moved", lambda x: 2 * (F.softplus(x) - math.log(2)), (1.0, 1.0), (0.0, 2.0)),
            ("steep", torch.sinh, (1.0, 1.0), (1.0, math.inf)),
            ("power", lambda x: x + x**3, (1.0, 1.0), (1.0, math.inf)),
            ("ripple", lambda x: torch.sin(1000 * x) / 1000, (1.0, 1.0), (-1.0, 1.0)),
            ("far", lambda x: torch.tanh(x) + 1e4 - 1e4, (1.0, 1.0), (0.0, 1.0)),
        ],
    )
    def test_slopes_at_the_origin_are_measured_up_to_rounding(
        self,
        name: str,
        function: Callable[[Tensor], Tensor],
        slopes: tuple[float, float],
        bounds: tuple[float, float] | None,
    ) -> None:
        added = hullo.add_base(name, function)
        assert added.slopes_at_zero == pytest.approx(slopes, abs=1e-9)
        assert added.is_admissible
        if bounds:
            assert added.slope_bounds == pytest.approx(bounds, abs=1e-6)

    def test_function_with_a_jump_at_the_origin_is_not_admissible(self) -> None:
        assert not hullo.add_base("jump", lambda x: x + (x < 0).to(x.dtype) - (x > 0).to(x.dtype)).is_admissible

    def test_given_derivative_is_used_and_may_be_a_number(self) -> None:
        asked = []

        def derivative(x: Tensor) -> Tensor:
            asked.append(x)
            return 1 / torch.cosh(x).square()

        added = hullo.add_base("my_tanh", torch.tanh, derivative)
        asked.clear()
        added.derivative(torch.zeros(3))
        assert len(asked) == 1
        straight = hullo.add_base("straight", lambda x: 2 * x, lambda x: 2.0)
        torch.testing.assert_close(straight.derivative(torch.randn(5)), torch.full((5,), 2.0))
        assert straight.slope_bounds == (2.0, 2.0)

    def test_added_base_trains_and_is_twice_differentiable(self) -> None:
        hullo.add_base("cubic", lambda x: x + x**3)
        act = hullo.AffineHull("identity", "cubic", init=[0.5, 0.5], dtype=torch.float64)
        x = torch.tensor([[-1.0, 0.5, 2.0]], dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(act(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(first, 1 + 1.5 * x**2)
        torch.testing.assert_close(second, 3 * x.detach())
        assert torch.autograd.gradcheck(lambda x, raw: hullo.combine(x, raw, act.bases), (x, act.raw))

    def test_parameters_have_default_values(self) -> None:
        with pytest.raises(TypeError, match=r"parameters=\['a'\]"):
            hullo.add_base("without_default", "a * x", parameters=["a"])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"parameters={'a': 'b'}: give names and default values"):
            hullo.add_base("without_number", "a * x", parameters={"a": "b"})  # type: ignore[dict-item]

    def test_function_is_callable_or_a_formula(self) -> None:
        with pytest.raises(TypeError, match="function=3: give a function of a tensor, or a formula"):
            hullo.add_base("number", 3)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("function", "derivative", "message"),
        [
            (lambda x: x.sum(), None, "must return a tensor like its input, of the same shape and dtype"),
            (lambda x: x.float(), None, "must return a tensor like its input"),
            (lambda x: 0.0, None, "must return a tensor like its input"),
            (lambda x: x - x.mean(), None, "must act on each entry alone"),
            (lambda x: x / x.abs().amax(), None, "must act on each entry alone"),
            (lambda x: x.softmax(0), None, "must act on each entry alone"),
            (lambda x: x.cumsum(0), None, "must act on each entry alone"),
            (lambda x: x + 1e-3 * torch.rand_like(x), None, "must act on each entry alone"),
            (lambda x: x.tanh_(), None, "must not change its input"),
            (torch.tanh, torch.cos, "the derivative of base function 'broken' disagrees with its values: it is "),
            (torch.tanh, lambda x: 1.0001 * (1 - x.tanh().square()), "disagrees with its values"),
            (torch.tanh, lambda x: x * math.nan, "disagrees with its values"),
            (torch.tanh, lambda x: x[:3], "derivative of base function 'broken' must return a tensor like its input"),
            (lambda x: x.detach().tanh(), lambda x: 1.0, "disagrees with its values"),
            (lambda x: 1 / x, None, r"'broken' .* a finite one at the origin, but f\(0\) = inf"),
            (lambda x: torch.sin(x) / x, None, r"f\(0\) = nan"),
            (torch.sqrt, None, r"f\(-9.095e-13\) = nan"),
            (lambda x: torch.sqrt(x + 1) - 1, None, r"'broken' must have a value everywhere, .* but f\(.*\) = nan"),
        ],
    )
    def test_invalid_function_is_rejected_and_not_added(
        self, function: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor] | None, message: str
    ) -> None:
        before, line = hullo.list_bases(), bases.real_line().clone()
        with pytest.raises(ValueError, match=message):
            hullo.add_base("broken", function, derivative)
        assert hullo.list_bases() == before
        assert torch.equal(bases.real_line(), line)
        with pytest.raises(ValueError, match="unknown base function 'broken'"):
            hullo.get_base("broken")

    @pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
    def test_function_that_raises_is_not_added(self, error: type[BaseException]) -> None:
        def function(x: Tensor) -> Tensor:
            raise error

        before = hullo.list_bases()
        with pytest.raises(error):
            hullo.add_base("broken", function)
        assert hullo.list_bases() == before

    @pytest.mark.parametrize("name", ["two words", "", "2nd", "f(x)", None, 7])
    def test_invalid_name_is_rejected(self, name: object) -> None:
        with pytest.raises(ValueError, match="invalid name") as refusal:
            hullo.add_base(name, torch.tanh)  # type: ignore[arg-type]
        assert repr(name) in str(refusal.value)

    def test_existing_name_is_rejected(self) -> None:
        before, relu = hullo.list_bases(), hullo.get_base("relu")
        with pytest.raises(ValueError, match="'relu' already"):
            hullo.add_base("relu", torch.tanh)
        with pytest.raises(ValueError, match="'leaky_relu' already"):
            hullo.add_base("LeakyReLU", torch.tanh)
        assert hullo.list_bases() == before
        assert hullo.get_base("relu") is relu


@pytest.mark.parametrize("name", ["my__act", "act_", "_act"])
def test_names_that_a_state_dict_cannot_separate_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        hullo.add_base(name, "x * exp(-square(x))")
    assert name not in hullo.list_bases()


def test_in_order_sorts_and_removes_duplicates() -> None:
    given = [hullo.get_base(name) for name in ("tanh", "relu", "tanh", "leaky_relu(0.2)", "leaky_relu(0.1)")]
    assert [item.name for item in in_order(given)] == ["relu", "tanh", "leaky_relu(0.1)", "leaky_relu(0.2)"]
