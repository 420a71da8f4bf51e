"""Stochastic gradient descent as in Caffe on a GPU: one launch moves every parameter of a population."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
from __future__ import annotations

from collections.abc import Sequence

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from hullo.lab.kernels import flat


def move(
    layout: flat.Layout,
    values: Tensor,
    velocities: Tensor,
    gradients: Sequence[Tensor],
    *,
    rates: Tensor,
    scales: Tensor,
    decays: Tensor,
    momentum: float,
    copies: Tensor | None = None,
) -> None:
    """One update of all parameters, in place: for a parameter i of a member k

        v <- momentum v + scales[i, k] * rates[k] * (g + decays[i] w)
        w <- w - v

    with v in `velocities` and `decays` of shape (parameters,); the rest is as in :func:`hullo.lab.kernels.flat.move`.
    """
    settings = momentum, decays
    flat.move(
        layout, values, velocities, gradients, rates=rates, scales=scales, rule=_rule, settings=settings, copies=copies
    )


@triton.jit
def _rule(value, velocity, gradient, rate, segment, settings):
    """In the order of operations of the plain form."""
    momentum, decays = settings
    velocity = tl.fma(gradient, rate, velocity * momentum)
    velocity = tl.fma(value * rate, tl.load(decays + segment), velocity)
    return value - velocity, velocity
