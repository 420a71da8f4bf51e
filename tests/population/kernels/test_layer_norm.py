"""The fused sum and layer norm agrees with float64; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rounding import assert_rounded_once

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.population import rng  # noqa: E402
from hullo.population.kernels.dropout import Dropout  # noqa: E402
from hullo.population.kernels.layer_norm import layer_norm  # noqa: E402


def oracle(
    x: Tensor,
    y: Tensor | None,
    shift: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    rms: bool,
    factors: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    y = y if y is None or shift is None else y + shift.unsqueeze(1)
    s = x if y is None else x + y * factors
    norm = F.rms_norm if rms else F.layer_norm
    n = norm(s, s.shape[-1:], eps=1e-3)
    n = n if weight is None else n * weight.unsqueeze(1)
    return s, n if bias is None else n + bias.unsqueeze(1)


def draw(shape: tuple[int, int, int], given: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor | None]:
    members, _, columns = shape
    drawn: dict[str, Tensor | None] = {"x": torch.randn(shape) + 3}
    drawn["y"] = torch.randn(shape).to(dtype) if "y" in given else None
    for name in ("shift", "weight", "bias"):
        drawn[name] = torch.randn(members, columns) if name[0] in given else None
    return drawn


@settings(max_examples=8)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 70)),
    st.sampled_from(["", "w", "wb", "y", "ysw", "yswb"]),
    st.booleans(),
)
@example((2, 300, 200), "yswb", False)  # several programs per member, of several tiles each
@example((1, 3, 2100), "ysw", True)  # more columns than a tile has
def test_values_and_gradients_agree_with_float64(shape: tuple[int, int, int], given: str, rms: bool) -> None:
    inputs = draw(shape, given.replace("b", "") if rms else given)
    gradients, found = torch.randn(2, *shape), []
    for fused, kind in ((True, torch.float32), (False, torch.float32), (False, torch.float64)):
        device = DEVICE if fused else "cpu"
        tensors = [None if t is None else t.to(device, kind).requires_grad_() for t in inputs.values()]
        both = layer_norm(*tensors, eps=1e-3, rms=rms, dtype=kind)[:2] if fused else oracle(*tensors, rms)
        leaves = [t for t in tensors if t is not None]
        found.append([*both, *torch.autograd.grad(both, leaves, list(gradients.to(device, kind)))])
    for one, plain, exact in zip(*found, strict=True):
        of_float32 = (plain.double() - exact).norm()  # large where few columns are almost equal
        assert (one.double().cpu() - exact).norm() <= 1e-5 * exact.norm() + 1e-5 + 4 * of_float32


def test_a_sum_has_the_dtype_of_pytorch_and_the_norm_the_one_asked_for() -> None:
    inputs = draw((2, 5, 16), "yswb", torch.bfloat16)
    leaves = [t.to(DEVICE).requires_grad_() for t in inputs.values() if t is not None]
    s, n, _ = layer_norm(*leaves, eps=1e-3, dtype=torch.bfloat16)
    assert (s.dtype, n.dtype) == (torch.float32, torch.bfloat16)
    found = torch.autograd.grad(n, leaves, torch.ones_like(n))
    assert [t.dtype for t in found] == [t.dtype for t in leaves]
    wide = [t.detach().cpu().double().requires_grad_() for t in leaves]
    slopes = torch.autograd.grad(oracle(*wide, False)[1].sum(), wide)
    for one, other in zip(found, slopes, strict=True):  # computed in float32, rounded once
        rounding = 2.0**-7 if one.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(one.double().cpu(), other, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("rms", [False, True])
def test_the_norm_of_a_sum_in_halves_is_that_of_the_rounded_sum_in_float32(rms: bool) -> None:
    x, y = (torch.randn(2, 5, 16, device=DEVICE).to(torch.bfloat16).requires_grad_() for _ in range(2))
    weight, dn = torch.randn(2, 16, device=DEVICE, requires_grad=True), torch.randn(2, 5, 16, device=DEVICE)
    s, n, _ = layer_norm(x, y, None, weight, None, eps=1e-3, rms=rms, dtype=torch.float32)
    found = torch.autograd.grad(n, (weight, x, y), dn)
    assert s.dtype == torch.bfloat16
    assert layer_norm(x, y.float(), None, None, None, eps=1e-3, dtype=torch.float32)[0].dtype == torch.float32
    rounded, wide = (t.detach().cpu().double().requires_grad_() for t in (s, weight))
    exact = oracle(rounded, None, None, wide, None, rms)[1]
    of_weight, of_sum = torch.autograd.grad(exact, (wide, rounded), dn.cpu().double())
    expected = (exact, of_weight, of_sum, of_sum)
    for one, other, rounding in zip((n, *found), expected, (1e-5, 1e-5, 2.0**-7, 2.0**-7), strict=True):
        torch.testing.assert_close(one.double().cpu(), other, rtol=rounding, atol=1e-5)


def test_norms_in_halves_are_rounded_once() -> None:
    x, y, *others = (None if t is None else t.to(DEVICE, torch.bfloat16) for t in draw((2, 5, 16), "yswb").values())
    s, n, _ = layer_norm(x, y, *others, eps=1e-3, dtype=torch.bfloat16)
    weight, bias = (t.cpu().double() for t in others[1:] if t is not None)
    assert_rounded_once(n, oracle(s.cpu().double(), None, None, weight, bias, False)[1])


def test_a_member_that_is_not_finite_leaves_the_others_as_they_are() -> None:
    inputs = [t.to(DEVICE) for t in draw((3, 9, 8), "yswb").values() if t is not None]
    passes = []
    for sick in (False, True):
        leaves = [t.clone().requires_grad_() for t in inputs]
        if sick:
            leaves[0].data[1, 0, 0] = torch.nan
        both = layer_norm(*leaves, eps=1e-3, dtype=torch.float32)[:2]
        passes.append((*both, *torch.autograd.grad(sum(t.square().sum() for t in both), leaves)))
    for sound, beside in zip(*passes, strict=True):
        assert sound[[0, 2]].equal(beside[[0, 2]])
        assert beside[1].isnan().any()


@pytest.mark.parametrize("shape", [(2, 5, 16), (3, 40, 21), (2, 3, 4)])
@pytest.mark.parametrize("given", ["yb", "yswb"])
def test_a_dropout_of_the_branch_has_the_mask_of_its_rows(shape: tuple[int, int, int], given: str) -> None:
    members, rows, columns = shape
    inputs = draw(shape, given)
    seeds, steps, gradients, found = torch.arange(members) + 7, torch.arange(members), torch.randn(2, *shape), []
    kept = rng.dropout_mask(seeds, steps, 2, (rows, columns), rate=0.4, first=3)
    for fused, kind in ((True, torch.float32), (False, torch.float64)):
        device = DEVICE if fused else "cpu"
        tensors = [None if t is None else t.to(device, kind).requires_grad_() for t in inputs.values()]
        dropout = Dropout(seeds.to(device), steps.to(device), 2, 0.4, 3)
        if fused:
            both = layer_norm(*tensors, eps=1e-3, dtype=kind, dropout=dropout)[:2]
        else:
            both = oracle(*tensors, False, kept / 0.6)
        leaves = [t for t in tensors if t is not None]
        found.append([*both, *torch.autograd.grad(both, leaves, list(gradients.to(device, kind)))])
    for one, exact in zip(*found, strict=True):
        torch.testing.assert_close(one.double().cpu(), exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("users", ["both", "copy"])
@pytest.mark.parametrize("given", ["", "yswb"])
def test_a_copy_is_the_norm_in_its_dtype_and_adds_its_gradient(given: str, users: str) -> None:
    inputs = draw((2, 5, 16), given)
    own, of_copy = torch.randn(2, 5, 16), torch.randint(-3, 4, (2, 5, 16)).float()  # exact in halves
    own = own if users == "both" else torch.zeros_like(own)
    leaves = [None if t is None else t.to(DEVICE).requires_grad_() for t in inputs.values()]
    wide = [None if t is None else t.double().requires_grad_() for t in inputs.values()]
    _, n, copy = layer_norm(*leaves, eps=1e-3, dtype=torch.float32, copy=torch.bfloat16)
    assert copy is not None
    torch.testing.assert_close(copy, n.to(torch.bfloat16), rtol=2.0**-7, atol=0)  # the interpreter cuts off
    total = (copy * of_copy.to(copy)).sum(dtype=torch.float32)
    total = total if users == "copy" else total + (n * own.to(DEVICE)).sum()
    exact = (oracle(*wide, False)[1] * (own + of_copy)).sum()
    wanted, wanted_wide = ([t for t in tensors if t is not None] for tensors in (leaves, wide))
    expected = torch.autograd.grad(exact, wanted_wide)
    for one, other in zip(torch.autograd.grad(total, wanted), expected, strict=True):
        torch.testing.assert_close(one.double().cpu(), other, rtol=1e-4, atol=1e-4)


def test_a_backward_pass_after_the_next_step_is_refused() -> None:
    """It would draw another mask."""
    x, y = (torch.randn(2, 3, 8, device=DEVICE, requires_grad=True) for _ in range(2))
    seeds, steps = torch.arange(2, device=DEVICE), torch.arange(2, device=DEVICE)
    dropout = Dropout(seeds, steps, 0, 0.5)
    s, _, _ = layer_norm(x, y, None, None, None, eps=1e-3, dtype=torch.float32, dropout=dropout)
    steps.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(s.sum(), y)


def test_second_derivatives_are_refused() -> None:
    x = torch.randn(2, 3, 8, device=DEVICE, requires_grad=True)
    _, n, _ = layer_norm(x, None, None, None, None, eps=1e-3, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(n.square().sum(), x, create_graph=True)
