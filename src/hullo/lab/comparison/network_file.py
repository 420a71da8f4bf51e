"""The network of a comparison from a file: my_network.py:Net."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hullo.lab.comparison.data import Data
from hullo.lab.networks import OwnNetwork
from hullo.lab.spec.activation import ActivationSpec


def open_network(source: str, data: Data) -> Callable[[], nn.Module]:
    """Return a function that builds a network of a user's file.

    It is called with those of `in_channels`, `image_size` and `num_classes` that it has arguments for; with targets of
    regression, `num_classes` is how many numbers there are.
    """
    own, example, targets = OwnNetwork.open(source), data.example, data.targets
    if example is None or targets is None:
        raise ValueError(f"{source}: the data are not pairs of inputs and targets")
    sizes = {"in_channels": example.shape[1], "image_size": _side(example), "num_classes": _outputs(data, targets)}

    def build() -> nn.Module:
        return own.build(ActivationSpec.parse("own"), example, int(torch.initial_seed()), sizes)

    build.__name__ = f"{own.path.stem}.{own.attribute}"
    return build


def _side(example: Tensor) -> int:
    """Return the side of square images; 0 for other samples."""
    return int(example.shape[-1]) if example.dim() == 4 and example.shape[-1] == example.shape[-2] else 0


def _outputs(data: Data, targets: Tensor) -> int:
    if targets.is_floating_point():
        return targets[0].numel()
    return 1 + max(int(part[1].max()) for part in (data.train, data.val, data.test))
