"""The reference is what automatic differentiation makes of the plain sum."""

from __future__ import annotations

import pytest
import torch

import hullo
import oracle
from hullo.kernels import CombineSpec, reference
from hullo.parametrizations import get_parametrization

NAMES = ("identity", "relu", "tanh", "unit_silu")
PARAMETRIZATIONS = [
    *hullo.coefficients.SPACE.choices,
    *hullo.coefficients.SIMPLEX.choices,
    *hullo.coefficients.HYPERPLANE.choices,
    *hullo.coefficients.ORTHANT.choices,
]


def spec(parametrization: str, channel_dim: int = 1) -> CombineSpec:
    return CombineSpec(tuple(hullo.get_base(name) for name in NAMES), get_parametrization(parametrization), channel_dim)


@pytest.mark.parametrize("groups", [None, 1, 3])
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_backward_is_the_derivative_of_forward(parametrization: str, groups: int | None) -> None:
    rows = torch.rand((4,) if groups is None else (groups, 4), dtype=torch.float64) + 0.1
    raw = get_parametrization(parametrization).inverse(rows / rows.sum(-1, keepdim=True)).requires_grad_()
    x = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)
    automatic = torch.autograd.grad(reference.forward(x, raw, spec(parametrization)), (x, raw), upstream)
    written = reference.backward(upstream, x.detach(), raw.detach(), spec(parametrization))
    for found, expected in zip(written, automatic, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("groups", [None, 1, 3])
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_forward_is_the_sum_over_the_coefficients_of_each_way(parametrization: str, groups: int | None) -> None:
    raw = torch.randn(
        (4 - get_parametrization(parametrization).fewer,)
        if groups is None
        else (groups, 4 - get_parametrization(parametrization).fewer)
    )
    x = torch.randn(2, 6, 5)
    expected = oracle.combine(x, get_parametrization(parametrization).transform(raw), NAMES)
    torch.testing.assert_close(reference.forward(x, raw, spec(parametrization)), expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_rounded_once_at_the_end(dtype: torch.dtype) -> None:
    x = torch.randn(64).to(dtype)
    raw = torch.tensor([0.3, 0.2, 0.1, 0.4])
    wide = reference.forward(x.float(), raw, spec("given"))
    assert torch.equal(reference.forward(x, raw, spec("given")), wide.to(dtype))
