"""Stochastic gradient descent as in Caffe, as a rule by which one launch moves every parameter of a population."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.lab.kernels.flat import Rule


def rule(decays: Tensor, *, momentum: float) -> Rule:
    """For numbers w of a parameter i with gradient g, at a rate, and their velocities v

        v <- momentum v + rate * (g + decays[i] w)
        w <- w - v

    with `decays` of shape (parameters,).
    """
    return Rule(_move_numbers, (momentum, decays))


@triton.jit
def _move_numbers(value, velocity, gradient, rate, segment, settings):
    """In the order of operations of the plain form."""
    momentum, decays = settings
    velocity = tl.fma(gradient, rate, velocity * momentum)
    velocity = tl.fma(value * rate, tl.load(decays + segment), velocity)
    return value - velocity, velocity
