"""Derivatives of every order in the fused kernels, and float64: on a GPU if there is one, else in the interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hullo
from hullo.kernels import CombineSpec, reference
from hullo.parametrizations import get_parametrization

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.kernels import triton as kernels  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Conversion of an array:DeprecationWarning")

NAMES = [name for name in hullo.list_bases() if name not in ("softplus", "hardsigmoid")]
"""Without two that PyTorch itself computes to eight or nine digits in float64."""


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("names", [NAMES[k::5] for k in range(5)], ids=lambda names: names[0])
def test_float64_and_second_derivatives_of_every_base(names: list[str], order: int) -> None:
    spec = CombineSpec(tuple(map(hullo.get_base, names)), get_parametrization("given"), 0, order)
    x = torch.cat([torch.linspace(-30, 30, 120), torch.logspace(-6, 1, 20), -torch.logspace(-6, 1, 20)]).double()
    gradient, v = torch.where(x > 0, 1.0, 0.5).double(), torch.randn_like(x)
    c, w = torch.randn(2, len(names)).double()
    inputs = [t.clone().requires_grad_() for t in (gradient, x, c)]
    firsts = reference.backward(*inputs, spec)
    expected = [
        reference.forward(x, c, spec),
        *firsts,
        *torch.autograd.grad(firsts, inputs, (v, w)),
    ]
    v, w, gradient, x, c = (t.to(DEVICE) for t in (v, w, gradient, x, c))
    found = [
        kernels.forward(x, c, spec),
        *kernels.backward(gradient, x, c, spec),
        *kernels.second(v, w, gradient, x, c, spec),
    ]
    for tensor, wanted in zip(found, expected, strict=True):
        error = (tensor.cpu() - wanted).norm() / wanted.norm().clamp_min(1e-2)
        assert error < 1e-13


class TestDerivativesOfAnyOrder:
    """Through autograd and torch.func, as those of the reference."""

    @staticmethod
    def inputs(groups: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        shape = (3,) if groups == 1 else (groups, 3)
        return torch.randn(2, 2, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)

    @pytest.mark.parametrize("hull", ["given", "softmax"])
    def test_gradgradcheck(self, hull: str) -> None:
        x, raw = (t.to(DEVICE).requires_grad_() for t in self.inputs(1))
        spec = CombineSpec(tuple(map(hullo.get_base, ("tanh", "gelu", "sin(2)"))), get_parametrization(hull), 1)
        assert torch.autograd.gradgradcheck(
            lambda x, raw: hullo.functional.apply(x, raw, spec, backend="triton"), (x[0], raw), atol=1e-6
        )

    def test_gradgradcheck_of_a_gated_hull(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hullo.gating.choose", lambda *_: "triton")
        act = hullo.LinearHull("tanh", "gelu", "sin(2)", dtype=torch.float64).to(DEVICE)
        gate, up = (t.to(DEVICE).requires_grad_() for t in torch.randn(2, 2, dtype=torch.float64))
        assert torch.autograd.gradcheck(hullo.GatedHull(act), (gate, up), atol=1e-6)
        assert torch.autograd.gradgradcheck(hullo.GatedHull(act), (gate, up), atol=1e-6)
        results = []
        for y in (hullo.GatedHull(act)(gate, up), act(gate) * up):
            firsts = torch.autograd.grad(y.square().sum(), (gate, up, act.raw), create_graph=True)
            results.append([*firsts, *torch.autograd.grad(sum(t.sin().sum() for t in firsts), (gate, up, act.raw))])
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected)

    @pytest.mark.parametrize("groups", [1, 2])
    @pytest.mark.parametrize("by", ["both, both, both", "x, x, both", "x, both, x", "c, x, both", "both, c, x"])
    def test_losses_on_derivatives_are_differentiated_again(self, by: str, groups: int) -> None:
        """As in physics-informed networks: gradients of x, of the raw parameters or of both are in the
        next loss, which is differentiated in turn."""
        results = []
        spec = CombineSpec(
            tuple(map(hullo.get_base, ("tanh", "gelu", "softplus(2)"))), get_parametrization("softmax"), 1
        )
        for backend in ("triton", "reference"):
            x, c = (t.to(DEVICE).requires_grad_() for t in self.inputs(groups))
            outputs = [hullo.functional.apply(x, c, spec, backend=backend)]
            found = []
            for chosen in by.split(", "):
                loss = sum((1 + n) * output.sin().sum() for n, output in enumerate(outputs))
                outputs = torch.autograd.grad(loss, {"x": (x,), "c": (c,), "both": (x, c)}[chosen], create_graph=True)
                found += outputs
            results.append(found)
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("groups", [1, 2])
    def test_hessians_of_samples_by_torch_func(self, groups: int) -> None:
        _, c = (t.to(DEVICE) for t in self.inputs(groups))
        x = torch.randn(2, 3, 2, dtype=torch.float64, device=DEVICE)  # two samples with channels in the last dimension

        def loss(c: Tensor, x: Tensor, backend: str) -> Tensor:
            return hullo.combine(x, c, ("identity", "tanh", "gelu"), channel_dim=-1, backend=backend).pow(3).sum()

        gradient = torch.func.grad(loss, argnums=(0, 1))
        for transform in (gradient, torch.func.jacrev(gradient, argnums=(0, 1)), torch.func.hessian(loss, argnums=1)):
            found, expected = (
                torch.vmap(transform, (None, 0, None))(c, x, backend) for backend in ("triton", "reference")
            )
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
