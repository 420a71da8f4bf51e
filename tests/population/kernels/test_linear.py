"""Linear layers with biases, and activations after them, agree with float64; on the CPU in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hullo.bases import get_base
from rounding import assert_rounded_once

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels.bias_act import combine_biased  # noqa: E402
from hullo.population.kernels.linear import Product, column_sums, linear  # noqa: E402

BASES = (get_base("relu"), get_base("tanh"))
shapes = st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 70))


def assert_agrees(found: Callable[..., Tensor], oracle: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    """Compare values, gradients and their gradients with those of an oracle in float64."""
    leaves = [t.to(DEVICE).requires_grad_() for t in inputs]
    wide = [t.double().requires_grad_() for t in inputs]
    y, expected = found(*leaves), oracle(*wide)
    gradient = torch.randn(expected.shape)
    both = []
    for made, given_to_it in ((y, leaves), (expected, wide)):
        above = gradient.to(made).requires_grad_()
        first = torch.autograd.grad(made, given_to_it, above, retain_graph=True)
        again = torch.autograd.grad(made, given_to_it, above, create_graph=True)
        total = sum(item.square().sum() for item in again)
        both.append([made, *first, *torch.autograd.grad(total, [*given_to_it, above], materialize_grads=True)])
    for one, other in zip(*both, strict=True):
        assert one.shape == other.shape
        assert (one.double().cpu() - other).norm() <= 1e-5 * other.norm() + 1e-5


@settings(max_examples=5)
@given(shapes, st.integers(1, 70))
@example((2, 130, 5), 260)
def test_linear_layers(shape: tuple[int, int, int], outputs: int) -> None:
    members, _, inputs = shape
    tensors = torch.randn(shape), torch.randn(members, outputs, inputs), torch.randn(members, outputs)
    assert_agrees(linear, lambda x, weights, bias: x @ weights.mT + bias.unsqueeze(1), tensors)


@settings(max_examples=4)
@given(shapes, st.sampled_from(["bias, each", "bias", "each"]))
@example((1, 130, 130), "bias, each")  # several programs per member
def test_activations_after_linear_layers(shape: tuple[int, int, int], kind: str) -> None:
    members, _, columns = shape
    rows = torch.randn(*([members] if "each" in kind else []), len(BASES))
    biases = [torch.randn(members, columns)] if "bias" in kind else []

    def oracle(x: Tensor, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x if bias is None else x + bias.unsqueeze(1)
        first, second = rows.expand(members, -1).mT[..., None, None]
        return first * x.relu() + second * x.tanh()

    def fused(x: Tensor, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        return combine_biased(x, bias, rows, BASES)

    assert_agrees(fused, oracle, [torch.randn(shape), rows, *biases])
    fixed = rows.to(DEVICE)
    assert_agrees(lambda x, *bias: fused(x, fixed, *bias), lambda x, *b: oracle(x, rows.double(), *b),
                  [torch.randn(shape), *biases])  # fmt: skip


@pytest.mark.parametrize(("rows", "kind"), [(9, torch.float32), (300, torch.bfloat16)])  # 300: several programs
def test_activations_in_halves_are_rounded_once(rows: int, kind: torch.dtype) -> None:
    x, bias, coefficients = torch.randn(2, rows, 128).bfloat16(), torch.randn(2, 128).to(kind), torch.randn(2, 2)
    dy, found = torch.randn_like(x), []
    for device, dtype in ((DEVICE, None), ("cpu", torch.float64)):
        leaves = [item.to(device, dtype or item.dtype).requires_grad_() for item in (x, bias, coefficients)]
        if dtype is None:
            y = combine_biased(*leaves, BASES)
        else:
            z, (first, second) = leaves[0] + leaves[1].unsqueeze(1), leaves[2].mT[..., None, None]
            y = first * z.relu() + second * z.tanh()
        found.append([y.detach(), *torch.autograd.grad(y, leaves, dy.to(y))])
    for one, exact in zip(*found, strict=True):
        assert_rounded_once(one, exact)


@pytest.mark.parametrize("learns", [True, False])
def test_derivatives_of_every_order_of_activations_after_linear_layers(learns: bool) -> None:
    x, bias, rows = torch.randn(2, 3, 4), torch.randn(2, 4), torch.randn(2, 2)

    def derive(call: Any, device: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [item.to(device, dtype).requires_grad_() for item in (x, bias, rows)]
        y = call(leaves[0], leaves[1], leaves[2] if learns else leaves[2].detach())
        found, wanted = [], leaves[: 2 + learns]
        for _ in range(3):
            gradients = torch.autograd.grad(y.square().sum(), wanted, create_graph=True)
            found += gradients
            y = gradients[0]
        return [item.detach().cpu().double() for item in found]

    def oracle(x: Tensor, bias: Tensor, rows: Tensor) -> Tensor:
        z, (first, second) = x + bias.unsqueeze(1), rows.mT[..., None, None]
        return first * z.relu() + second * z.tanh()

    fused = derive(lambda *leaves: combine_biased(*leaves, BASES), DEVICE, torch.float32)
    torch.testing.assert_close(fused, derive(oracle, "cpu", torch.float64), rtol=1e-3, atol=1e-3)


def test_a_member_that_is_not_finite_leaves_the_others_as_they_are() -> None:
    x, bias, rows = torch.randn(3, 9, 8), torch.randn(3, 8), torch.randn(3, 2)
    passes = []
    for sick in (0.0, torch.inf):
        leaves = [t.clone().to(DEVICE).requires_grad_() for t in (x, bias, rows)]
        leaves[0].data[1, 0, 0] += sick
        y = combine_biased(*leaves, BASES)
        passes.append((y, *torch.autograd.grad(y, leaves, torch.ones_like(y))))
    for sound, beside in zip(*passes, strict=True):
        assert sound[[0, 2]].equal(beside[[0, 2]])


@pytest.mark.parametrize("shape", [(2, 37, 3, 11), (2, 1100, 2, 40), (1, 700, 1, 3)])
def test_column_sums_of_several_parts(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert_rounded_once(column_sums(x.to(DEVICE), torch.bfloat16), x.double().sum(1).transpose(0, 1))
    torch.testing.assert_close(
        column_sums(x.to(DEVICE), torch.float32).cpu(), x.sum(1).transpose(0, 1), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("rows", [1024, 1536, 1001])
def test_gradients_of_weights_of_many_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hullo.population.kernels.linear.processors", lambda x: 132)
    tensors = torch.randn(2, rows, 3), torch.randn(2, 3, 5)
    assert_agrees(Product.apply, torch.bmm, tensors)
