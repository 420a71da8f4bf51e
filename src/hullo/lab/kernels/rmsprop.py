"""RMSprop on a GPU: one launch moves every parameter of a population."""

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
    squares: Tensor,
    gradients: Sequence[Tensor],
    *,
    rates: Tensor,
    scales: Tensor,
    updates: Tensor,
    decay: float,
    rho: float,
    epsilon: float,
    copies: Tensor | None = None,
) -> None:
    """One update of all parameters, in place: for a parameter i of a member k

        v <- rho v + (1 - rho) g^2
        w <- w - scales[i, k] * rates[k] / (1 + decay * updates) * g / (sqrt(v) + epsilon)

    with v in `squares` and `updates`, a number on the device, of those before; the rest is as in
    :func:`hullo.lab.kernels.flat.move`.
    """
    settings = updates, decay, rho, 1 - rho, epsilon
    flat.move(
        layout, values, squares, gradients, rates=rates, scales=scales, rule=_rule, settings=settings, copies=copies
    )


@triton.jit
def _rule(value, square, gradient, rate, segment, settings):
    """In the order of operations of the plain form, each rounded as it is there."""
    updates, decay, rho, rest, epsilon = settings
    rate = tl.div_rn(rate, 1.0 + decay * tl.load(updates).to(tl.float32))
    square = tl.fma(rest * gradient, gradient, square * rho)
    value = tl.fma(-tl.div_rn(gradient, tl.sqrt_rn(square) + epsilon), rate, value)
    return value, square
