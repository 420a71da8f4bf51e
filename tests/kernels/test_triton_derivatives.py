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

    @pytest.mark.parametrize("groups", [1, 2])
    def test_a_loss_on_second_derivatives_is_differentiated_twice(self, groups: int) -> None:
        """As in physics-informed networks: the loss has the second derivative, and training differentiates it."""
        results = []
        for backend in ("triton", "reference"):
            x, c = (t.to(DEVICE).requires_grad_() for t in self.inputs(groups))
            y = hullo.combine(x, c, ("tanh", "gelu", "softplus(2)"), backend=backend)
            (slope,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
            (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
            gradients = torch.autograd.grad((bend + y).square().sum(), (x, c), create_graph=True)
            results.append([y, slope, bend, *gradients, *torch.autograd.grad(gradients[0].square().sum(), (x, c))])
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("groups", [1, 2])
    def test_mixed_derivatives_in_x_and_the_coefficients(self, groups: int) -> None:
        """A loss on the gradient of the coefficients, differentiated by x, and that by both, twice."""
        results = []
        for backend in ("triton", "reference"):
            x, c = (t.to(DEVICE).requires_grad_() for t in self.inputs(groups))
            y = hullo.combine(x, c, ("tanh", "gelu", "softplus(2)"), backend=backend)
            (of_c,) = torch.autograd.grad(y.sin().sum(), c, create_graph=True)
            (mixed,) = torch.autograd.grad(of_c.square().sum(), x, create_graph=True)
            both = torch.autograd.grad(mixed.square().sum(), (x, c), create_graph=True)
            results.append([of_c, mixed, *both, *torch.autograd.grad(sum(t.square().sum() for t in both), (x, c))])
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("groups", [1, 2])
    def test_hessians_of_samples_by_torch_func(self, groups: int) -> None:
        x, c = (t.to(DEVICE) for t in self.inputs(groups))

        def loss(c: Tensor, x: Tensor, backend: str) -> Tensor:
            return hullo.combine(x, c, ("identity", "tanh", "gelu"), channel_dim=0, backend=backend).pow(3).sum()

        for transform in (torch.func.grad(loss), torch.func.hessian(loss, argnums=1)):
            found, expected = (
                torch.vmap(transform, (None, 0, None))(c, x, backend) for backend in ("triton", "reference")
            )
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
