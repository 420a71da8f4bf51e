"""The networks of the paper's experiments, as plain modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from hullo.lab.networks.alexnet import AlexNet
from hullo.lab.networks.kerasnet import KerasNet
from hullo.lab.networks.lenet5 import LeNet5
from hullo.lab.networks.resnet56 import ResNet
from hullo.lab.spec.activation import ActivationSpec


@dataclass(frozen=True)
class Task:
    """Describe what goes into a network and comes out: square images, classes."""

    in_channels: int
    image_size: int
    num_classes: int


@dataclass(frozen=True)
class Entry:
    """Describe a network: what makes it, and the least pixels on each side of an image."""

    make: Callable[..., nn.Module]
    smallest: int = 1


NETWORKS = {
    "lenet5": Entry(LeNet5, 16),
    "kerasnet": Entry(KerasNet, 10),
    "resnet56": Entry(ResNet),
    "alexnet": Entry(AlexNet, 39),
}


def build(
    name: str,
    *,
    activation: str | ActivationSpec,
    in_channels: int = 3,
    image_size: int = 32,
    num_classes: int = 10,
    seed: int = 0,
) -> nn.Module:
    """Make a network of the paper, a plain module, initialized from a seed.

    Args:
        name: "lenet5", "kerasnet", "resnet56" or "alexnet".
        activation: a row such as ``relu`` or ``convex(identity,relu)``.
        in_channels: channels of an image; the default is that of CIFAR-10, as are the next two.
        image_size: pixels on each side of an image.
        num_classes: how many classes there are.
        seed: of the initial weights; the global generator stays as it is.

    Example:
        >>> import torch
        >>> from hullo.lab import networks
        >>> network = networks.build("lenet5", activation="affine(identity,relu)")
        >>> sum(parameter.numel() for parameter in network.parameters())
        657086
        >>> network(torch.rand(5, 3, 32, 32)).shape
        torch.Size([5, 10])
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; there are {', '.join(NETWORKS)}")
    sizes = {"in_channels": in_channels, "image_size": image_size, "num_classes": num_classes}
    for argument, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{argument}={value!r}: give a whole number of at least one")
    entry, row = NETWORKS[name], ActivationSpec.parse(activation)
    check_size(name, image_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return entry.make(row.module, **sizes)


def check_size(name: str, image_size: int) -> None:
    """Refuse images that are too small for a network."""
    if image_size < (smallest := NETWORKS[name].smallest):
        raise ValueError(f"image_size={image_size}: images for {name} have at least {smallest} pixels on each side")


__all__ = ["NETWORKS", "Entry", "Task", "build", "check_size"]
