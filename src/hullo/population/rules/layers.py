"""Linear layers, embeddings, attention, dropout, padding and pooling of a population."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor

from hullo._compat import is_eager
from hullo.kernels.spec import compute_dtype
from hullo.population import kernels, rng
from hullo.population.rules import Context, rule
from hullo.population.rules.convolutions import flat_parameter
from hullo.population.values import PaddedValue, Value, wrap

aten = torch.ops.aten


# Linear layers: K of them are one batched product.


@rule(aten.linear.default)
def linear(context: Context, x: Value, weight: Value, bias: Value | None = None) -> Any:
    members, weights = context.members, weight.at(0, context.members)
    if len(weight.shape) != 2:
        return NotImplemented
    if x.dim is None:  # all members' outputs in one product
        y = torch.unflatten(F.linear(x.tensor, weights.flatten(0, 1), flat_parameter(bias, context)), -1, (members, -1))
        return Value(y, y.dim() - 2)
    shape = torch.Size([members, *x.shape[:-1], weight.shape[0]])
    x = x.cast(kernels.working_dtype(x.tensor))
    rows = as_rows(context, x)
    if rows.device.type == "cpu" and is_eager():
        given = (rows, weights, None if bias is None else bias.at(0, members))
        cast = (item if item is None else item.to(kernels.working_dtype(item)) for item in given)
        return Value(_Linear.apply(*cast).view(shape), 0)  # type: ignore[no-untyped-call]
    if bias is None:
        return Value(multiply(context, x, weight).view(shape), 0)
    biases = bias.at(0, members)
    if kernels.support(rows) and rows.numel():
        from hullo.population.kernels.linear import linear as linear_members

        y = linear_members(*(item.to(kernels.working_dtype(item)) for item in (rows, weights, biases)))
    else:
        y = torch.baddbmm(biases.unsqueeze(1), rows, weights.mT)
    return Value(y.view(shape), 0)


class _Linear(torch.autograd.Function):
    """Compute linear layers on a CPU; automatic differentiation would copy the weights' gradient into their layout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weights)
        if biases is None:
            return torch.bmm(x, weights.mT)
        return torch.baddbmm(biases.unsqueeze(1), x, weights.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weights = ctx.saved_tensors
        dx, dweights, dbiases = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weights.conj()) if dx else None,
            torch.bmm(gradient.mT, x.conj()) if dweights else None,
            gradient.sum(1) if dbiases else None,
        )


def multiply(context: Context, x: Value, weight: Value) -> Tensor:
    """Return the outputs of linear layers without biases, (members, rows, columns)."""
    x = x.cast(kernels.working_dtype(x.tensor))
    return kernels.multiply_weights(as_rows(context, x), weight.at(0, context.members).mT)


def as_rows(context: Context, x: Value) -> Tensor:
    """Return features as (members, rows, columns)."""
    features = x.at(0, context.members)
    return features.reshape(context.members, math.prod(x.shape[:-1]), x.shape[-1])


@rule(aten.embedding.default)
def embed(
    context: Context, weight: Value, indices: Value, padding: int = -1, scale: bool = False, sparse: bool = False
) -> Value:
    """Look up all members' indices in one table, the concatenation of their tables."""
    tables = weight.at(0, context.members)
    size = tables.shape[1]
    numbers = indices.at(0, context.members)
    first = torch.arange(0, context.members * size, size, device=numbers.device)
    rows = numbers + first.view(-1, *[1] * (numbers.dim() - 1))
    rows = torch.where(
        (numbers < 0) | (numbers >= size), context.members * size, rows
    )  # out of range, as in one member
    embedded = F.embedding(rows, tables.flatten(0, 1), scale_grad_by_freq=scale)
    if padding >= 0:  # its row has no gradient
        embedded = torch.where((numbers == padding).unsqueeze(-1), embedded.detach(), embedded)
    return Value(embedded, 0)


# Attention


