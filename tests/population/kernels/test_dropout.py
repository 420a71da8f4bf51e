"""The fused dropout is the plain one, to the bit; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from hullo.population import kernels, rng
from hullo.population.rules import Context
from hullo.population.rules.layers import drop as plain_drop
from hullo.population.values import Value

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels.dropout import drop  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 512), (2, 3, 7), (1, 1, 1)])
def test_features_and_gradients_equal_those_of_the_plain_form(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "support", lambda x: False)
    seeds, steps = torch.arange(shape[0]), torch.tensor([7, -1, 2**40])[: shape[0]]
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    x.data.view(-1)[0] = torch.inf
    gradient = torch.randn_like(x)
    expected = plain_drop(Context(shape[0], seeds, steps, number=2), Value(x, 0), 0.4, True).tensor
    (slope,) = torch.autograd.grad(expected, x, gradient)
    at = x.detach().to(DEVICE).requires_grad_()
    found = drop(at, seeds.to(DEVICE), steps.to(DEVICE), 2, 0.4)
    (found_slope,) = torch.autograd.grad(found, at, gradient.to(DEVICE))
    exact = DEVICE == "cuda" or dtype == torch.float32  # the interpreter cuts bfloat16 off
    slack = {"rtol": 0.0 if exact else 2.0**-7, "atol": 0.0, "equal_nan": True}
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), **slack)
    torch.testing.assert_close(found_slope.cpu(), slope, **slack)


@pytest.mark.parametrize("features", [8, 7])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_part_of_a_batch_is_dropped_as_in_the_whole(features: int, first: int) -> None:
    seeds, steps = torch.tensor([5, 2**62, -9]), torch.tensor([1, 2, 3])
    kept = rng.dropout_mask(seeds, steps, 1, (6, features), rate=0.5)[:, first : first + 2]
    part = torch.ones(3, 2, features, device=DEVICE)
    dropped = drop(part, seeds.to(DEVICE), steps.to(DEVICE), 1, 0.5, first=first)
    assert torch.equal(dropped.cpu(), 2.0 * kept)


@pytest.mark.parametrize("rate", [1.0, -0.1])
def test_a_rate_that_is_no_share_is_refused(rate: float) -> None:
    numbers = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match=rf"rate={rate}: give a share from 0 to below 1"):
        drop(torch.ones(1, 2, 2, device=DEVICE), numbers, numbers, 0, rate)
