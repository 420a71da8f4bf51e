"""The fused dropout is the plain one, to the bit; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hullo.population import Population, kernels, rng
from hullo.population.rules import Context, layers
from hullo.population.values import Value

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels.dropout import Dropout, drop  # noqa: E402

NCHW, NHWC = (0, 1, 2, 3, 4), (0, 1, 3, 4, 2)


def check(x: torch.Tensor, dim: int, monkeypatch: pytest.MonkeyPatch, rate: Any = 0.4) -> None:
    """Compare values and gradients of a dropout with and without kernels, at a tensor with the members in `dim`."""
    members = x.shape[dim]
    seeds, steps = torch.arange(members), torch.tensor([7, -1, 2**40])[:members]
    gradient = torch.randn_like(x)

    def compute(device: str, fused: bool) -> list[torch.Tensor]:
        monkeypatch.setattr(kernels, "support", lambda x: fused)
        at = torch.empty_like(x, device=device).copy_(x).requires_grad_()
        context = Context(members, seeds.to(device), steps.to(device), number=2, first=3)
        own = rate.to(device) if isinstance(rate, torch.Tensor) else rate
        y = layers.drop(context, Value(at, dim), own, True)
        assert y.dim == dim
        (slope,) = torch.autograd.grad(y.tensor, at, gradient.to(device))
        return [y.tensor.detach().cpu(), slope.cpu()]

    exact = DEVICE == "cuda" or x.dtype == torch.float32  # the interpreter cuts bfloat16 off
    slack = {"rtol": 0.0 if exact else 2.0**-7, "atol": 0.0, "equal_nan": True}
    for found, expected in zip(compute(DEVICE, True), compute("cpu", False), strict=True):
        torch.testing.assert_close(found, expected, **slack)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(3, 5, 512), (2, 3, 7), (1, 1, 1), (2, 3, 5, 8), (2, 2, 3, 2, 3, 5), (3, 4), (2, 0, 3)]
)
def test_any_tensor_and_its_gradient_equal_those_of_the_plain_form(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(shape, dtype=dtype)
    x.view(-1)[:1] = torch.inf
    check(x, 0, monkeypatch)


@pytest.mark.parametrize("channels", [8, 3])
@pytest.mark.parametrize(("dim", "memory"), [(0, NHWC), (0, NCHW), (1, (0, 3, 4, 1, 2)), (1, NCHW), (4, NCHW)])
def test_images_of_any_order_have_the_same_mask(
    channels: int, dim: int, memory: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = [2, channels, 3, 5]
    shape.insert(dim, 3)
    ordered = torch.randn([shape[d] for d in memory])
    check(ordered.permute(sorted(range(5), key=memory.__getitem__)), dim, monkeypatch)


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
@pytest.mark.parametrize("features", [8, 5])
def test_members_may_lie_in_any_dimension(dim: int, features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = [4, 3, features]
    shape.insert(dim, 2)
    check(torch.randn(shape), dim, monkeypatch)
    check(torch.randn(shape[::-1]).permute(3, 2, 1, 0), dim, monkeypatch)


def test_members_may_have_rates_of_their_own_where_there_are_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "support", lambda x: True)
    rates, numbers = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), torch.arange(3)
    y = layers.drop(Context(3, numbers, numbers), Value(torch.ones(3, 6, 20), 0), rates, True).tensor
    kept = rng.dropout_mask(numbers, numbers, 0, (6, 20), rate=rates)
    assert torch.equal(y, kept * torch.tensor([1.0, 2.0, 0.0]).view(3, 1, 1))
    whole = layers.drop_channels(Context(3, numbers, numbers), Value(torch.ones(3, 2, 6, 4, 5), 0), 0.5, True).tensor
    assert set(whole.mean((3, 4)).flatten().tolist()) == {0.0, 2.0}


def test_members_may_have_rates_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    check(torch.randn(3, 6, 20), 0, monkeypatch, rate=torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64))


def test_a_backward_pass_after_two_forward_passes_has_the_masks_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = [nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4), nn.Dropout(0.3)) for _ in range(3)]
    x = torch.randn(5, 4, device=DEVICE)
    gradients = []
    for fused in (True, False):
        monkeypatch.setattr(kernels, "support", lambda x, fused=fused: fused)
        population = Population(networks, seeds=range(3)).to(DEVICE)
        (population(x, in_dims=None) * population(2 * x, in_dims=None)).sum().backward()
        gradients.append([parameter.grad for parameter in population.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rate_that_all_members_have_is_that_rate(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "support", lambda x: False)
    numbers = torch.arange(2)
    x = torch.randn(2, 50, 3000).to(dtype)  # so many that masks of rates 2^-16 apart differ
    for rate in (0.3, 0.9):
        rates = torch.full((2,), rate, dtype=torch.float64)
        one, each = (layers.drop(Context(2, numbers, numbers), Value(x, 0), r, True).tensor for r in (rate, rates))
        torch.testing.assert_close(each, one, rtol=0, atol=0)


def test_rates_of_members_have_the_constants_of_the_kernel_for_one_rate() -> None:
    rates = torch.linspace(0, 0.999, 1000, dtype=torch.float64)
    numbers = torch.zeros(1000, dtype=torch.int64)
    least, scale = Dropout(numbers, numbers, 0, rates).numbers()
    expected = [Dropout(numbers, numbers, 0, rate).constants() for rate in rates.tolist()]
    assert least.tolist() == [constants["LEAST"] for constants in expected]
    assert torch.equal(scale, torch.tensor([constants["SCALE"] for constants in expected]))


def test_second_derivatives_are_those_of_a_linear_function() -> None:
    dropout = Dropout(torch.arange(2, device=DEVICE), torch.arange(2, device=DEVICE), 0, 0.5)
    x = torch.randn(2, 3, 4, device=DEVICE, requires_grad=True)
    (slope,) = torch.autograd.grad(drop(x.square(), dropout).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    assert torch.equal(second, 2 * drop(torch.ones_like(x), dropout))


@pytest.mark.parametrize("features", [8, 7])
@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("chunks", [1, 3])
def test_a_part_of_a_batch_and_of_a_mask_is_dropped_as_in_the_whole(features: int, first: int, chunks: int) -> None:
    seeds, steps = torch.tensor([5, 2**62, -9]), torch.tensor([1, 2, 3])
    kept = rng.dropout_mask(seeds, steps, 1, (6, chunks * features), rate=0.5)[:, first : first + 2]
    part = torch.ones(3, 2, features, device=DEVICE)
    for chunk, own in enumerate(kept.chunk(chunks, -1)):
        dropout = Dropout(seeds.to(DEVICE), steps.to(DEVICE), 1, 0.5, first)
        dropped = drop(part, dropout, chunk=(chunk, chunks))
        assert torch.equal(dropped.cpu(), 2.0 * own)
