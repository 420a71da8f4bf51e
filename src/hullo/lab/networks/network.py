"""What all networks of the laboratory share: a network is a population of members side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hullo.coefficients import way
from hullo.lab import kernels
from hullo.lab.activations import Activation, Activations, Row
from hullo.lab.networks.layers import Convolution, Linear, by_member, flatten
from hullo.lab.sights import Sight
from hullo.population import rng


@dataclass(frozen=True)
class Task:
    """What goes into a network and comes out: square pictures, classes."""

    in_channels: int
    image_size: int
    num_classes: int


class Network(nn.Module):
    """K networks of one architecture; `network(pictures)` gives logits (K, B, classes).

    Pictures are (B, K*C, H, W), each member's own channels in turn, or (B, C, H, W) for all members alike.
    """

    smallest: ClassVar[int] = 1
    seeds: Tensor
    steps: Tensor

    def __init__(self, rows: Sequence[Row], task: Task, widths: Sequence[int]) -> None:
        super().__init__()
        if task.image_size < self.smallest:
            wanted = f"pictures for {type(self).__name__} have at least {self.smallest} pixels on a side"
            raise ValueError(f"image_size={task.image_size}: {wanted}")
        self.task = task
        self.members = len(rows)
        self.first = 0  # the first picture of a batch, where the batch is a part of a larger one
        self.activations = Activations(rows, widths)
        self.register_buffer("seeds", torch.zeros(self.members, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros(self.members, dtype=torch.int64))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The members' activations."""
        return self.activations.rows

    @property
    def coefficients(self) -> Tensor:
        """The coefficients of every member and activation layer, (K, L, N), over `activations.bases`."""
        return self.activations.coefficients

    def forward(self, pictures: Tensor | Sight) -> Tensor:
        channels, size = self.task.in_channels, self.task.image_size
        own, shared = ((width, size, size) for width in (self.members * channels, channels))
        if pictures.shape[1:] not in (own, shared):
            given = tuple(pictures.shape)
            raise ValueError(f"pictures are (B, *{own}), or (B, *{shared}) for all members alike; got {given}")
        if self.training:
            self.steps.add_(1)
        return self.logits(pictures)

    def logits(self, x: Tensor | Sight) -> Tensor:
        raise NotImplementedError

    def pool(
        self,
        convolution: Convolution,
        x: Tensor | Sight,
        activation: Activation,
        *,
        rate: float = 0.0,
        number: int = 0,
        flat: bool = False,
    ) -> Tensor:
        """A convolution, its activation, a pool of 2x2 and dropout, in one pass on a GPU; as features if `flat`."""
        seen = isinstance(x, Sight)
        if isinstance(x, Sight) or kernels.serve(x):
            from hullo.lab.kernels.pooled import combine_pool_drop

            return combine_pool_drop(
                convolution(x, biased=seen),
                activation.rows,
                activation.bases,
                self.seeds,
                self.steps,
                number,
                rate,
                self.training,
                bias=None if seen else convolution.bias,
                flat=flat,
                first=self.first,
            )
        pooled = F.max_pool2d(activation(convolution(x)), 2)
        if rate:
            pooled = self.drop(pooled, rate, number)
        return flatten(pooled, self.members) if flat else pooled

    def drop(self, x: Tensor, rate: float, number: int) -> Tensor:
        """While training, zero a share of the entries and scale up the others; each member by its own stream.

        `number` tells the network's dropouts from each other, counted from 0.
        """
        if not self.training:
            return x
        if x.dim() == 3:
            if kernels.serve(x):
                from hullo.lab.kernels.dropout import drop

                return drop(x, self.seeds, self.steps, number, rate, self.first)
            kept = rng.dropout_mask(self.seeds, self.steps, number, x.shape[1:], rate=rate, first=self.first)
            return x * kept * (1 / (1 - rate))
        split = by_member(x, self.members, dim=1)
        batch, _, channels, height, width = split.shape
        kept = rng.dropout_mask(
            self.seeds, self.steps, number, (batch, height, width, channels), rate=rate, first=self.first
        )
        return (split * kept.permute(1, 0, 4, 2, 3) * (1 / (1 - rate))).flatten(1, 2)

    def alike(self, rows: Sequence[Row]) -> Network:
        """A network of the same architecture with other members, whose weights are not set."""
        return type(self)(rows, self.task)  # type: ignore[call-arg]

    def parameter_counts(self) -> list[int]:
        """Return how many numbers each member learns; unused entries in the table of coefficients do not count."""
        others = sum(p.numel() for p in self.parameters() if p is not self.activations.raw) // self.members
        counts = []
        for k, row in enumerate(self.rows):
            layers = sum(map(len, self.activations.split_member(k, self.activations.raw[k])))
            counts.append(others + layers * (len(row.bases) - way(row.keep).fewer) if row.learns else others)
        return counts

    def member(self, k: int) -> Network:
        """Member k as an ordinary network, with a copy of its weights and of all its state."""
        if not 0 <= k < self.members:
            raise IndexError(f"member {k} of a population of {self.members}: members are 0 to {self.members - 1}")
        alone = self.alike([self.rows[k]]).to(self.activations.raw)
        state = {key: by_member(tensor, self.members)[k] for key, tensor in self.state_dict().items()}
        columns = [self.activations.bases.index(item) for item in alone.activations.bases]
        raw = torch.cat(self.activations.split_member(k, self.activations.raw[k]))
        state["activations.raw"] = raw[None, :, columns]
        alone.load_state_dict(state)
        return alone.train(self.training)


