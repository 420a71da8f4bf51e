"""Attention with dropout agrees with float64 and has the mask of the plain form; on the CPU in Triton's interpreter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo.population import Population, kernels, rng
from hullo.population.rules import Context, layers
from hullo.population.values import Value

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter multiplies no bfloat16

from hullo.population.kernels.attention import attend  # noqa: E402
from hullo.population.kernels.dropout import Dropout  # noqa: E402

MEMBERS, BATCH, HEADS, NUMBER, FIRST = 2, 2, 2, 3, 1
SEEDS, STEPS = torch.tensor([5, 2**62]), torch.tensor([7, -1])
DROPOUT = Dropout(SEEDS.to(DEVICE), STEPS.to(DEVICE), NUMBER, 0.3)


def oracle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    rate: float | Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    first: int = FIRST,
) -> Tensor:
    """Compute attention as its formula says."""
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -torch.inf)
    if mask is not None:
        scores = scores + (mask if mask.is_floating_point() else torch.where(mask, 0.0, -torch.inf))
    sees_none = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(sees_none, 0).softmax(-1) * ~sees_none
    kept = rng.dropout_mask(SEEDS, STEPS, NUMBER, weights.shape[1:], rate=rate, first=first)
    share = 1 - rate if isinstance(rate, float) else (1 - rate).view(-1, 1, 1, 1, 1)
    return weights * kept / share @ v


def draw(queries: int, keys: int, features: int, values: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return queries, keys, values and a gradient of the outputs."""
    shapes = ((queries, features), (keys, features), (keys, values), (queries, values))
    return [torch.randn(MEMBERS, BATCH, HEADS, *shape).to(dtype) for shape in shapes]


def compare(drawn: list[Tensor], mask: Tensor | None, rate: Any, tolerance: float, **options: Any) -> None:
    """Compare values and gradients with float64."""
    found = []
    for fused in (True, False):
        *inputs, gradient = (item.to(DEVICE) if fused else item.double() for item in drawn)
        leaves = [item.detach().requires_grad_() for item in inputs]
        if fused:
            own = rate.to(DEVICE) if isinstance(rate, Tensor) else rate
            dropout = DROPOUT._replace(rate=own, first=FIRST)
            y = attend(*leaves, mask if mask is None else mask.to(DEVICE), dropout, **options)
        else:
            y = oracle(*leaves, mask if mask is None or mask.dtype == torch.bool else mask.double(), rate, **options)
        found.append([y, *torch.autograd.grad(y, leaves, gradient)])
    for one, exact in zip(*found, strict=True):
        assert (one.double().cpu() - exact).norm() <= tolerance * (exact.norm() + 1)


MASKS = {
    "none": None,
    "padding": (MEMBERS, BATCH, 1, 1, 40),
    "shared padding": (1, BATCH, 1, 1, 40),
    "full": (MEMBERS, BATCH, HEADS, 40, 40),
    "for all heads": (MEMBERS, BATCH, 1, 40, 40),
}


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_masks_of_any_shape_hide_keys_or_add_to_scores(kind: str, adds: bool) -> None:
    shape = MASKS[kind]
    mask = None if shape is None else torch.randn(shape) if adds else torch.rand(shape) < 0.7
    compare(draw(40, 40, 16, 16), mask, 0.3, 5e-6, is_causal=adds)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "sizes", [(13, 27, 20, 12), (27, 13, 12, 20), (1, 33, 8, 8), (70, 36, 16, 16), (36, 70, 3, 5), (5, 4, 100, 128)]
)
def test_any_number_of_queries_keys_and_features(sizes: tuple[int, ...], is_causal: bool) -> None:
    compare(draw(*sizes), None, 0.3, 5e-6, is_causal=is_causal, scale=0.5)


@pytest.mark.parametrize("keys", [8, 7])
def test_members_may_have_rates_of_their_own(keys: int) -> None:
    compare(draw(9, keys, 16, 16), None, torch.tensor([0.0, 0.6], dtype=torch.float64), 5e-6)


@pytest.mark.parametrize(("length", "features"), [(80, 64), (33, 128)])
def test_half_precision_is_that_of_its_numbers(length: int, features: int) -> None:
    # weights, their gradients and the results are rounded once: a few halves of the spacing
    spacing = torch.finfo(HALF).eps
    compare(draw(length, length, features, features, HALF), None, 0.2, 2 * spacing, is_causal=True)


def test_a_query_that_sees_no_key_is_zero_and_the_least_number_hides_nothing_of_it() -> None:
    drawn = draw(6, 12, 16, 16)
    mask = torch.zeros(1, 1, 1, 6, 12)
    mask[..., 2, :] = -torch.inf
    mask[..., 3, :] = torch.finfo(torch.float32).min
    compare(drawn, mask, 0.3, 5e-6)
    hidden = attend(*(item.to(DEVICE) for item in (*drawn[:3], mask)), DROPOUT)[..., 2, :]
    assert hidden.eq(0).all()


