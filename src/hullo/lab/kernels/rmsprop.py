"""RMSprop as a rule by which one launch moves every parameter of a population."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.lab.kernels.flat import Rule


def rule(updates: Tensor, *, decay: float, rho: float, epsilon: float) -> Rule:
    """For numbers w with gradient g, at a rate, and their mean squares v

        v <- rho v + (1 - rho) g^2
        w <- w - rate / (1 + decay * updates) * g / (sqrt(v) + epsilon)

    where `updates`, a number on the device, counts those before.
    """
    return Rule(_move_numbers, (updates, decay, rho, 1 - rho, epsilon))


@triton.jit
def _move_numbers(value, square, gradient, rate, segment, settings):
    """In the order of operations of the plain form, each rounded as it is there."""
    updates, decay, rho, rest, epsilon = settings
    rate = tl.div_rn(rate, 1.0 + decay * tl.load(updates).to(tl.float32))
    square = tl.fma(rest * gradient, gradient, square * rho)
    value = tl.fma(-tl.div_rn(gradient, tl.sqrt_rn(square) + epsilon), rate, value)
    return value, square
