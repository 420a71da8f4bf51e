"""Custom operators for torch.compile: torch.ops.hullo.combine and its backward pass.

A compiled graph calls the fused kernels through these. The spec is a string, as :attr:`CombineSpec.encoded` writes it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hullo.kernels import CombineSpec, choose, load


@torch.library.custom_op("hullo::combine", mutates_args=())
def combine(x: Tensor, raw: Tensor, encoded: str, backend: str | None) -> Tensor:
    spec = CombineSpec.decode(encoded)
    return load(choose(x, spec, backend)).forward(x, raw, spec)


@torch.library.custom_op("hullo::combine_backward", mutates_args=())
def combine_backward(
    gradient: Tensor, x: Tensor, raw: Tensor, encoded: str, backend: str | None
) -> tuple[Tensor, Tensor]:
    spec = CombineSpec.decode(encoded)
    return load(choose(x, spec, backend)).backward(gradient, x, raw, spec)


@combine.register_fake
def _(x: Tensor, raw: Tensor, encoded: str, backend: str | None) -> Tensor:
    return torch.empty_like(x)


@combine_backward.register_fake
def _(gradient: Tensor, x: Tensor, raw: Tensor, encoded: str, backend: str | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(raw)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, raw, *ctx.rest = inputs
    ctx.save_for_backward(x, raw)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *combine_backward(gradient, *ctx.saved_tensors, *ctx.rest), None, None


combine.register_autograd(_backward, setup_context=_setup_context)
