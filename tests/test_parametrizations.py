"""Test users' parametrizations, and that every backend supports each built-in parametrization."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hullo
from hullo.modules import HULLS
from hullo.parametrizations import _BUILT_IN
from hullo.population import Population

TRIO = ("identity", "relu", "tanh")
INIT = [0.2, 0.3, 0.5]


def to_sphere(raw: Tensor) -> Tensor:
    return raw.square() / raw.square().sum(-1, keepdim=True)


SPHERICAL = hullo.parametrizations.Parametrization("spherical", to_sphere, torch.sqrt)
"""c = r^2 / |r|^2, which reaches the vertices of the simplex."""


def to_softmax(raw: Tensor, temperature: float) -> Tensor:
    return torch.cat([raw * temperature, torch.zeros_like(raw[..., :1])], -1).softmax(-1)


def from_softmax(coefficients: Tensor, temperature: float) -> Tensor:
    logs = coefficients.log()
    return (logs[..., :-1] - logs[..., -1:]) / temperature


def tempered(temperature: float) -> hullo.parametrizations.Parametrization:
    """Return the softmax of raw parameters times a temperature, without the last raw parameter, which is zero."""
    transform, inverse = (
        functools.partial(function, temperature=temperature) for function in (to_softmax, from_softmax)
    )
    return hullo.parametrizations.Parametrization("tempered", transform, inverse, fewer=1)


OWN = [SPHERICAL, tempered(3.0)]


def make(own: hullo.parametrizations.Parametrization = SPHERICAL, **options: object) -> hullo.ConvexHull:
    return hullo.ConvexHull(*TRIO, parametrization=own, **({"init": INIT} | options))  # type: ignore[arg-type]


def plain(own: hullo.parametrizations.Parametrization, raw: Tensor, x: Tensor) -> Tensor:
    return sum(
        c * hullo.get_base(name).function(x) for c, name in zip(own.transform(raw).unbind(-1), TRIO, strict=True)
    )  # type: ignore[return-value]


@pytest.mark.parametrize("own", OWN, ids=repr)
class TestOwnParametrization:
    def test_values_and_gradients_match_autograd(self, own: hullo.parametrizations.Parametrization) -> None:
        hull, x = make(own, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        raw = hull.raw.detach().requires_grad_()

        def call(x: Tensor, raw: Tensor) -> Tensor:
            return torch.func.functional_call(hull, {hull.raw_name: raw}, (x,))

        torch.testing.assert_close(call(x, raw), plain(own, raw, x))
        actual = torch.autograd.grad(call(x, raw).square().sum(), (x, raw))
        expected = torch.autograd.grad(plain(own, raw, x).square().sum(), (x, raw))
        torch.testing.assert_close(actual, expected)
        assert torch.autograd.gradcheck(call, (x, raw))
        assert torch.autograd.gradgradcheck(call, (x, raw))

    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
    def test_coefficients_stay_in_the_set_during_training(
        self, own: hullo.parametrizations.Parametrization, optimizer: Callable[..., torch.optim.Optimizer]
    ) -> None:
        hull, x = make(own), torch.linspace(-3, 3, 64)
        steps, losses = optimizer(hull.parameters(), lr=0.1), []
        for _ in range(60):
            loss = (hull(x) - (0.9 * x.relu() + 0.1 * x.tanh())).square().mean()
            steps.zero_grad()
            loss.backward()
            steps.step()
            losses.append(loss.item())
            assert not hullo.coefficients.SIMPLEX.describe_violation(hull.coefficients.detach())
        assert losses[-1] < 0.05 * losses[0]

    def test_copies_pickles_and_state_dicts_keep_coefficients(
        self, own: hullo.parametrizations.Parametrization
    ) -> None:
        hull = make(own)
        assert list(hull.state_dict()) == [f"raw_{own.name}__identity__relu__tanh"]
        for other in (copy.deepcopy(hull), pickle.loads(pickle.dumps(hull)), make(own, init=None)):
            other.load_state_dict(hull.state_dict())
            assert torch.equal(other.coefficients, hull.coefficients)
            assert repr(other) == repr(hull)
            other.coefficients = [0.5, 0.25, 0.25]
            assert hull.coefficients.tolist() == pytest.approx(INIT)
            other.reset_parameters()
            assert other.coefficients.tolist() == pytest.approx(other.init.tolist())
        with pytest.raises(RuntimeError, match=f"raw_{own.name}"):
            hullo.ConvexHull(*TRIO).load_state_dict(hull.state_dict())

    def test_groups_scales_and_gates_support_it(self, own: hullo.parametrizations.Parametrization) -> None:
        rows = [INIT, [0.6, 0.2, 0.2]]
        hull, x = make(own, init=rows, groups=2, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
        alone = [make(own, init=row, dtype=torch.float64)(x) for row in rows]
        torch.testing.assert_close(hull(x), torch.cat([alone[0][:, :2], alone[1][:, 2:]], 1))
        torch.testing.assert_close(hullo.GatedHull(hull)(x, x + 1), hull(x) * (x + 1))
        for kind in ("hull", "base"):
            scaled = make(own, inner_scale=kind, dtype=torch.float64)
            torch.testing.assert_close(scaled(x), make(own, dtype=torch.float64)(x))

    @pytest.mark.parametrize(
        "traced",
        [
            lambda model, x: torch.compile(model, fullgraph=True, backend="aot_eager"),
            lambda model, x: torch.export.export(model, (x,)).module(),
            lambda model, x: torch.fx.symbolic_trace(model),
            lambda model, x: torch.jit.trace(model, x, check_trace=False),
            lambda model, x: hullo.fold(model),
            lambda model, x: torch.vmap(model),
        ],
        ids=["compile", "export", "fx", "jit", "fold", "vmap"],
    )
    def test_traced_and_folded_models_agree(
        self,
        own: hullo.parametrizations.Parametrization,
        traced: Callable[[nn.Module, Tensor], Callable[[Tensor], Tensor]],
    ) -> None:
        model, x = nn.Sequential(make(own)), torch.randn(4, 3)
        torch.testing.assert_close(traced(model, x)(x), model(x))
        assert f"{INIT[0]} {INIT[1]} {INIT[2]}" in str(hullo.summary(model))


def test_replace_activations_supports_it() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(5, 3)
    before = model(x)
    model = hullo.replace_activations(model, hull=hullo.ConvexHull, parametrization=SPHERICAL)
    torch.testing.assert_close(model(x), before)
    with pytest.raises(ValueError, match=r"'spherical'.*load_state_dict"):
        hullo.restore(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), model.state_dict())


def test_coefficients_are_exact_under_autocast() -> None:
    mix = torch.eye(3) * 0.5 + torch.full((3, 3), 0.5 / 3)
    own = hullo.parametrizations.Parametrization(
        "mixed", lambda raw: raw.softmax(-1) @ mix.to(raw), lambda c: (c @ mix.to(c).inverse()).log()
    )
    hull = make(own)
    expected = hull(torch.ones(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert hull.coefficients.tolist() == pytest.approx(INIT, abs=1e-6)
        assert torch.equal(hull(torch.ones(1)), expected)


@pytest.mark.parametrize("copied", [lambda hull: hull, copy.deepcopy, lambda hull: pickle.loads(pickle.dumps(hull))])
def test_gradients_are_restricted_before_a_step(copied: Callable[[hullo.Hull], hullo.Hull]) -> None:
    hull = copied(hullo.LinearHull("relu", "tanh", init=[1.0, 1.0], parametrization=FIRST_ONLY))
    optimizer = torch.optim.SGD(hull.parameters(), lr=0.1)
    hull.raw.grad = torch.ones(2)
    optimizer.step()
    assert hull.coefficients.tolist() == pytest.approx([0.9, 1.0])


def same(values: Tensor) -> Tensor:
    return values


def first_only(raw: Tensor, gradient: Tensor) -> Tensor:
    return gradient * torch.tensor([1.0, 0.0]).to(gradient)


FIRST_ONLY = hullo.parametrizations.Parametrization("firstonly", same, same, restrict=first_only)


@pytest.mark.parametrize("name", ["", "Spherical", "a_b", "a.b", 3, "softmax", "given"])
def test_ambiguous_names_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name!r}"):
        hullo.parametrizations.Parametrization(name, to_sphere, torch.sqrt)


@pytest.mark.parametrize(
    ("own", "keyword"),
    [
        (hullo.parametrizations.Parametrization("own", to_sphere, torch.square), "cannot represent"),  # not the inverse
        (hullo.parametrizations.Parametrization("own", same, same), "sum to one"),  # leaves the simplex
        (hullo.parametrizations.Parametrization("own", to_sphere, lambda c: c[..., :-1].sqrt()), "with fewer=0"),
        (
            hullo.parametrizations.Parametrization("own", lambda raw: to_sphere(raw)[..., :-1], torch.sqrt),
            "cannot represent",
        ),
    ],
)
def test_inconsistent_functions_are_rejected(own: hullo.parametrizations.Parametrization, keyword: str) -> None:
    with pytest.raises(ValueError, match=f"'own'.*{keyword}"):
        make(own)


def test_unrepresentable_coefficients_are_rejected() -> None:
    hull = make(tempered(2.0))
    for value, keyword in (([1.0, 0.0, 0.0], "cannot represent"), ([0.5, 0.7, 0.0], "sum to one")):
        with pytest.raises(ValueError, match=keyword):
            hull.coefficients = value
    assert hull.coefficients.tolist() == pytest.approx(INIT)


@pytest.mark.parametrize("given", [None, 3, "sqrt"])
def test_non_functions_are_rejected(given: object) -> None:
    with pytest.raises(TypeError, match="'own' has inverse"):
        hullo.parametrizations.Parametrization("own", to_sphere, given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["spherical", 3, to_sphere])
def test_unknown_parametrizations_are_rejected_with_the_valid_ones(given: object) -> None:
    with pytest.raises(ValueError, match=r"'projection', 'softmax' and .*Parametrization"):
        make(given)  # type: ignore[arg-type]


def test_load_hulls_and_populations_list_valid_parametrizations() -> None:
    with pytest.raises(ValueError, match=r"'spherical'; valid are projection, softmax"):
        hullo.surgery.load_hulls(make().state_dict())
    members = [nn.Sequential(nn.Linear(3, 2), make()) for _ in range(2)]
    with pytest.raises(ValueError, match=r"'spherical'.*'projection', 'softmax'"):
        Population(members)
    for member in members:
        member[1].requires_grad_(False)
    x = torch.randn(4, 3)
    torch.testing.assert_close(Population(members)(x, in_dims=None)[1], members[1](x))


@pytest.mark.parametrize("given", [SPHERICAL, "division", 3])
def test_keras_layers_list_valid_parametrizations(given: object) -> None:
    pytest.importorskip("keras")
    import hullo.keras

    with pytest.raises(ValueError, match=r"(spherical|division|3).*valid are 'projection', 'softmax'$"):
        hullo.keras.ConvexHull(list(TRIO), parametrization=given)


@pytest.mark.parametrize("name", _BUILT_IN)
class TestFormsOfABuiltIn:
    """A new built-in parametrization fails here until each backend has a form of it."""

    def test_some_set_offers_it(self, name: str) -> None:
        sets = (hull.coefficient_set for hull in HULLS.values())
        assert any(name in allowed.choices for allowed in sets), "write it into `choices` in hullo/coefficients.py"

    def test_fused_kernel_supports_it(self, name: str) -> None:
        from hullo.kernels.parametrization_code import PULLBACKS, TRANSFORMS

        assert name in TRANSFORMS, "write its values in hullo/kernels/parametrization_code.py"
        assert name in PULLBACKS, "write its gradient in hullo/kernels/parametrization_code.py"

    def test_populations_support_it(self, name: str) -> None:
        from hullo.population.activations import CODES

        assert name in CODES, "write it in hullo/population/activations.py"
        pytest.importorskip("triton")
        from hullo.population.kernels import parametrize

        code = getattr(parametrize, name.upper(), None)
        assert code is not None, "write it in hullo/population/kernels/parametrize.py"
        assert code.value == CODES[name]
