"""The networks of the paper's experiments, each written once, as a population of any number of members."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hullo.lab.activations import Row
from hullo.lab.networks.alexnet import AlexNet
from hullo.lab.networks.kerasnet import KerasNet
from hullo.lab.networks.lenet5 import LeNet5
from hullo.lab.networks.network import Network, Task, initialise, stack
from hullo.lab.networks.resnet56 import ResNet

__all__ = ["NETWORKS", "Network", "Task", "build", "initialise", "stack"]

NETWORKS: dict[str, Callable[[Sequence[Row], Task], Network]] = {
    "lenet5": LeNet5,
    "kerasnet": KerasNet,
    "resnet56": ResNet,
    "alexnet": AlexNet,
}


def build(
    name: str,
    *,
    activation: str | Row | Sequence[str | Row],
    in_channels: int = 3,
    image_size: int = 32,
    num_classes: int = 10,
    members: int = 1,
    seeds: Sequence[int] | None = None,
) -> Network:
    """A population of K networks, initialised: `network(pictures)` gives logits (K, B, classes).

    Args:
        name: "lenet5", "kerasnet", "resnet56" or "alexnet".
        activation: a row such as ``relu`` or ``convex(identity,relu)`` for all members, or one for each.
        in_channels: channels of a picture; the default is CIFAR-10's, as are the next two.
        image_size: pixels on each side of a picture.
        num_classes: how many classes there are.
        members: how many networks stand side by side; one is an ordinary network.
        seeds: where each member starts, and its stream of dropouts; 0, 1, ... by default.

    Pictures are (B, K*C, H, W), each member's own channels in turn, or (B, C, H, W) for all members alike.

    Example:
        >>> import torch
        >>> from hullo.lab import networks
        >>> pair = networks.build("lenet5", activation=["relu", "affine(identity,relu)"], members=2)
        >>> pair.parameter_counts()
        [657080, 657086]
        >>> pair(torch.rand(5, 3, 32, 32)).shape
        torch.Size([2, 5, 10])
        >>> pair.member(1)(torch.rand(5, 3, 32, 32)).shape
        torch.Size([1, 5, 10])
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; there are {', '.join(NETWORKS)}")
    sizes = {"in_channels": in_channels, "image_size": image_size, "num_classes": num_classes, "members": members}
    for argument, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{argument}={value!r}: give a whole number of at least one")
    given = [activation] * members if isinstance(activation, str | Row) else list(activation)
    if len(given) != members:
        raise ValueError(f"{members} members need one activation for all, or {members}; got {len(given)}: {given}")
    network = NETWORKS[name]([Row.parse(row) for row in given], Task(in_channels, image_size, num_classes))
    initialise(network, range(members) if seeds is None else seeds)
    return network
