"""Random numbers inside a network: noise, stochastic depth, alpha dropout, RReLU.

Like masks of dropout, they are functions of a member's seed and step, so they are the same alone and in a population.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hullo.kernels.spec import compute_dtype
from hullo.population import rng
from hullo.population.rules import Context, rule
from hullo.population.values import Value

aten = torch.ops.aten
_SELU_LIMIT = 1.7580993408473766  # minus SELU's limit at minus infinity


def _uniform(context: Context, shape: Sequence[int], dtype: torch.dtype | None) -> Tensor:
    """Return numbers between 0 and 1, neither of which occurs, of shape (members, *shape)."""
    keys = rng.open_streams(context.seeds, rng.Purpose.DROPOUT + context.number, context.steps)
    return rng.draw_uniform(keys, shape, dtype or torch.get_default_dtype(), context.first)


def _normal(context: Context, shape: Sequence[int], dtype: torch.dtype | None) -> Tensor:
    """Return numbers of the standard normal distribution, of shape (members, *shape)."""
    dtype = dtype or torch.get_default_dtype()
    uniform = _uniform(context, shape, torch.promote_types(dtype, torch.float32))
    return (torch.erfinv(2 * uniform - 1) * math.sqrt(2)).to(dtype)


@rule(aten.rand.default, aten.rand.generator)
def draw_uniform(context: Context, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """Return uniform numbers of a size."""
    return Value(_uniform(context, size, dtype), 0)


@rule(aten.rand_like.default)
def draw_uniform_like(context: Context, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """Return uniform numbers of the size of a tensor."""
    return Value(_uniform(context, x.shape, dtype or x.dtype), 0)


@rule(aten.uniform.default)
def draw_between(context: Context, x: Value, low: float = 0.0, high: float = 1.0, **_: Any) -> Value:
    """Return uniform numbers between two bounds."""
    return Value(_uniform(context, x.shape, x.dtype) * (high - low) + low, 0)


@rule(aten.randn.default, aten.randn.generator)
def draw_normal(context: Context, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """Return normal numbers of a size."""
    return Value(_normal(context, size, dtype), 0)


@rule(aten.randn_like.default)
def draw_normal_like(context: Context, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """Return normal numbers of the size of a tensor."""
    return Value(_normal(context, x.shape, dtype or x.dtype), 0)


@rule(aten.normal.float_float)
def draw_normal_of_size(
    context: Context, mean: float, std: float, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> Value:
    """Return numbers of a normal distribution of a size."""
    return Value(_normal(context, size, dtype) * std + mean, 0)


@rule(aten.normal_functional.default)
def draw_normal_into(context: Context, x: Value, mean: float = 0.0, std: float = 1.0, **_: Any) -> Value:
    """Return numbers of a normal distribution, in place of a tensor."""
    return Value(_normal(context, x.shape, x.dtype) * std + mean, 0)


@rule(aten.exponential.default)
def draw_exponential(context: Context, x: Value, rate: float = 1.0, **_: Any) -> Value:
    """Return numbers of the exponential distribution, none of which is zero."""
    return Value((_uniform(context, x.shape, torch.promote_types(x.dtype, torch.float32)).log() / -rate).to(x.dtype), 0)


@rule(aten.bernoulli.p)
def draw_ones(context: Context, x: Value, p: float | Tensor, **_: Any) -> Value:
    """Return ones with probability `p`, else zeros, as stochastic depth draws one number per sample."""
    p = p.view(-1, *[1] * len(x.shape)) if isinstance(p, Tensor) else p
    return Value((_uniform(context, x.shape, torch.float64) < p).to(x.dtype), 0)


@rule(aten.bernoulli.default)
def draw_ones_by_probability(context: Context, x: Value, **_: Any) -> Value:
    """Return ones with the probabilities in a tensor, else zeros."""
    chosen = _uniform(context, x.shape, torch.promote_types(x.dtype, torch.float32)) < x.at(0, context.members)
    return Value(chosen.to(x.dtype), 0)


@rule(aten.alpha_dropout.default)
def drop_alpha(context: Context, x: Value, rate: float | Tensor, training: bool) -> Value:
    """Set entries to SELU's limit at random, and keep mean and variance."""
    return _drop_to_limit(context, x, x.shape, rate, training)


@rule(aten.feature_alpha_dropout.default)
def drop_alpha_channels(context: Context, x: Value, rate: float | Tensor, training: bool) -> Value:
    """Set whole channels to SELU's limit at random, and keep mean and variance."""
    return _drop_to_limit(context, x, [*x.shape[:2], *[1] * (len(x.shape) - 2)], rate, training)


def _drop_to_limit(context: Context, x: Value, shape: Sequence[int], rate: float | Tensor, training: bool) -> Value:
    if not training or rng.is_zero(rate):
        return x
    y = x.at(0, context.members)
    kept = rng.dropout_mask(context.seeds, context.steps, context.number, shape, rate=rate, first=context.first)
    kept = kept.to(compute_dtype(y))
    if isinstance(rate, Tensor):
        rate = rate.to(kept.dtype).view(-1, *[1] * len(shape))
        scale: float | Tensor = torch.where(rate < 1, ((_SELU_LIMIT**2 * rate + 1) * (1 - rate)) ** -0.5, 0.0)
    else:
        scale = ((_SELU_LIMIT**2 * rate + 1) * (1 - rate)) ** -0.5 if rate < 1 else 0.0
    return Value((y * kept * scale + (kept - (1 - rate)) * (_SELU_LIMIT * scale)).to(y.dtype), 0)


@rule(aten.rrelu.default)
def rectify_at_random(
    context: Context, x: Value, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, *_: Any
) -> Value:
    """Multiply negative entries with random slopes in training, with the mean slope in evaluation."""
    y = x.at(0, context.members)
    slope = _uniform(context, x.shape, y.dtype) * (upper - lower) + lower if training else (lower + upper) / 2
    return Value(torch.where(y > 0, y, y * slope), 0)
