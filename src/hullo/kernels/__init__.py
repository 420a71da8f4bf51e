"""The arithmetic behind `combine`, once for each kind of device.

A kernel is a module with two functions over a :class:`Plan`:

    forward(x, raw, plan) -> y
    backward(gradient, x, raw, plan) -> (gradient for x, gradient for raw)

`raw` holds raw numbers, one row a group or one for all; the plan's way turns them into coefficients. Kernels know bases
and tensors, not modules. :mod:`~hullo.kernels.reference` is the plain form and the oracle,
:mod:`~hullo.kernels.cpu` works in blocks that stay in the cache.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from hullo.kernels import cpu, reference
from hullo.kernels.plan import Plan

__all__ = ["Kernel", "Plan", "choose", "reference"]

BACKENDS = ("reference", "cpu")


class Kernel(Protocol):
    def forward(self, x: Tensor, raw: Tensor, plan: Plan) -> Tensor: ...

    def backward(self, gradient: Tensor, x: Tensor, raw: Tensor, plan: Plan) -> tuple[Tensor, Tensor]: ...


def choose(x: Tensor, backend: str | None) -> Kernel:
    """The kernel for x: the named one, or the fastest that can serve."""
    on_cpu = x.device.type == "cpu"
    if backend is None:
        return cpu if on_cpu else reference
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; there are {', '.join(map(repr, BACKENDS))}, and None to choose")
    if backend == "cpu" and not on_cpu:
        raise ValueError(f"backend 'cpu' serves CPU tensors, and x is on {x.device}; use backend='reference' or None")
    return cpu if backend == "cpu" else reference
