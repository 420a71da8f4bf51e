"""Launch a kernel while the previous one still runs, and refuse derivatives of backward passes."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from hullo.kernels import device_math
from hullo.population.kernels.side_stream import consume_join_flag


def launch(kernel: Any, programs: int, *arguments: Any, follows: bool, **constants: Any) -> None:
    """Launch a kernel on tensors and numbers.

    A kernel that directly `follows` another of these is launched while that one still runs, and waits for its end.
    This hides most of the launch latency.
    """
    device = arguments[0].device
    early = device_math.HARDWARE.value and torch.cuda.get_device_capability(device) >= (9, 0)
    options = {"launch_pdl": True} if not consume_join_flag() and early and follows else {}
    kernel[(programs,)](*arguments, **constants, EARLY=early, **options)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse to compute gradients that are differentiated, too.

    PyTorch's decorator of this name raises an error in `backward` only: for `torch.autograd.grad`, its node lies on no
    path to the inputs, so that terms would be missing without a word.
    """

    @functools.wraps(backward)
    def compute(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "fused kernels of a population have no second derivatives; compute in float64 or on a CPU, where plain "
                "operations have them, or without create_graph=True"
            )
        return backward(ctx, *gradients)

    return compute


@triton.jit
def wait_for_previous(EARLY: tl.constexpr):
    """Wait for the end of the previous kernel; from here on the next one may be launched."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
