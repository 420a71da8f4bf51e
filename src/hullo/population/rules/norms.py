"""Normalizations of a population."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hullo.bases import get_base
from hullo.kernels.spec import compute_dtype
from hullo.population import kernels
from hullo.population.rules import Context, rule
from hullo.population.rules.convolutions import flat_parameter, side_by_side, split_channels, split_images
from hullo.population.trace import graph  # noqa: F401  (it defines operators)
from hullo.population.values import Value

aten = torch.ops.aten


@rule(aten.batch_norm.default)
def batch_norm(
    context: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    own_statistics: bool,
    momentum: float,
    eps: float,
    cudnn: bool = True,
) -> Value:
    stacked = _normalize_stacked(context, x, (mean, variance, weight, bias), own_statistics, momentum, eps)
    if stacked is not None:
        return stacked
    images = side_by_side(x, context)
    shape = images.shape
    if images.device.type == "cpu" and images.dim() == 4 and len(images) == 1:
        images = images.flatten(2)  # where PyTorch's backward pass confuses orders in memory
    flat_mean, flat_variance = flat_parameter(mean, context), flat_parameter(variance, context)
    scale, shift = flat_parameter(weight, context), flat_parameter(bias, context)
    y = F.batch_norm(images, flat_mean, flat_variance, scale, shift, own_statistics, momentum, eps)
    if own_statistics:
        _write_back(mean, flat_mean, context)
        _write_back(variance, flat_variance, context)
    return split_channels(y.view(shape), context)


def _normalize_stacked(
    context: Context,
    x: Value,
    parameters: Sequence[Value | None],
    own_statistics: bool,
    momentum: float,
    eps: float,
) -> Value | None:
    """Normalize stacked images as they are in memory; None for what kernels do not take."""
    given = [item.at(0, context.members) for item in parameters if item is not None]
    values = math.prod(x.shape) // max(1, x.shape[1])
    if own_statistics and not all(item.is_contiguous() for item in given):  # running ones are updated in place
        return None
    if len(given) < len(parameters) or not (x.is_stacked and kernels.support(x.tensor)) or values < 1 + own_statistics:
        return None
    from hullo.population.kernels.bn_act import normalize_combine

    mean, variance, scale, shift = (item.flatten() for item in given)
    y, _ = normalize_combine(
        x.tensor,
        mean,
        variance,
        scale,
        shift,
        torch.ones(1, device=x.device),
        (get_base("identity"),),
        own_statistics,
        momentum=momentum,
        eps=eps,
    )
    return split_images(y, context)


def _write_back(statistics: Value | None, updated: Tensor | None, context: Context) -> None:
    """Write updated statistics to where they were copied from, unless they are a view, or shared and not read again."""
    if statistics is None or updated is None or statistics.dim is None:
        return
    if statistics.dim != 0 or not statistics.tensor.is_contiguous():  # otherwise they were updated themselves
        with torch.no_grad():
            statistics.at(0, context.members).copy_(updated.view(context.members, -1))


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
    images = side_by_side(x, context)
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
    if kernels.support(images) and size % 2 and (k, beta) == (1, 0.75) and images.dim() == 5:
        from hullo.population.kernels.lrn import LocalResponseNorm

        wide = images.flatten(1, 2)
        fused: Tensor = LocalResponseNorm.apply(wide, channels, size, alpha)  # type: ignore[no-untyped-call]
        return split_channels(fused, context)
    each = images.to(compute_dtype(images)).flatten(0, 1)
    return Value(F.local_response_norm(each, size, alpha, beta, k).view(images.shape).to(images.dtype), 1)