def stack(networks: Sequence[Network]) -> Network:
    """Networks as one population, with copies of their weights and state: the inverse of `Network.member`.

    >>> from hullo.lab import networks
    >>> alone = [networks.build("lenet5", activation=row) for row in ("relu", "affine(identity,tanh)")]
    >>> population = networks.stack(alone)
    >>> [str(row) for row in population.rows]
    ['relu', 'affine(identity,tanh)']
    """
    first = networks[0]
    population = first.alike([row for network in networks for row in network.rows]).to(first.activations.raw)
    state = population.state_dict()
    states = [network.state_dict() for network in networks]
    for other, given in zip(networks, states, strict=True):
        if (type(other), other.task, given.keys()) != (type(first), first.task, states[0].keys()):
            kinds = (f"{type(item).__name__} for {item.task}" for item in (first, other))
            raise ValueError(f"only networks of one architecture stack, got {' and '.join(kinds)}")
        known = given["activations.raw"]
        if other.activations.widths != population.activations.widths:  # one row per layer, beside one per channel
            known = known.repeat_interleave(known.new_tensor(population.activations.widths, dtype=torch.int64), 1)
        given["activations.raw"] = known.new_zeros(*known.shape[:2], len(population.activations.bases))
        columns = [population.activations.bases.index(item) for item in other.activations.bases]
        given["activations.raw"][..., columns] = known
    population.load_state_dict({key: torch.cat([given[key] for given in states]) for key in state})
    return population.train(first.training)


@torch.no_grad()
def initialise(network: Network, seeds: Sequence[int]) -> None:
    """Start every member from its seed, layer by layer as the layer says. A member starts alike alone and in any
    population."""
    if len(seeds) != network.members:
        raise ValueError(f"{network.members} members need as many seeds, got {len(seeds)}: {list(seeds)}")
    network.seeds.copy_(torch.tensor(seeds))
    for k, seed in enumerate(seeds):
        generator = torch.Generator("cpu").manual_seed(seed)
        for layer in network.modules():
            if isinstance(layer, Convolution | Linear):
                own = by_member(layer.weight, network.members)[k]
                own.copy_(layer.start.draw(own.shape, generator))
                by_member(layer.bias, network.members)[k].fill_(layer.start.bias)
