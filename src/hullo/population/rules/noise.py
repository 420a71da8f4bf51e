"""Random numbers inside a network: noise and stochastic depth.

Like masks of dropout, they are functions of a member's seed and step, so they are the same alone and in a population.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hullo.population import rng
from hullo.population.rules import Context, rule
from hullo.population.values import Value

aten = torch.ops.aten


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


@rule(aten.bernoulli.default)
def draw_ones_by_probability(context: Context, x: Value, **_: Any) -> Value:
    """Return ones with the probabilities in a tensor, else zeros."""
    chosen = _uniform(context, x.shape, torch.promote_types(x.dtype, torch.float32)) < x.at(0, context.members)
    return Value(chosen.to(x.dtype), 0)
