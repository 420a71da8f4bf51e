"""Test that combine is the sum of c_i f_i(x) for any tensor, and saves only its input for the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hullo
import oracle
from made_hulls import QUARTET, TRIO, rows_of

BACKENDS = ("cpu", "reference")
TOLERANCE = {torch.float64: 1e-8, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def close(actual: Tensor, exact: Tensor) -> None:
    """Compare two tensors up to the rounding of the first one's dtype."""
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), exact.double(), rtol=tolerance, atol=tolerance)


def check_against_oracle(
    x: Tensor, coefficients: Tensor, names: tuple[str, ...], channel_dim: int = 1, backend: str | None = None
) -> None:
    """Compare values, and gradients for x and the coefficients, with the oracle."""
    x = x.detach().requires_grad_()
    c = coefficients.detach().requires_grad_()
    y = hullo.combine(x, c, names, channel_dim=channel_dim, backend=backend)
    assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
    exact = oracle.combine(x, c, names, channel_dim)
    close(y, exact)
    upstream = torch.randn(x.shape).to(x.dtype)
    dx, dc = torch.autograd.grad(y, (x, c), upstream)
    exact_dx, exact_dc = oracle.gradients(exact, (x, c), upstream)
    assert (dx.shape, dx.dtype, dc.shape, dc.dtype) == (x.shape, x.dtype, c.shape, c.dtype)
    close(dx, exact_dx)
    # Sums are as good as the type in which they are computed, whatever the type of x.
    scale = max(1.0, upstream.double().norm().item() * x.detach().double().norm().item())
    assert ((dc - exact_dc).abs().max() if dc.numel() else torch.zeros(())) <= 1e-6 * scale


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", oracle.CLOSED_FORMS)
def test_every_base_matches_the_oracle_in_every_dtype(name: str, dtype: torch.dtype, backend: str) -> None:
    x = (3 * torch.randn(3, 4, 5)).to(dtype)
    names = ("tanh", name) if name != "tanh" else ("tanh",)
    check_against_oracle(x, rows_of(None, len(names)), names, backend=backend)


