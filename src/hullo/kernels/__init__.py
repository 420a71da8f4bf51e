"""Kernels of `combine`, one per kind of device.

A kernel is a module with two functions over a :class:`CombineSpec`:

    forward(x, raw, spec) -> y
    backward(gradient, x, raw, spec) -> (gradient for x, gradient for raw)

`raw` holds raw parameters, one row per group or one row for all; the parametrization of the spec maps them to
coefficients. Kernels depend on bases and tensors, not on modules. :mod:`~hullo.kernels.reference` is plain PyTorch and
the oracle of the tests, :mod:`~hullo.kernels.cpu` works in blocks that stay in the cache,
:mod:`~hullo.kernels.triton` is one fused kernel on a GPU.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Protocol

import torch
from torch import Tensor

from hullo.kernels import cpu, reference
from hullo.kernels.spec import CombineSpec

__all__ = ["BACKENDS", "HAS_TRITON", "CombineSpec", "choose", "load", "reference"]

BACKENDS = ("reference", "cpu", "triton")

HAS_TRITON = importlib.util.find_spec("triton") is not None


class Kernel(Protocol):
    def forward(self, x: Tensor, raw: Tensor, spec: CombineSpec) -> Tensor: ...

    def backward(self, gradient: Tensor, x: Tensor, raw: Tensor, spec: CombineSpec) -> tuple[Tensor, Tensor]: ...


@functools.cache
def load(name: str) -> Kernel:
    """Return the kernel of a name; Triton is imported on first use."""
    if name == "triton":
        from hullo.kernels import triton

        return triton
    return cpu if name == "cpu" else reference


def choose(x: Tensor, spec: CombineSpec, backend: str | None) -> str:
    """Return the name of the kernel for x: `backend`, or the fastest that supports x."""
    if backend is None:
        if x.is_cpu:
            return "cpu"
        return "triton" if x.is_cuda and _is_fused(x, spec) else "reference"
    if backend not in BACKENDS:
        raise ValueError(
            f"unknown backend {backend!r}; valid are {', '.join(map(repr, BACKENDS))}, and None for the fastest"
        )
    if (backend == "cpu" and x.device.type != "cpu") or (backend == "triton" and not _is_fused(x, spec)):
        names = ", ".join(item.name for item in spec.bases)
        raise ValueError(
            f"backend {backend!r} does not support {x.dtype} on {x.device} with {names}: 'cpu' takes CPU tensors, and "
            "'triton', where Triton is installed, CUDA tensors in float32, float16 and bfloat16, with bases that have "
            "formulas; use backend='reference', or None for the fastest"
        )
    return backend


def _is_fused(x: Tensor, spec: CombineSpec) -> bool:
    """Return whether the fused kernels support x and the bases; on a CPU, that is in Triton's interpreter."""
    is_reached = HAS_TRITON and (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")
    return is_reached and x.dtype in (torch.float32, torch.float16, torch.bfloat16) and spec.has_formulas
