"""Custom operators for torch.compile: torch.ops.hullo.combine and its backward pass.

A compiled graph calls the fused kernels through these. Arguments that are not tensors are strings and numbers:
``"identity;relu;tanh"``, ``"recentred"``, the channel dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hullo.bases import get_base
from hullo.kernels import CombineSpec, choose, load
from hullo.parametrizations import get_parametrization


@torch.library.custom_op("hullo::combine", mutates_args=())
def combine(x: Tensor, raw: Tensor, bases: str, parametrization: str, channel_dim: int, backend: str | None) -> Tensor:
    combination = spec(bases, parametrization, channel_dim)
    return load(choose(x, combination, backend)).forward(x, raw, combination)


@torch.library.custom_op("hullo::combine_backward", mutates_args=())
def combine_backward(
    gradient: Tensor, x: Tensor, raw: Tensor, bases: str, parametrization: str, channel_dim: int, backend: str | None
) -> tuple[Tensor, Tensor]:
    combination = spec(bases, parametrization, channel_dim)
    return load(choose(x, combination, backend)).backward(gradient, x, raw, combination)


@combine.register_fake
def _(x: Tensor, raw: Tensor, bases: str, parametrization: str, channel_dim: int, backend: str | None) -> Tensor:
    return torch.empty_like(x)


@combine_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, raw: Tensor, bases: str, parametrization: str, channel_dim: int, backend: str | None
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(raw)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, raw, *ctx.rest = inputs
    ctx.save_for_backward(x, raw)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *combine_backward(gradient, *ctx.saved_tensors, *ctx.rest), None, None, None, None


combine.register_autograd(_backward, setup_context=_setup_context)


def spec(bases: str, parametrization: str, channel_dim: int) -> CombineSpec:
    """Return the spec of an operator's arguments."""
    return CombineSpec(
        tuple(get_base(name) for name in bases.split(";")), get_parametrization(parametrization), channel_dim
    )
