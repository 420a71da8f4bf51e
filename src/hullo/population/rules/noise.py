"""Random numbers inside a network: noise, stochastic depth, alpha dropout, RReLU.

Like masks of dropout, they are functions of a member's seed and step, so they are the same alone and in a population.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hullo.kernels.spec import compute_dtype
from hullo.population import rng
from hullo.population.rules import Context, rule
from hullo.population.values import Value

aten = torch.ops.aten
_SELU_LIMIT = 1.7580993408473766  # minus SELU's limit at minus infinity


def _register(operator: Any, draw: Callable[..., Tensor]) -> None:
    """Register a rule for an operator that draws numbers of a size, or in place of a tensor."""

    @rule(operator)
    def call(context: Context, given: Any, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
        if isinstance(given, Value):
            return Value(draw(context, given.shape, dtype or given.dtype, *args), 0)
        return Value(draw(context, given, dtype), 0)


def _uniform(
    context: Context, shape: Sequence[int], dtype: torch.dtype | None, low: float = 0.0, high: float = 1.0
) -> Tensor:
    """Return numbers between two bounds, neither of which occurs, of shape (members, *shape)."""
    keys = rng.open_streams(context.seeds, rng.Purpose.DROPOUT + context.number, context.steps)
    numbers = rng.draw_uniform(keys, shape, dtype or torch.get_default_dtype(), context.first)
    return numbers if (low, high) == (0.0, 1.0) else numbers * (high - low) + low


def _normal(
    context: Context, shape: Sequence[int], dtype: torch.dtype | None, mean: float = 0.0, std: float = 1.0
) -> Tensor:
    """Return numbers of a normal distribution, of shape (members, *shape)."""
    dtype = dtype or torch.get_default_dtype()
    uniform = _uniform(context, shape, torch.promote_types(dtype, torch.float32))
    numbers = (torch.erfinv(2 * uniform - 1) * math.sqrt(2)).to(dtype)
    return numbers if (mean, std) == (0.0, 1.0) else numbers * std + mean


def _exponential(context: Context, shape: Sequence[int], dtype: torch.dtype, rate: float = 1.0) -> Tensor:
    """Return numbers of the exponential distribution, none of which is zero."""
    return (_uniform(context, shape, torch.promote_types(dtype, torch.float32)).log() / -rate).to(dtype)


def _bernoulli(context: Context, shape: Sequence[int], dtype: torch.dtype, p: float | Tensor) -> Tensor:
    """Return ones with probability `p`, else zeros, as stochastic depth draws one number per sample."""
    p = p.view(-1, *[1] * len(shape)) if isinstance(p, Tensor) else p
    return (_uniform(context, shape, torch.float64) < p).to(dtype)


for _operator, _draw in (
    (aten.rand.default, _uniform),
    (aten.rand.generator, _uniform),
    (aten.rand_like.default, _uniform),
    (aten.uniform.default, _uniform),
    (aten.randn.default, _normal),
    (aten.randn.generator, _normal),
    (aten.randn_like.default, _normal),
    (aten.normal_functional.default, _normal),
    (aten.exponential.default, _exponential),
    (aten.bernoulli.p, _bernoulli),
):
    _register(_operator, _draw)


@rule(aten.normal.float_float)
def draw_normal(
    context: Context, mean: float, std: float, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> Value:
    """Return numbers of a normal distribution of a size."""
    return Value(_normal(context, size, dtype, mean, std), 0)


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