@rule(aten.scaled_dot_product_attention.default)
def attend(
    context: Context,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float | Tensor = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute attention with the members as part of the batch."""
    members = context.members
    q, k, v = (item.at(0, members) for item in (query, key, value))
    if not q.shape[:-3] == k.shape[:-3] == v.shape[:-3]:
        return NotImplemented  # keys or values are broadcast
    own = None if attn_mask is None else _like_scores(attn_mask, q, members)
    if rng.is_zero(dropout_p):
        if own is not None:
            own = own.expand(*q.shape[:-2], *own.shape[-2:])
        flat = (item if item is None or item.dim() <= 4 else item.flatten(0, -4) for item in (q, k, v, own))
        y = aten.scaled_dot_product_attention(*flat, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        return Value(y.view(*q.shape[:-1], v.shape[-1]), 0)
    if enable_gqa:
        k, v = (item.repeat_interleave(q.shape[-3] // item.shape[-3], -3) for item in (k, v))
    if _has_kernel(q, k, v, own, dropout_p):
        return Value(_attend_fused(context, (q, k, v), own, dropout_p, is_causal, scale), 0)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~visible, -torch.inf)
    if own is not None:
        scores = scores.masked_fill(~own, -torch.inf) if own.dtype == torch.bool else scores + own
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    weights = Value(aten._safe_softmax(wide, -1).to(scores.dtype), 0)
    return Value(drop_entries(context, weights, dropout_p).tensor @ v, 0)


def _has_kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rate: float | Tensor) -> bool:
    """Return whether a kernel computes attention with dropout of (K, batch, ..., positions, features)."""
    if not kernels.support(q) or q.dim() < 4 or not q.numel() * v.numel() or k.shape[:-2] != q.shape[:-2]:
        return False
    from hullo.population.kernels.attention import MOST_FEATURES

    is_learned = mask is not None and mask.requires_grad
    is_small = max(q.shape[-1], v.shape[-1]) <= MOST_FEATURES
    return is_small and not is_learned and (isinstance(rate, Tensor) or rate < 1)


def _attend_fused(
    context: Context,
    inputs: Sequence[Tensor],
    mask: Tensor | None,
    rate: float | Tensor,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Compute attention with dropout by a kernel, which takes one batch dimension and one of heads."""
    from hullo.population.kernels.attention import attend as attend_with_dropout
    from hullo.population.kernels.dropout import Dropout

    q, _, v = inputs
    shape, dtype = q.shape[:-1], kernels.working_dtype(q)
    q, k, v = (item.to(dtype).reshape(*item.shape[:2], -1, *item.shape[-2:]) for item in inputs)
    if mask is not None:
        mask = mask.expand(*shape, k.shape[-2]).reshape(*q.shape[:-1], k.shape[-2])
    dropout = Dropout(context.seeds, context.steps, context.number, rate, context.first)
    y = attend_with_dropout(q, k, v, mask, dropout, is_causal=is_causal, scale=scale)
    return y.reshape(*shape, v.shape[-1])


def _like_scores(mask: Value, q: Tensor, members: int) -> Tensor:
    """Return a mask as (K, ..., T, S), with as many dimensions as the queries."""
    own = mask.at(0, members)
    return own.view(len(own), *[1] * (q.dim() - own.dim()), *own.shape[1:])


# Dropout: masks are functions of a member's seed and step, so they are the same alone and in a population.


@rule(aten.dropout.default)
def drop(context: Context, x: Value, rate: float | Tensor, training: bool) -> Value:
    """Zero entries at random with probability `rate`, one number or one per member, and scale up the others."""
    if not training or rng.is_zero(rate):
        return x
    return drop_entries(context, x, rate, images=len(x.shape) == 4)


@rule(aten.feature_dropout.default)
def drop_channels(context: Context, x: Value, rate: float | Tensor, training: bool) -> Value:
    """Zero whole channels at random."""
    if not training or rng.is_zero(rate):
        return x
    return drop_entries(context, x, rate, len(x.shape) - 2, images=len(x.shape) == 4)


def drop_entries(
    context: Context,
    x: Value,
    rate: float | Tensor,
    whole: int = 0,
    *,
    images: bool = False,
    chunk: tuple[int, int] = (0, 1),
) -> Value:
    """Drop entries that the last `whole` dimensions share; masks of images are drawn in channels-last order.

    `chunk` says which of how many chunks of a mask this is, which are beside each other in its last dimension.
    """
    dim = x.dim or 0
    order = [0, 2, 3, 1] if images else list(range(len(x.shape)))
    y, numbers = x.at(dim, context.members), (context.seeds, context.steps, context.number)
    if kernels.support(y) and y.numel() and x.shape and not whole and (isinstance(rate, Tensor) or rate < 1):
        from hullo.population.kernels.dropout import Dropout
        from hullo.population.kernels.dropout import drop as drop_fused

        return Value(drop_fused(y, Dropout(*numbers, rate, context.first), dim=dim, order=order, chunk=chunk), dim)
    shape = [1 if i >= len(order) - whole else size for i, size in enumerate(x.shape)]
    shape = [shape[i] for i in order]
    shape[-1:] = [size * chunk[1] for size in shape[-1:]]
    kept = rng.dropout_mask(*numbers, shape, rate=rate, first=context.first)
    if chunk[1] > 1:
        kept = kept.chunk(chunk[1], -1)[chunk[0]]
    kept = kept.permute(0, 1, 4, 2, 3) if images else kept
    return apply_mask(y, kept.movedim(0, dim), rate, dim)


def apply_mask(y: Tensor, kept: Tensor, rate: float | Tensor, dim: int) -> Value:
    """Return tensors with the members in dimension `dim`, zero where they are not kept, and scaled up elsewhere."""
    if not isinstance(rate, Tensor):
        return Value(y * kept * (1 / (1 - rate) if rate < 1 else 0.0), dim)
    scale = torch.where(rate < 1, 1 / (1 - rate), 0.0).to(compute_dtype(y))
    return Value((y * kept * scale.view([-1 if i == dim else 1 for i in range(y.dim())])).to(y.dtype), dim)


@rule(aten.pad.default, aten.constant_pad_nd.default)
def pad(context: Context, x: Value, sizes: Sequence[int], mode: str | float = 0.0, value: float | None = None) -> Any:
    """Return padded images lazily: a convolution reads them without the zeros."""
    zeros = mode in ("constant", 0) and not value
    if not zeros or len(sizes) != 4 or min(sizes) < 0 or len(x.shape) != 4 or x.dim not in (0, 1):
        return NotImplemented
    return PaddedValue(x, tuple(sizes))  # type: ignore[arg-type]


# Pooling: the images of all members are one batch, or their channels those of one image.


def _pool(operator: Any, dims: int) -> None:
    """Register a rule for an operator that treats each channel separately, on images of so many dimensions."""

    @rule(operator)
    def pool(context: Context, x: Value, *args: Any, **kwargs: Any) -> Any:
        if x.dim is None or len(x.shape) != dims + 2:
            return NotImplemented
        dim = 0 if x.dim == 0 else 1
        images = x.at(dim, context.members)
        y = operator(images.flatten(dim, dim + 1), *args, **kwargs)
        return wrap(pytree.tree_map(lambda item: item.unflatten(dim, images.shape[dim : dim + 2]), y), dim)


for _operator, _dims in (
    (aten.max_pool1d.default, 1),
    (aten.max_pool2d.default, 2),
    (aten.max_pool3d.default, 3),
    (aten.avg_pool1d.default, 1),
    (aten.avg_pool2d.default, 2),
    (aten.avg_pool3d.default, 3),
    (aten.adaptive_avg_pool1d.default, 1),
    (aten.adaptive_avg_pool2d.default, 2),
    (aten.adaptive_max_pool2d.default, 2),
    (aten.max_pool2d_with_indices.default, 2),
    (aten.upsample_bilinear2d.vec, 2),
):
    _pool(_operator, _dims)


@rule(aten.upsample_nearest2d.vec)
def repeat_pixels(context: Context, x: Value, *sizes: Any) -> Any:
    """Upsample in the type of x: repeated numbers lose nothing, where autocast would make them wider."""
    if x.dim is None or len(x.shape) != 4:
        return NotImplemented
    dim = 0 if x.dim == 0 else 1
    images = x.at(dim, context.members)
    with torch.autocast(x.device.type, enabled=False):
        y = aten.upsample_nearest2d.vec(images.flatten(dim, dim + 1), *sizes)
    return Value(y.unflatten(dim, images.shape[dim : dim + 2]), dim)
