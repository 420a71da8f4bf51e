"""Fused local response normalization: on a GPU where there is one, else on the CPU through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compiled import run_without_interpreter
from cuda_steps import assert_replayed, count_kernels

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population.kernels.lrn import LocalResponseNorm  # noqa: E402

ROUNDING = {torch.float32: 1e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8 if DEVICE == "cuda" else 2.0**-7}
"""A relative error in norm; for 16 bits the most that rounding a result can do (the interpreter cuts bfloat16 off)."""

CASES = {  # shape, members
    "AlexNet's first": ((1, 96, 3, 5), 1),
    "AlexNet's second": ((2, 256, 1, 3), 1),
    "members": ((2, 48, 3, 3), 3),
    "members of odd width": ((3, 21, 5, 2), 3),
    "members narrower than the window": ((2, 8, 2, 3), 4),
    "a channel each": ((3, 5, 2, 2), 5),
    "one element": ((1, 1, 1, 1), 1),
    "several programs": ((3, 40, 7, 11), 2),
}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


def oracle(x: Tensor, gradient: Tensor, members: int, size: int, alpha: float) -> tuple[Tensor, Tensor]:
    """Return y and dx in float64, by PyTorch's own function for each member and by automatic differentiation."""
    wide = x.detach().double().requires_grad_()
    parts = [F.local_response_norm(own, size, alpha, 0.75, 1.0) for own in wide.chunk(members, 1)]
    y = torch.cat(parts, 1)
    return y.detach(), torch.autograd.grad(y, wide, gradient.double())[0]


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def check(x: Tensor, gradient: Tensor, members: int, size: int = 5, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """Compare both passes with the oracle, for an alpha of one: sums of squares hardly matter at Caffe's 1e-4."""
    x = x.detach().requires_grad_()
    y = LocalResponseNorm.apply(x, x.shape[1] // members, size, alpha)
    (dx,) = torch.autograd.grad(y, x, gradient)
    expected_y, expected_dx = oracle(x, gradient, members, size, alpha)
    assert y.dtype == dx.dtype == x.dtype
    assert relative_error(y, expected_y) < ROUNDING[x.dtype]
    assert relative_error(dx, expected_dx) < ROUNDING[x.dtype]
    return y, dx


def random_case(shape: tuple[int, ...], layout: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x, gradient = 3 * torch.randn(shape), torch.randn(shape)
    return tuple(t.to(DEVICE, dtype, memory_format=LAYOUTS[layout]) for t in (x, gradient))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_every_shape_and_layout_agrees_with_float64(case: str, layout: str) -> None:
    shape, members = CASES[case]
    x, gradient = random_case(shape, layout)
    y, dx = check(x, gradient, members)
    assert all(item.is_contiguous(memory_format=torch.channels_last) for item in (y, dx))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", ["AlexNet's first", "members", "members of odd width"])
def test_16_bits_agree_to_their_rounding(case: str, dtype: torch.dtype, layout: str) -> None:
    shape, members = CASES[case]
    check(*random_case(shape, layout, dtype), members)


@settings(max_examples=15)
@given(
    batch=st.integers(1, 3),
    members=st.integers(1, 3),
    channels=st.integers(1, 20),
    side=st.integers(1, 4),
    half=st.integers(0, 4),
    layout=st.sampled_from(list(LAYOUTS)),
    dtype=st.sampled_from([torch.float32, torch.float16]),
)
def test_any_window_and_shape_agrees_with_float64(
    batch: int, members: int, channels: int, side: int, half: int, layout: str, dtype: torch.dtype
) -> None:
    case = random_case((batch, members * channels, side, side + 1), layout, dtype)
    check(*case, members, size=2 * half + 1, alpha=0.7)


def test_caffes_constants_at_the_size_of_its_activations() -> None:
    x, gradient = random_case((2, 96, 2, 2), "channels last")
    y, _ = check(100 * x, gradient, 1, alpha=1e-4)
    assert relative_error(y, 100 * x.double()) > 0.1  # and it does something there


def test_strided_and_expanded_inputs_and_gradients() -> None:
    x, gradient = random_case((4, 24, 6, 5), "contiguous")
    check(x[::2, :, 1::2], gradient[::2, :, 1::2], 2)
    check(x[:, :, :1].expand(4, 24, 6, 5), torch.ones(1, device=DEVICE).expand(4, 24, 6, 5), 2)
    check(x, gradient.to(memory_format=torch.channels_last), 2)
    check(x.to(memory_format=torch.channels_last), gradient, 2)


def test_an_address_that_is_not_aligned_is_served() -> None:
    x, gradient = (torch.randn(2 * 16 * 9 + 1, device=DEVICE)[1:].view(2, 3, 3, 16).permute(0, 3, 1, 2) for _ in "xg")
    check(x, gradient, 1)


def test_a_batch_of_none() -> None:
    x = torch.randn(0, 8, 3, 3, device=DEVICE, requires_grad=True)
    y = LocalResponseNorm.apply(x, 4, 5, 1.0)
    y.sum().backward()
    assert y.shape == x.grad.shape == x.shape


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_member_that_diverges_leaves_the_others_unchanged_to_the_bit(value: float, layout: str) -> None:
    x, gradient = random_case((2, 30, 2, 2), layout)
    results = []
    for diverges in (False, True):
        if diverges:
            x[0, 9, 0, 0] = value  # the last channel of the first of three members
        leaf = x.clone().requires_grad_()
        y = LocalResponseNorm.apply(leaf, 10, 5, 1.0)
        (dx,) = torch.autograd.grad(y, leaf, gradient)
        results.append((y, dx))
    expected, _ = oracle(x, gradient, 3, 5, 1.0)
    assert expected.isfinite().logical_not().any()
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    for healthy, beside_it in zip(*results, strict=True):
        assert torch.equal(healthy[:, 10:], beside_it[:, 10:])


COMPILE = """
from compiled import compile_launches
launched = compile_launches()

import torch
from hullo.population.kernels.lrn import LocalResponseNorm

x = torch.empty(4, 8, 8, 96, dtype=torch.bfloat16, device="meta").movedim(-1, 1).requires_grad_()
y = LocalResponseNorm.apply(x, 96, 5, 1.0)
y.backward(torch.empty_like(y))
for kernel in launched:
    words = kernel.ptx.split()
    print(kernel.name, sum("ld.global" in word for word in words), "ld.global.v4.b32" in words, ".shared" in kernel.ptx)
"""


def test_compiled_for_a_gpu_channels_travel_16_bytes_at_a_time_and_no_thread_asks_another() -> None:
    """Three loads of x forward, three of x and of dy backward; this takes no GPU, and the interpreter cannot tell."""
    lines = [" ".join(line) for line in run_without_interpreter("-c", COMPILE)]
    assert lines == ["_forward 3 True False", "_backward 6 True False"]


gpu = pytest.mark.gpu


@gpu
def test_more_than_2_31_elements() -> None:
    x = torch.empty(22_400, 96, 32, 32, dtype=torch.bfloat16, device="cuda", memory_format=torch.channels_last)
    x.uniform_(-3, 3)
    assert x.numel() > 2**31
    x.requires_grad_()
    y = LocalResponseNorm.apply(x, 96, 5, 1.0)
    (dx,) = torch.autograd.grad(y, x, x.detach())
    for part in (slice(0, 10), slice(-10, None)):
        expected = oracle(x[part], x[part].detach(), 1, 5, 1.0)
        assert relative_error(y[part], expected[0]) < ROUNDING[x.dtype]
        assert relative_error(dx[part], expected[1]) < ROUNDING[x.dtype]


@gpu
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_one_kernel_forward_and_one_backward_also_in_a_cuda_graph() -> None:
    x, gradient = random_case((4, 96, 55, 55), "channels last", torch.bfloat16)
    x.requires_grad_()

    def passes() -> tuple[Tensor, Tensor]:
        y = LocalResponseNorm.apply(x, 96, 5, 1e-4)
        return y.detach(), torch.autograd.grad(y, x, gradient)[0]

    expected = passes()
    assert count_kernels(passes) == 2
    assert_replayed(passes, expected)
