"""Mark backward passes that cannot be differentiated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a second derivative raise an error.

    PyTorch's decorator of this name raises it in `backward` only: for `torch.autograd.grad`, its node lies on no path
    to the inputs, so that terms would be missing without a word.
    """

    @functools.wraps(backward)
    def compute(ctx: Any, *gradients: Any) -> Any:
        with torch.no_grad():
            results = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return results
        held = (*gradients, *ctx.saved_tensors)
        sources = [item for item in held if isinstance(item, Tensor) and item.requires_grad]
        return tuple(_Refuse.apply(item, *sources) if isinstance(item, Tensor) else item for item in results)  # type: ignore[no-untyped-call]

    return compute


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor, *sources: Tensor) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "fused kernels of a population have no second derivatives; compute in float64 or on a CPU, where plain "
            "operations have them"
        )