def test_a_member_that_is_not_finite_leaves_the_other_as_it_is() -> None:
    drawn = [item.to(DEVICE) for item in draw(5, 8, 16, 16)]
    passes = []
    for sick in (False, True):
        leaves = [item.clone().requires_grad_() for item in drawn[:3]]
        if sick:
            leaves[2].data[1, 0, 0, 0] = torch.nan
        y = attend(*leaves, None, DROPOUT)
        passes.append((y, *torch.autograd.grad(y, leaves, drawn[3])))
    for sound, beside in zip(*passes, strict=True):
        assert sound[0].equal(beside[0])
    assert passes[1][0][1].isnan().any()


def test_parts_of_one_tensor_have_gradients_in_one_tensor_and_outputs_are_rows_of_features() -> None:
    whole = torch.randn(MEMBERS, BATCH, 6, 3, HEADS, 16, device=DEVICE)
    parts = [item.detach().requires_grad_() for item in whole.permute(3, 0, 1, 4, 2, 5)]
    y = attend(*parts, None, DROPOUT)
    assert y.transpose(2, 3).is_contiguous()
    gradients = torch.autograd.grad(y.square().sum(), parts)
    assert len({item.untyped_storage().data_ptr() for item in gradients}) == 1
    alone = [item.detach().clone().requires_grad_() for item in parts]
    again = attend(*alone, None, DROPOUT)
    expected = torch.autograd.grad(again.square().sum(), alone)
    assert all(one.equal(other) for one, other in zip(gradients, expected, strict=True))
    numbers = None, DROPOUT
    tied = attend(parts[0], parts[0], parts[2], *numbers)  # which are not all parts of the whole
    apart = attend(alone[0], alone[0].clone(), alone[2], *numbers)
    found, expected = (torch.autograd.grad(y.sum(), own[::2]) for y, own in ((tied, parts), (apart, alone)))
    assert all(one.equal(other) for one, other in zip(found, expected, strict=True))


def test_parts_of_one_tensor_beside_which_others_lie_have_the_gradients_of_copies() -> None:
    whole, found = torch.randn(MEMBERS, BATCH, 6, 4, HEADS, 16, device=DEVICE), []
    for parts in (whole.permute(3, 0, 1, 4, 2, 5)[:3], whole.permute(3, 0, 1, 4, 2, 5)[:3].clone()):
        leaves = [item.detach().requires_grad_() for item in parts]
        found.append(torch.autograd.grad(attend(*leaves, None, DROPOUT).square().sum(), leaves))
    assert all(one.equal(other) for one, other in zip(*found, strict=True))


def test_second_derivatives_are_refused() -> None:
    q, k, v, _ = (item.to(DEVICE).requires_grad_() for item in draw(3, 4, 16, 16))
    y = attend(q, k, v, None, DROPOUT)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(y.square().sum(), q, create_graph=True)


@pytest.mark.parametrize("lead", [(), (3,), (3, 2), (3, 2, 2)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True, "scale": 0.3}, {"attn_mask": True}])
def test_the_rule_computes_the_same_with_the_kernel_and_without(
    lead: tuple[int, ...], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(MEMBERS, SEEDS, STEPS, NUMBER, FIRST if lead else 0)
    shapes = ((6, 16), (8, 16), (8, 4))
    inputs = [Value(torch.randn(*lead, MEMBERS, *shape), len(lead)) for shape in shapes]
    if "attn_mask" in options:
        options = options | {"attn_mask": Value(torch.rand(6, 8) < 0.8)}
    found = []
    for fused in (True, False):
        device = DEVICE if fused else "cpu"
        monkeypatch.setattr(kernels, "support", lambda x, fused=fused: fused)
        moved = [replace(item, tensor=item.tensor.to(device)) for item in inputs]
        own = {
            key: replace(item, tensor=item.tensor.to(device)) if isinstance(item, Value) else item
            for key, item in options.items()
        }
        there = replace(context, seeds=SEEDS.to(device), steps=STEPS.to(device))
        found.append(layers.attend(there, *moved, dropout_p=0.4, **own).tensor.cpu())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


class Attention(nn.Module):
    """Attention of one projection, with dropout, with as many heads for keys as for queries or fewer."""

    def __init__(self, is_grouped: bool) -> None:
        super().__init__()
        self.groups = 1 if is_grouped else 2
        self.qkv, self.proj = nn.Linear(16, 16 * (1 + self.groups)), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, *kv = self.qkv(x).split([16, *[8 * self.groups] * 2], -1)
        q, k, v = (item.unflatten(-1, (-1, 8)).transpose(1, 2) for item in (q, *kv))
        rate = 0.3 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True, enable_gqa=self.groups == 1)
        return self.proj(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("is_grouped", [False, True])
def test_members_alone_have_the_masks_of_the_population(is_grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "support", lambda x: x.dtype != torch.float64)
    population = Population(lambda: Attention(is_grouped), seeds=range(3)).to(DEVICE)
    x = torch.randn(3, 2, 7, 16, device=DEVICE)
    population.check(x)
    alone = Population([population[1]], seeds=[1]).to(DEVICE)
    torch.testing.assert_close(population(x)[1:2], alone(x[1:2]))
    monkeypatch.setattr(kernels, "support", lambda x: False)
    plain = Population([population[1]], seeds=[1]).to(DEVICE)
    torch.testing.assert_close(alone(x[1:2]), (plain(x[1:2]), plain(x[1:2]))[1])
