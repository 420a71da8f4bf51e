"""Products of matrices with odd rows equal those of float64; on the CPU they run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HALF = torch.bfloat16 if GPU else torch.float16  # the interpreter multiplies no bfloat16

from hullo.population.kernels import multiply_weights, working_dtype  # noqa: E402
from hullo.population.kernels.linear import Product, is_misaligned  # noqa: E402


@pytest.fixture
def _small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave small weights to the kernel, too."""
    monkeypatch.setattr("hullo.population.kernels.linear.LEAST_WEIGHTS", 0)


def draw(*shape: int) -> Tensor:
    """Return small integers, of which float32 holds every sum."""
    return torch.randint(-4, 5, shape).to(DEVICE, HALF).requires_grad_()


@pytest.mark.usefixtures("_small_weights")
@pytest.mark.parametrize(
    ("members", "rows", "inner", "columns"), [(2, 20, 70, 130), *([(60, 32, 1250, 500), (7, 64, 802, 500)] * GPU)]
)
@pytest.mark.parametrize("columns_first", [False, True])
def test_products_and_gradients_equal_those_of_float64(
    members: int, rows: int, inner: int, columns: int, columns_first: bool
) -> None:
    x, weight = draw(members, rows, inner), draw(members, inner, columns)
    own = weight.mT.contiguous().mT if columns_first else weight
    precise = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    y, expected = Product.apply(x, own), precise[0] @ precise[1]
    assert torch.equal(y.double(), expected.to(HALF).double())
    dy = torch.randint(-4, 5, y.shape).to(y)
    for got, want in zip(
        torch.autograd.grad(y, (x, weight), dy), torch.autograd.grad(expected, precise, dy.double()), strict=True
    ):
        assert torch.equal(got.double(), want.to(HALF).double())


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "faster"),
    [
        (32, 1250, 500, True),
        (32, 1248, 504, False),  # libraries read 16 bytes at a time
        (8, 1250, 500, False),
        (128, 1250, 500, False),
        (32, 1250, 10, False),
        (32, 1251, 500, False),
    ],
)
def test_only_few_rows_and_large_odd_weights_are_left_to_the_kernel(
    rows: int, inner: int, columns: int, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hullo.population.kernels.linear.is_tuned_for", lambda dtype, device: True)
    weight = torch.empty(2, inner, columns, device="meta")
    assert is_misaligned(torch.empty(2, rows, inner, device="meta"), weight, torch.bfloat16) is faster


@pytest.mark.usefixtures("_small_weights")
def test_gradients_can_be_differentiated() -> None:
    x, weight = draw(2, 16, 18), draw(2, 18, 20)
    factors = [torch.randint(-4, 5, shape).to(x) for shape in ((2, 16, 20), x.shape, weight.shape)]
    found = []
    for kind in (HALF, torch.float64):
        leaves = [tensor.detach().to(kind).requires_grad_() for tensor in (x, weight, factors[0])]
        one, other, dy = leaves
        y = Product.apply(one, other) if kind == HALF else one @ other
        firsts = torch.autograd.grad(y, (one, other), dy, create_graph=True)
        total = sum((first * factor.to(kind)).sum() for first, factor in zip(firsts, factors[1:], strict=True))
        found.append([*firsts, *torch.autograd.grad(total, leaves)])
    for got, want in zip(*found, strict=True):
        assert torch.equal(got.double(), want.to(HALF).double())


@pytest.mark.usefixtures("_small_weights")
@pytest.mark.parametrize("frozen", [0, 1], ids=["x", "weight"])
def test_one_factor_has_its_gradient_without_the_other(frozen: int) -> None:
    factors = [draw(2, 16, 18), draw(2, 18, 20)]
    dy = torch.randint(-4, 5, (2, 16, 20)).to(factors[0])
    expected = torch.autograd.grad(Product.apply(*factors), factors, dy)
    factors[frozen] = factors[frozen].detach()
    (found,) = torch.autograd.grad(Product.apply(*factors), factors[1 - frozen], dy)
    assert torch.equal(found, expected[1 - frozen])


def test_autocast_leaves_wide_and_complex_numbers_as_they_are() -> None:
    kinds = {torch.float32: torch.bfloat16, torch.float64: torch.float64, torch.complex64: torch.complex64}
    with torch.autocast(DEVICE, torch.bfloat16):
        assert {kind: working_dtype(torch.empty(1, dtype=kind, device=DEVICE)) for kind in kinds} == kinds


def test_without_a_gpu_products_are_plain() -> None:
    x, weight = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    assert torch.equal(multiply_weights(x, weight), torch.bmm(x, weight))
