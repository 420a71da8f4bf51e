"""The reference is what automatic differentiation makes of the plain sum."""

from __future__ import annotations

import pytest
import torch

import hullo
import oracle
from hullo.coefficients import way
from hullo.kernels import Plan, reference

NAMES = ("identity", "relu", "tanh", "unit_silu")
WAYS = [*hullo.Space.ways, *hullo.Simplex.ways, *hullo.Hyperplane.ways, *hullo.Orthant.ways]


def plan(keep: str, channel_dim: int = 1) -> Plan:
    return Plan(tuple(hullo.base(name) for name in NAMES), way(keep), channel_dim)


@pytest.mark.parametrize("groups", [None, 1, 3])
@pytest.mark.parametrize("keep", WAYS)
def test_backward_is_the_derivative_of_forward(keep: str, groups: int | None) -> None:
    rows = torch.rand((4,) if groups is None else (groups, 4), dtype=torch.float64) + 0.1
    raw = way(keep).raw(rows / rows.sum(-1, keepdim=True)).requires_grad_()
    x = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)
    automatic = torch.autograd.grad(reference.forward(x, raw, plan(keep)), (x, raw), upstream)
    written = reference.backward(upstream, x.detach(), raw.detach(), plan(keep))
    for found, expected in zip(written, automatic, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("groups", [None, 1, 3])
@pytest.mark.parametrize("keep", WAYS)
def test_forward_is_the_sum_over_the_coefficients_of_each_way(keep: str, groups: int | None) -> None:
    raw = torch.randn((4 - way(keep).fewer,) if groups is None else (groups, 4 - way(keep).fewer))
    x = torch.randn(2, 6, 5)
    expected = oracle.combine(x, way(keep).coefficients(raw), NAMES)
    torch.testing.assert_close(reference.forward(x, raw, plan(keep)), expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_rounded_once_at_the_end(dtype: torch.dtype) -> None:
    x = torch.randn(64).to(dtype)
    raw = torch.tensor([0.3, 0.2, 0.1, 0.4])
    wide = reference.forward(x.float(), raw, plan("given"))
    assert torch.equal(reference.forward(x, raw, plan("given")), wide.to(dtype))
