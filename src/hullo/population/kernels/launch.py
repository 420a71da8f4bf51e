"""Launch kernels one after the other, each while the previous one still runs."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

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
    with torch.cuda.device_of(arguments[0]):
        kernel[(programs,)](*arguments, **constants, EARLY=early, **options)


@triton.jit
def wait_for_previous(EARLY: tl.constexpr):
    """Wait for the end of the previous kernel; from here on the next one may be launched."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
