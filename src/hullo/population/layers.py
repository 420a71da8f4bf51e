"""The layers of a population: convolutions, linear layers, normalizations, attention, dropout and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hullo.kernels.spec import compute_dtype
from hullo.population import kernels, rng, tracing  # noqa: F401  (tracing defines operators)
from hullo.population.images import ImagesValue
from hullo.population.rules import Context, rule
from hullo.population.values import PaddedValue, Value

aten = torch.ops.aten


# Convolutions: K of them are one convolution with K times as many groups.


@rule(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.conv1d.padding, aten.conv2d.padding)
def convolve(
    context: Context,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    fused = _convolve_fused(context, x, weight, bias, stride, padding, dilation, groups)
    if fused is not None:
        return split_channels(fused, context)
    function = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(weight.shape)]
    unbatched = len(x.shape) < len(weight.shape)
    x = _with_batch(x) if unbatched else x
    if x.dim is None and groups == 1:  # all members' filters in one convolution
        images, all_groups = x.tensor, 1
    else:
        images, all_groups = x.at(1, context.members).flatten(1, 2), context.members * groups
    filters = weight.at(0, context.members).flatten(0, 1)
    y = function(images, filters, flat_parameter(bias, context), stride, padding, dilation, all_groups)
    return split_channels(y, context, unbatched)


OWN_WIDTHS = range(17, 65)
"""The channels, the most of inputs and outputs, where kernels of our own convolve members faster than cuDNN."""


def _convolve_fused(
    context: Context, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor | None:
    """Return (B, K*C, H, W) by a kernel of our own; None where a library is faster, or the only one that can."""
    if len(weight.shape) != 4 or x.dim is None or not kernels.serve(weight.tensor) or len(x.shape) != 4:
        return None
    filters = weight.at(0, context.members).flatten(0, 1)
    side, dtype = filters.shape[-1], kernels.working_dtype(weight.tensor)
    stride, pad, dilation = _square(stride), _square(padding), _square(dilation)
    if groups != 1 or dilation != 1 or stride is None or pad is None or filters.shape[2] != side:
        return None
    around = (pad, pad)
    if isinstance(x, PaddedValue):
        sides = x.pad
        if sides[:2] != sides[2:] or pad:
            return None
        x, around = x.inner, sides[:2]
    if isinstance(x, ImagesValue) and stride == 1 and around in ((0, 0), ((side - 1) / 2, (side - 1) / 2)):
        from hullo.population.kernels.input_conv import convolve as convolve_input

        source, own = x.source, flat_parameter(bias, context)
        own = filters.new_zeros(len(filters)) if own is None else own
        same = around[0] > 0
        return convolve_input(source.images, source.index, source.moves, filters, own, same=same, dtype=dtype)
    widest = max(weight.shape[:2])
    if widest not in OWN_WIDTHS or dtype.itemsize != 2 or context.members == 1:
        return None
    from hullo.population.kernels.convolution import convolve as convolve_members

    images = x.at(1, context.members).flatten(1, 2).to(dtype)
    return convolve_members(
        images, filters, flat_parameter(bias, context), members=context.members, stride=stride, padding=around
    )


def _square(size: Any) -> int | None:
    """Return the one number of a size that is the same in all dimensions; None for another size."""
    if isinstance(size, int):
        return size
    return int(size[0]) if not isinstance(size, str) and len(set(size)) == 1 else None


@rule(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def convolve_transposed(
    context: Context,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Value:
    dims = len(weight.shape)
    function = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[dims]
    unbatched = len(x.shape) < dims
    images = (_with_batch(x) if unbatched else x).at(1, context.members).flatten(1, 2)
    filters = weight.at(0, context.members).flatten(0, 1)
    groups *= context.members
    y = function(images, filters, flat_parameter(bias, context), stride, padding, output_padding, groups, dilation)
    return split_channels(y, context, unbatched)


def _with_batch(x: Value) -> Value:
    return Value(x.tensor.unsqueeze(0), None if x.dim is None else x.dim + 1)


def flat_parameter(parameter: Value | None, context: Context) -> Tensor | None:
    """Return a parameter of each channel of all members in turn."""
    return None if parameter is None else parameter.at(0, context.members).flatten()


def split_channels(y: Tensor, context: Context, unbatched: bool = False) -> Value:
    """Return (B, K*C, ...) as the value (B, K, C, ...)."""
    split: Tensor = torch.unflatten(y, 1, (context.members, -1))
    return Value(split.squeeze(0), 0) if unbatched else Value(split, 1)


# Linear layers: K of them are one batched product.


@rule(aten.linear.default)
def linear(context: Context, x: Value, weight: Value, bias: Value | None = None) -> Any:
    members, weights = context.members, weight.at(0, context.members)
    if len(weight.shape) != 2:
        return NotImplemented
    if x.dim is None:  # all members' outputs in one product
        y = torch.unflatten(F.linear(x.tensor, weights.flatten(0, 1), flat_parameter(bias, context)), -1, (members, -1))
        return Value(y, y.dim() - 2)
    features = x.at(0, members)
    rows = features.reshape(members, -1, features.shape[-1])
    if bias is None:
        y = torch.bmm(rows, weights.mT)
    else:
        y = torch.baddbmm(bias.at(0, members).unsqueeze(1), rows, weights.mT)
    return Value(y.reshape(*features.shape[:-1], -1), 0)


@rule(aten.embedding.default)
def embed(
    context: Context, weight: Value, indices: Value, padding: int = -1, scale: bool = False, sparse: bool = False
) -> Value:
    """Look up one table that holds those of all members, one after the other."""
    tables = weight.at(0, context.members)
    size = tables.shape[1]
    numbers = indices.at(0, context.members)
    first = torch.arange(0, context.members * size, size, device=numbers.device)
    at = numbers + first.view(-1, *[1] * (numbers.dim() - 1))
    found = F.embedding(at, tables.flatten(0, 1))
    if padding >= 0:  # its row has no gradient
        found = torch.where((numbers == padding).unsqueeze(-1), found.detach(), found)
    return Value(found, 0)


# Normalizations


@rule(aten.batch_norm.default)
def batch_norm(
    context: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool = True,
) -> Value:
    """Normalize the channels of all members; running statistics are updated in place."""
    y = F.batch_norm(
        x.at(1, context.members).flatten(1, 2),
        None if mean is None else mean.tensor.view(-1),
        None if variance is None else variance.tensor.view(-1),
        flat_parameter(weight, context),
        flat_parameter(bias, context),
        training,
        momentum,
        eps,
    )
    return split_channels(y, context)


@rule(aten.instance_norm.default)
def instance_norm(
    context: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn: bool = True,
) -> Value:
    y = F.instance_norm(
        x.at(1, context.members).flatten(1, 2),
        None if mean is None else mean.tensor.view(-1),
        None if variance is None else variance.tensor.view(-1),
        flat_parameter(weight, context),
        flat_parameter(bias, context),
        use_input_stats,
        momentum,
        eps,
    )
    return split_channels(y, context)


@rule(aten.group_norm.default)
def group_norm(
    context: Context,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Value:
    images = x.at(1, context.members).flatten(1, 2)
    y = F.group_norm(
        images, context.members * groups, flat_parameter(weight, context), flat_parameter(bias, context), eps
    )
    return split_channels(y, context)


@rule(aten.layer_norm.default)
def layer_norm(
    context: Context,
    x: Value,
    shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Value:
    y = F.layer_norm(x.at(0, context.members), shape, eps=eps)
    return Value(_scale_and_shift(y, weight, bias, context), 0)


@rule(aten.rms_norm.default)
def rms_norm(
    context: Context, x: Value, shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    y = F.rms_norm(x.at(0, context.members), shape, eps=eps)
    return Value(_scale_and_shift(y, weight, None, context), 0)


def _scale_and_shift(y: Tensor, weight: Value | None, bias: Value | None, context: Context) -> Tensor:
    """Apply each member's weight and bias, of y's last dimensions, to y of shape (K, ...)."""
    for parameter, function in ((weight, torch.mul), (bias, torch.add)):
        if parameter is not None:
            own = parameter.at(0, context.members)
            y = function(y, own.view(len(own), *[1] * (y.dim() - own.dim()), *own.shape[1:]))
    return y


@rule(torch.ops.hullo.local_response_norm.default)
def local_response_norm(context: Context, x: Value, size: int, alpha: float, beta: float, k: float) -> Value:
    """Normalize by the channels around each channel of a member; values are computed in float32 at least."""
    images = x.at(1, context.members)
    channels = images.shape[2]
    if kernels.serve(images) and size % 2 and k == 1 and images.dim() == 5:
        from hullo.population.kernels.lrn import LocalResponseNorm

        wide = images.flatten(1, 2)
        fused: Tensor = LocalResponseNorm.apply(wide, channels, size, alpha, beta)  # type: ignore[no-untyped-call]
        return split_channels(fused, context)
    each = images.to(compute_dtype(images)).flatten(0, 1)
    return Value(F.local_response_norm(each, size, alpha, beta, k).view(images.shape).to(images.dtype), 1)


# Attention


@rule(aten.scaled_dot_product_attention.default)
def attend(
    context: Context,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Attend with the members as a part of the batch."""
    members = context.members
    q, k, v = (item.at(0, members) for item in (query, key, value))
    own = None if mask is None else _like_scores(mask, q, members)
    if dropout == 0:
        if own is not None:
            own = own.expand(*q.shape[:-2], *own.shape[-2:])
        flat = (item if item is None or item.dim() <= 4 else item.flatten(0, -4) for item in (q, k, v, own))
        y = aten.scaled_dot_product_attention(*flat, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        return Value(y.view(*q.shape[:-1], v.shape[-1]), 0)
    if enable_gqa:
        k, v = (item.repeat_interleave(q.shape[-3] // item.shape[-3], -3) for item in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if own is not None:
        scores = scores.masked_fill(~own, -torch.inf) if own.dtype == torch.bool else scores + own
    weights = drop(context, Value(scores.softmax(-1), 0), dropout, True)
    return Value(weights.tensor @ v, 0)


def _like_scores(mask: Value, q: Tensor, members: int) -> Tensor:
    """Return a mask as (K, ..., T, S), with as many dimensions as the queries."""
    own = mask.at(0, members)
    return own.view(len(own), *[1] * (q.dim() - own.dim()), *own.shape[1:])


# Dropout: masks are functions of a member's seed and step, so they are the same alone and in a population.


@rule(aten.dropout.default)
def drop(context: Context, x: Value, rate: float | Tensor, training: bool) -> Value:
    """Zero entries at random and scale up the others, by `rate`, one number or one per member."""
    if not training or (not isinstance(rate, Tensor) and rate == 0):
        return x
    if len(x.shape) == 2 and kernels.serve(x.tensor) and not isinstance(rate, Tensor) and rate < 1:
        from hullo.population.kernels.dropout import drop as drop_features

        features = x.at(0, context.members)
        return Value(drop_features(features, context.seeds, context.steps, context.dropout, rate, context.first), 0)
    return _mask(context, x, x.shape, rate)


@rule(aten.feature_dropout.default)
def drop_channels(context: Context, x: Value, rate: float, training: bool) -> Value:
    """Zero whole channels at random."""
    if not training or rate == 0:
        return x
    return _mask(context, x, torch.Size([*x.shape[:2], *[1] * (len(x.shape) - 2)]), rate)


def _mask(context: Context, x: Value, shape: torch.Size, rate: float | Tensor) -> Value:
    """Multiply with masks over a shape: in the order of memory with channels last, for images."""
    images = len(shape) == 4
    order = [0, 2, 3, 1] if images else list(range(len(shape)))
    drawn = [shape[i] for i in order]
    kept = rng.dropout_mask(context.seeds, context.steps, context.dropout, drawn, rate=rate, first=context.first)
    kept = kept.permute(0, 1, 4, 2, 3) if images else kept
    dim = 0 if x.dim is None else x.dim
    y = x.at(dim, context.members)
    kept = kept.movedim(0, dim)
    if not isinstance(rate, Tensor):
        return Value(y * kept * (1 / (1 - rate) if rate < 1 else 0.0), dim)
    scale = torch.where(rate < 1, 1 / (1 - rate), 0.0).to(compute_dtype(y))
    return Value((y * kept * scale.view([-1 if i == dim else 1 for i in range(y.dim())])).to(y.dtype), dim)


@rule(aten.pad.default, aten.constant_pad_nd.default)
def pad(context: Context, x: Value, sizes: Sequence[int], mode: str | float = 0.0, value: float | None = None) -> Any:
    """Put zeros around images when something but a convolution asks for them."""
    zeros = mode in ("constant", 0) and not value
    if not zeros or len(sizes) != 4 or min(sizes) < 0 or len(x.shape) != 4 or x.dim not in (0, 1):
        return NotImplemented
    return PaddedValue(x, tuple(sizes))  # type: ignore[arg-type]


# Pooling: images of all members are channels of one image.


def _pool(operator: Any, channels: int) -> None:
    """Register a rule for an operator on images that treats each channel alone; `channels` of its dimensions follow."""

    @rule(operator)
    def pool(context: Context, x: Value, *args: Any, **kwargs: Any) -> Any:
        if x.dim is None or len(x.shape) != channels + 2:
            return NotImplemented
        y = operator(x.at(1, context.members).flatten(1, 2), *args, **kwargs)
        if isinstance(y, Tensor):
            return split_channels(y, context)
        return tuple(split_channels(item, context) for item in y)


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
    (aten.upsample_nearest2d.vec, 2),
    (aten.upsample_bilinear2d.vec, 2),
):
    _pool(_operator, _dims)
