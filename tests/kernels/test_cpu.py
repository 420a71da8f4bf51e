"""The CPU kernel in blocks is the reference, whatever their size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hullo
from hullo.kernels import cpu

BASES = ("identity", "relu", "tanh", "unit_silu")

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(5, 6, 3, 4),
    "channels_last": lambda: torch.randn(5, 6, 3, 4).contiguous(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(13, 6, 5).transpose(0, 2),
    "strided": lambda: torch.randn(10, 12, 9)[::2, ::2, ::3],
    "expanded": lambda: torch.randn(5, 6, 1).expand(5, 6, 11),
    "two dimensions": lambda: torch.randn(37, 6),
    "empty": lambda: torch.randn(0, 6, 4),
}


@pytest.fixture(params=[1, 7])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(cpu, "BLOCK", request.param)
    size: int = request.param
    return size


def values_and_gradients(x: Tensor, c: Tensor, upstream: Tensor, channel_dim: int, backend: str) -> tuple[Tensor, ...]:
    x, c = x.detach().requires_grad_(), c.detach().requires_grad_()
    y = hullo.combine(x, c, BASES, channel_dim=channel_dim, backend=backend)
    return y.detach(), *torch.autograd.grad(y, (x, c), upstream)


@pytest.mark.parametrize("groups", [None, 1, 2, 6])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("block")
def test_blocks_of_any_size_are_the_reference(layout: str, groups: int | None) -> None:
    x = LAYOUTS[layout]().double()
    c = torch.randn((4,) if groups is None else (groups, 4), dtype=torch.float64)
    for upstream in (torch.randn_like(x), torch.ones((), dtype=torch.float64).expand_as(x)):
        results = [values_and_gradients(x, c, upstream, 1, backend) for backend in ("cpu", "reference")]
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channel_dim", [0, 2, -1])
@pytest.mark.usefixtures("block")
def test_blocks_follow_the_channels_wherever_they_are(channel_dim: int) -> None:
    x = torch.randn(4, 5, 8, dtype=torch.float64).transpose(0, 1).contiguous().transpose(0, 1)
    c, upstream = torch.randn(2, 4, dtype=torch.float64), torch.randn(4, 5, 8, dtype=torch.float64)
    results = [values_and_gradients(x, c, upstream, channel_dim, backend) for backend in ("cpu", "reference")]
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("groups", [None, 3])
@pytest.mark.usefixtures("block")
def test_blocks_in_lower_precision_are_the_reference_to_rounding(dtype: torch.dtype, groups: int | None) -> None:
    x, upstream = torch.randn(5, 6, 7).to(dtype), torch.randn(5, 6, 7).to(dtype)
    c = torch.randn((4,) if groups is None else (groups, 4))
    results = [values_and_gradients(x, c, upstream, 1, backend) for backend in ("cpu", "reference")]
    rounding = 2 * torch.finfo(dtype).eps
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=rounding, atol=max(rounding, 1e-5))


@pytest.mark.parametrize("groups", [None, 1, 2, 6])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_element_is_in_exactly_one_block(layout: str, groups: int | None, block: int) -> None:
    """Blocks are no larger than asked for, so that they stay in the cache, and none is visited twice."""
    sizes: list[int] = []
    counting = hullo.Base(
        "counting", lambda x: sizes.append(x.numel()) or x, lambda x, y: 1.0, 0.0, (1.0, 1.0), (1.0, 1.0)
    )
    x = LAYOUTS[layout]()
    c = torch.ones((1,) if groups is None else (groups, 1))
    hullo.combine(torch.ones(1), torch.ones(1), [counting])  # the first call checks the set of bases
    sizes.clear()
    hullo.combine(x, c, [counting], backend="cpu")
    assert sum(sizes) == x.numel()
    assert max(sizes, default=0) <= block


def test_a_tensor_of_many_blocks_is_the_reference() -> None:
    x = torch.randn(3, cpu.BLOCK // 2 + 5)
    c = torch.tensor([0.2, 0.3, 0.1, 0.4])
    for rows in (c, torch.stack([c, c.flip(0), -c])):
        results = [values_and_gradients(x, rows, torch.ones_like(x), 0, backend) for backend in ("cpu", "reference")]
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 3e-7), (torch.float64, 1e-15)])
@pytest.mark.parametrize("count", [8, 2 * cpu.ONEDNN])
def test_tanh_is_exact_to_rounding_also_near_zero(dtype: torch.dtype, rtol: float, count: int) -> None:
    x = torch.cat([torch.logspace(-18, 1.5, count, dtype=dtype), torch.tensor([0.0, -0.0, 1e30, torch.inf, torch.nan])])
    found = hullo.combine(x, torch.ones(1), ["tanh"], backend="cpu")
    torch.testing.assert_close(found.double(), torch.tanh(x.double()), rtol=rtol, atol=0.0, equal_nan=True)
    assert found.signbit().equal(x.signbit())


@pytest.mark.parametrize("groups", [None, 1])
def test_sums_over_many_blocks_are_better_than_float32(groups: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "BLOCK", 1)
    x = torch.ones(1, 401)
    x[0, 0] = 2**24  # to which float32 cannot add one
    c = torch.ones((1,) if groups is None else (1, 1), requires_grad=True)
    hullo.combine(x, c, ["identity"], backend="cpu").backward(torch.ones_like(x))
    assert c.grad is not None
    assert c.grad.item() == 2**24 + 400


def test_the_layout_of_the_input_is_the_layout_of_the_result() -> None:
    x = torch.randn(2, 6, 5, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = hullo.combine(x, torch.randn(2, 4), BASES, backend="cpu")
    assert y.is_contiguous(memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


def test_a_unit_function_of_ones_own_is_not_taken_for_one_of_the_catalogue() -> None:
    x = torch.linspace(-3, 3, 50)
    for name, formula in (("unit_tanh", "x * sigmoid(x)"), ("unit_nothing", "x * sigmoid(x)")):
        found = hullo.combine(x, torch.ones(1), [hullo.add_base(name, formula)], backend="cpu")
        torch.testing.assert_close(found, torch.nn.functional.silu(x))


def test_tensor_of_a_class_with_a_conversion_of_its_own_is_supported() -> None:
    class Own(torch.Tensor):
        def to(self, place: str) -> Any:
            raise AssertionError(place)

    act = hullo.AffineHull("identity", "relu", "tanh")
    x = torch.randn(4, 3)
    own = x.clone().as_subclass(Own).requires_grad_()  # type: ignore[no-untyped-call]
    y = act(own)
    torch.testing.assert_close(y.as_subclass(torch.Tensor), act(x))
    (gradient,) = torch.autograd.grad(y.sum(), own)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(gradient.as_subclass(torch.Tensor), torch.autograd.grad(act(leaf).sum(), leaf)[0])


@pytest.mark.parametrize(
    "cut", [lambda x: x, lambda x: x[..., ::2], lambda x: x[:, ::2]], ids=["whole", "width", "channels"]
)
def test_outputs_and_gradients_are_laid_out_as_those_of_relu(cut: Callable[[Tensor], Tensor]) -> None:
    x = cut(torch.randn(2, 6, 5, 8).to(memory_format=torch.channels_last)).detach().requires_grad_()
    results = []
    for act in (torch.nn.ReLU(), hullo.AffineHull("identity", "relu", "tanh")):
        y = act(x)
        results.append((y.stride(), torch.autograd.grad(y.sum(), x)[0].stride()))
    assert results[0][0] == results[1][0]
    assert results[1][1] == results[1][0]