SHAPES = {
    "contiguous": lambda: torch.randn(2, 6, 5, 3),
    "channels_last": lambda: torch.randn(2, 6, 5, 3).contiguous(memory_format=torch.channels_last),
    "strided": lambda: torch.randn(4, 12, 5, 6)[::2, ::2, :, ::2],
    "narrowed": lambda: torch.randn(3, 9, 5, 4)[1:, 2:8, 1:4],
    "transposed": lambda: torch.randn(5, 6, 2).transpose(0, 2),
    "permuted": lambda: torch.randn(3, 6, 2, 6).permute(2, 1, 3, 0)[:, :, :5],
    "expanded": lambda: torch.randn(2, 6, 1).expand(2, 6, 7),
    "all one number": lambda: torch.randn(()).expand(3, 6, 2),
    "batch of one": lambda: torch.randn(1, 6),
    "batch of one image, channels_last": lambda: torch.randn(1, 6, 4, 4).to(memory_format=torch.channels_last),
    "one channel a group": lambda: torch.randn(7, 6, 1, 1),
    "empty batch": lambda: torch.randn(0, 6, 3),
    "empty image": lambda: torch.randn(2, 6, 0, 3),
    "odd sizes": lambda: torch.randn(3, 6, 7, 11, 1),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("groups", [None, 1, 3, 6])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_layout_and_grouping_is_supported(shape: str, groups: int | None, backend: str) -> None:
    check_against_oracle(SHAPES[shape](), rows_of(groups, 4), QUARTET, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("groups", [None, 1, 2, 4])
@pytest.mark.parametrize("channel_dim", [0, 1, -1, -3, 2])
def test_any_dimension_can_hold_the_channels(channel_dim: int, groups: int | None, backend: str) -> None:
    for x in (torch.randn(4, 8, 12), torch.randn(12, 8, 4).transpose(0, 2)):
        check_against_oracle(x, rows_of(groups, 3), TRIO, channel_dim, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (0,)])
def test_scalars_and_vectors_need_no_channels(shape: tuple[int, ...], backend: str) -> None:
    check_against_oracle(torch.randn(shape), rows_of(None, 3), TRIO, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_coefficient_gradients_are_summed_in_float32_or_better(dtype: torch.dtype, backend: str) -> None:
    x = torch.ones(2**14, dtype=dtype)  # their sum is far beyond what the type can count to one by one
    c = torch.tensor([0.5, 0.5], requires_grad=True)
    hullo.combine(x, c, ("identity", "relu"), backend=backend).backward(torch.ones_like(x))
    assert c.grad is not None
    assert c.grad.tolist() == [2**14, 2**14]


@pytest.mark.parametrize("x_type", TOLERANCE)
@pytest.mark.parametrize("coefficient_type", TOLERANCE)
def test_gradients_have_the_dtypes_of_their_inputs(x_type: torch.dtype, coefficient_type: torch.dtype) -> None:
    x = torch.randn(4, 6).to(x_type).requires_grad_()
    c = torch.tensor([[0.5, 0.25], [0.75, 0.125]], dtype=coefficient_type, requires_grad=True)
    y = hullo.combine(x, c, ("relu", "tanh"))
    close(y, oracle.combine(x, c, ("relu", "tanh")))
    y.sum().backward()
    assert x.grad is not None
    assert c.grad is not None
    assert (y.dtype, x.grad.dtype, c.grad.dtype) == (x_type, x_type, coefficient_type)


@pytest.mark.parametrize("coefficients", [[0.3, 0.7], [0.0, 1.0], [[1.0, 0.0], [-0.5, 1.5]]])
@pytest.mark.parametrize("name", [name for name in oracle.CLOSED_FORMS if name != "sin"])
def test_nan_and_infinity_match_the_reference(name: str, coefficients: list[float]) -> None:
    odd = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e38, -1e38, 1e-42, 1.0, -1.0]
    x = torch.tensor([odd, odd], requires_grad=True)
    results = []
    for backend in BACKENDS:
        y = hullo.combine(x, torch.tensor(coefficients), ("sin", name), channel_dim=0, backend=backend)
        results.append((y.detach(), torch.autograd.grad(y.sum(), x)[0]))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_propagates(backend: str) -> None:
    for name in oracle.CLOSED_FORMS:
        assert hullo.combine(torch.tensor([torch.nan]), torch.ones(1), [name], backend=backend).isnan().all(), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("groups", [None, 2])
def test_only_input_and_coefficients_are_saved_for_backward(backend: str, groups: int | None) -> None:
    held: list[Tensor] = []
    x = torch.randn(3, 4, 5, requires_grad=True)
    c = rows_of(groups, 4).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        hullo.combine(x, c, QUARTET, backend=backend)
    assert [t.data_ptr() for t in held] == [x.data_ptr(), c.data_ptr()]


def test_input_is_not_changed() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    before = x.detach().clone()
    y = hullo.combine(x, torch.tensor([0.2, 0.3, 0.5], requires_grad=True), TRIO)
    upstream = torch.randn_like(y)
    upstream_before = upstream.clone()
    y.backward(upstream)
    assert torch.equal(x, before)
    assert torch.equal(upstream, upstream_before)
    assert y.data_ptr() != x.data_ptr()


def test_identity_returns_new_memory() -> None:
    x = torch.randn(4, 6)
    y = hullo.combine(x, torch.ones(1), ["identity"])
    y.zero_()
    assert x.abs().sum() > 0


def test_inadmissible_bases_and_empty_channels_are_allowed() -> None:
    x = torch.randn(4, 5)
    torch.testing.assert_close(hullo.combine(x, torch.ones(1), ["gelu"]), torch.nn.functional.gelu(x))
    assert hullo.combine(torch.randn(4, 0), torch.ones(2, 1), ["gelu"]).shape == (4, 0)


def test_default_device_does_not_matter() -> None:
    x, c = torch.randn(4, 6, requires_grad=True), rows_of(2, 4)
    expected = hullo.combine(x, c, QUARTET)
    with torch.device("meta"):
        actual = hullo.combine(x, c, QUARTET)
        actual.sum().backward()
    assert torch.equal(actual, expected)
