"""The networks of the paper's experiments, as plain modules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hullo.lab.networks.alexnet import AlexNet
from hullo.lab.networks.kerasnet import KerasNet
from hullo.lab.networks.lenet5 import LeNet5
from hullo.lab.networks.own_network import OwnNetwork
from hullo.lab.networks.resnet56 import ResNet
from hullo.lab.spec.activation import ActivationSpec


@dataclass(frozen=True)
class DataShape:
    """The inputs and outputs of a network: square images, classes.

    Samples that are not square images have the size 0; `in_channels` is then the length of their first dimension.
    """

    in_channels: int
    image_size: int
    num_classes: int


@dataclass(frozen=True)
class Entry:
    """A network: the function that builds it, and the smallest image size."""

    make: Callable[..., nn.Module]
    smallest: int = 1


NETWORKS = {
    "lenet5": Entry(LeNet5, 16),
    "kerasnet": Entry(KerasNet, 10),
    "resnet56": Entry(ResNet),
    "resnet56_he": Entry(functools.partial(ResNet, he=True)),
    "alexnet": Entry(AlexNet, 39),
}


OWN: dict[str, OwnNetwork] = {}
"""The user's networks that are registered in this process, by name."""


def register(network: OwnNetwork) -> str:
    """Register a user's network in this process, and return its name."""
    OWN[network.name] = network
    return network.name


def build(
    name: str,
    *,
    activation: str | ActivationSpec,
    in_channels: int = 3,
    image_size: int = 32,
    num_classes: int = 10,
    seed: int = 0,
    example: Tensor | None = None,
) -> nn.Module:
    """Build a network of the paper, or a registered one, as a plain module, initialized from a seed.

    Args:
        name: "lenet5", "kerasnet", "resnet56", "resnet56_he" (with He's initialization) or "alexnet".
        activation: a row such as ``relu`` or ``convex(identity,relu)``.
        in_channels: channels of an image; the default is that of CIFAR-10, as are the next two.
        image_size: pixels on each side of an image.
        num_classes: number of classes.
        seed: seed of the initial weights; the global random state does not change.
        example: a batch of samples, for users' networks.

    Example:
        >>> import torch
        >>> from hullo.lab import networks
        >>> network = networks.build("lenet5", activation="affine(identity,relu)")
        >>> sum(parameter.numel() for parameter in network.parameters())
        657086
        >>> network(torch.rand(5, 3, 32, 32)).shape
        torch.Size([5, 10])
    """
    sizes = {"in_channels": in_channels, "image_size": image_size, "num_classes": num_classes}
    if name in OWN:
        inputs = torch.zeros(2, in_channels, image_size, image_size) if example is None else example
        return OWN[name].build(ActivationSpec.parse(activation), inputs, seed, sizes)
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; available: {', '.join(NETWORKS)}")
    entry, row = NETWORKS[name], ActivationSpec.parse(activation)
    check_size(name, image_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return entry.make(row.module, **sizes)


def check_size(name: str, image_size: int) -> None:
    """Raise a ValueError if images are too small for a network; `image_size` is 0 if they are not square images."""
    if name not in NETWORKS:
        return
    smallest = NETWORKS[name].smallest
    if image_size == 0:
        raise ValueError(
            f"{name} needs square images of at least {smallest} pixels per side; these samples are not square images"
        )
    if image_size < smallest:
        raise ValueError(f"image_size={image_size}: {name} needs images of at least {smallest} pixels per side")


__all__ = ["NETWORKS", "OWN", "DataShape", "Entry", "OwnNetwork", "build", "check_size", "register"]
