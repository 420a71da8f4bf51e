"""Fused cells of recurrent layers compute what plain ones do; on the CPU they run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hullo.population import kernels
from hullo.population.rules.recurrent import GATES, Weights, run_direction

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEMBERS, TIME, BATCH, INPUTS, WIDTH = 2, 3, 2, 3, 5


def run(kind: str, tensors: list[Tensor], has_bias: bool, projects: bool, is_reversed: bool) -> list[Tensor]:
    """Return the results of a direction, and the gradients of all tensors."""
    leaves = [item.clone().requires_grad_() for item in tensors]
    x, state, memory, w_x, w_h, b_x, b_h, projection = leaves
    weights = Weights(w_x, w_h, b_x if has_bias else None, b_h if has_bias else None, projection if projects else None)
    results = run_direction(kind, x, [state, memory], weights, is_reversed)
    total = sum(
        (item * torch.linspace(-1, 1, item.numel(), device=item.device).view_as(item)).sum() for item in results
    )
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return [*results, *(item for item in gradients if item is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("kind", "projects"), [*((kind, False) for kind in GATES), ("lstm", True)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_fused_cells_equal_plain_ones(
    kind: str, projects: bool, has_bias: bool, is_reversed: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates, state = GATES[kind] * WIDTH, 4 if projects else WIDTH
    shapes = [(TIME, BATCH, INPUTS), (BATCH, state), (BATCH, WIDTH), (gates, INPUTS), (gates, state)]
    shapes += [(gates,), (gates,), (state, WIDTH)]
    tensors = [torch.randn(MEMBERS, *shape, dtype=dtype, device=DEVICE) for shape in shapes]
    monkeypatch.setattr(kernels, "support", lambda x: False)
    expected = run(kind, tensors, has_bias, projects, is_reversed)
    monkeypatch.setattr(kernels, "support", lambda x: True)
    found = run(kind, tensors, has_bias, projects, is_reversed)
    tolerance = 1e-5 if dtype == torch.float32 else 0.06
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
