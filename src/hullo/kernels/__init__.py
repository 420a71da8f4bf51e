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
        return "triton" if x.is_cuda and not _why_not_triton(x, spec) else "reference"
    if backend not in BACKENDS:
        raise ValueError(
            f"unknown backend {backend!r}; valid are {', '.join(map(repr, BACKENDS))}, and None for the fastest"
        )
    reason = ""
    if backend == "cpu" and x.device.type != "cpu":
        reason = f"it supports CPU tensors, and x is on {x.device}"
    if backend == "triton":
        reason = _why_not_triton(x, spec)
    if reason:
        raise ValueError(
            f"backend {backend!r} does not support x: {reason}; use backend='reference', or None for the fastest"
        )
    return backend


def _why_not_triton(x: Tensor, spec: CombineSpec) -> str:
    """Return why the fused kernel does not support x, or an empty string."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it supports CUDA tensors, and x is on {x.device}"
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"it supports float32, float16 and bfloat16, and x has dtype {x.dtype}"
    if spec.has_formulas:
        return ""
    name = next(base.name for base in spec.bases if base.formula is None)
    return f"base function {name!r} has no formula, only a Python function"
