"""Leave the gradient of a layer's output to that layer.

Where two convolutions read the output of a batch norm, as at the start of a stage of a residual network, one kernel can
compute the sum of their gradients. In the backward pass each convolution hands its part over and returns no gradient;
automatic differentiation calls the batch norm after all users of its output, so that it has all parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hullo._compat import backward_pass_id

if TYPE_CHECKING:
    from hullo.population.kernels.convolution import InputGradient


class LateGradients:
    """Hold the parts of a tensor's gradient that its users left to the layer that made it, in one backward pass."""

    def __init__(self) -> None:
        self._pass = -1
        self._parts: list[InputGradient] = []

    def put(self, part: InputGradient) -> None:
        """Leave a part of the gradient."""
        current = backward_pass_id()
        if self._pass != current:  # an earlier pass may have failed before these were taken
            self._pass, self._parts = current, []
        self._parts.append(part)

    def take(self) -> list[InputGradient]:
        """Return the parts that this backward pass left, and hold none."""
        parts, self._parts = self._parts, []
        return parts if self._pass == backward_pass_id() else []
