"""Derivatives of every order in the fused kernels: on a GPU if there is one, else in the interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hullo
from hullo.functional import _Gradients
from hullo.kernels import CombineSpec, reference
from hullo.parametrizations import get_parametrization

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.kernels import triton as kernels  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Conversion of an array:DeprecationWarning")

NAMES = [name for name in hullo.list_bases() if name not in ("softplus", "hardsigmoid")]
"""Without two that PyTorch itself computes to eight or nine digits in float64."""


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Compare float32 with float64 by a relative error in norm."""
    assert found.dtype == torch.float32
    assert (found.cpu() - expected).norm() / expected.norm().clamp_min(1e-2) < 2e-5


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("names", [NAMES[k::5] for k in range(5)], ids=lambda names: names[0])
def test_second_derivatives_of_every_base(names: list[str], order: int) -> None:
    spec = CombineSpec(tuple(map(hullo.get_base, names)), get_parametrization("given"), 0, order)
    x = torch.cat([torch.linspace(-30, 30, 120), torch.logspace(-6, 1, 20), -torch.logspace(-6, 1, 20)])
    gradient, v = torch.where(x > 0, 1.0, 0.5), torch.randn_like(x)
    c, w = torch.randn(2, len(names))
    inputs = [t.double().requires_grad_() for t in (gradient, x, c)]
    firsts = reference.backward(*inputs, spec)
    expected = [reference.forward(*inputs[1:], spec), *firsts]
    expected += torch.autograd.grad(firsts, inputs, (v.double(), w.double()))
    v, w = v.to(DEVICE), w.to(DEVICE)
    inputs = [t.to(DEVICE).requires_grad_() for t in (gradient, x, c)]
    firsts = _Gradients.apply(*inputs, spec)
    found = [kernels.forward(*(t.detach() for t in inputs[1:]), spec), *firsts]
    found += torch.autograd.grad(firsts, inputs, (v, w))
    for tensor, wanted in zip(found, expected, strict=True):
        assert_close(tensor, wanted)


class TestDerivativesOfAnyOrder:
    """Through autograd and torch.func, as those of the reference."""

    @staticmethod
    def inputs(groups: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        shape = (3,) if groups == 1 else (groups, 3)
        return torch.randn(2, 2), torch.randn(shape)

    def test_a_gated_hull_has_those_of_a_product(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hullo.gating.choose", lambda *_: "triton")
        both = torch.randn(2, 2, 2)
        results = []
        for dtype, device in ((torch.float32, DEVICE), (torch.float64, "cpu")):
            hull = hullo.LinearHull("tanh", "gelu", "sin(2)", init=[0.5, -0.7, 0.4], dtype=dtype, device=device)
            gate, up = both.to(device, dtype, copy=True).requires_grad_().unbind()
            y = hullo.GatedHull(hull)(gate, up) if dtype == torch.float32 else hull(gate) * up
            firsts = torch.autograd.grad(y.square().sum(), (gate, up, hull.raw), create_graph=True)
            seconds = torch.autograd.grad(sum(t.sin().sum() for t in firsts), (gate, up, hull.raw))
            results.append([y, *firsts, *seconds])
        for actual, expected in zip(*results, strict=True):
            assert_close(actual, expected)

    @pytest.mark.parametrize("groups", [1, 2])
    @pytest.mark.parametrize("by", ["both, both, both", "x, x, both", "x, both, x", "c, x, both", "both, c, x"])
    def test_losses_on_derivatives_are_differentiated_again(self, by: str, groups: int) -> None:
        """As in physics-informed networks: gradients of x, of the raw parameters or of both are in the
        next loss, which is differentiated in turn."""
        results = []
        spec = CombineSpec(
            tuple(map(hullo.get_base, ("tanh", "gelu", "softplus(2)"))), get_parametrization("softmax"), 1
        )
        for backend, dtype in (("triton", torch.float32), ("reference", torch.float64)):
            x, c = (t.to(DEVICE, dtype).requires_grad_() for t in self.inputs(groups))
            outputs = [hullo.functional.apply(x, c, spec, backend=backend)]
            found = []
            for chosen in by.split(", "):
                loss = sum((1 + n) * output.sin().sum() for n, output in enumerate(outputs))
                inputs = {"x": (x,), "c": (c,), "both": (x, c)}[chosen]
                found += torch.autograd.grad(loss, inputs, retain_graph=True)  # the last derivative records no graph
                outputs = torch.autograd.grad(loss, inputs, create_graph=True)
                found += outputs
            results.append(found)
        for actual, expected in zip(*results, strict=True):
            assert_close(actual, expected.cpu())


@pytest.mark.parametrize("of", [0, 1], ids=["of the slope", "of the sums"])
def test_batched_second_derivatives_match_single_ones(of: int) -> None:
    spec = CombineSpec(tuple(map(hullo.get_base, ("tanh", "gelu"))), get_parametrization("given"), 1)
    x, c = torch.randn(2, 3, device=DEVICE, requires_grad=True), torch.randn(2, device=DEVICE, requires_grad=True)
    y = hullo.functional.apply(x, c, spec, backend="triton")
    first = torch.autograd.grad(y.sin().sum(), (x, c), create_graph=True)[of]
    upstream = torch.randn(4, *first.shape, device=DEVICE)
    together = torch.autograd.grad(first, (x, c), upstream, is_grads_batched=True, retain_graph=True)
    singles = [torch.autograd.grad(first, (x, c), one, retain_graph=True) for one in upstream]
    for found, alone in zip(together, zip(*singles, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-5)
