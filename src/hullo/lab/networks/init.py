"""Initialization of the laboratory's networks."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

MakeActivation = Callable[[int], nn.Module]
"""Makes an activation, given its number of channels; 1 after a linear layer."""


def init_as_keras(network: nn.Module) -> None:
    """Initialize as Keras does: Glorot's uniform weights, |w| < sqrt(6 / (fan in + fan out)), and biases of zero."""
    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
