"""ResNet-56: the first version of the residual network of Keras's CIFAR-10 example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from hullo.lab.activations import Activation, Row
from hullo.lab.networks.layers import BatchNorm, Convolution, Linear, average
from hullo.lab.networks.network import Network, Task
from hullo.lab.sights import Sight


class Block(nn.Module):
    """act(shortcut(x) + norm(conv(act(norm(conv(x)))))); the shortcut is a convolution 1x1 where the shape changes."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = outputs // inputs  # twice the channels, half the sides
        self.conv1 = Convolution(members, inputs, outputs, 3, stride=stride, same=True)
        self.norm1 = BatchNorm(members, outputs)
        self.conv2 = Convolution(members, outputs, outputs, 3, same=True)
        self.norm2 = BatchNorm(members, outputs)
        self.shortcut = Convolution(members, inputs, outputs, 1, stride=2) if stride > 1 else nn.Identity()

    def forward(self, both: tuple[Tensor, Tensor], activations: Iterator[Activation]) -> tuple[Tensor, Tensor]:
        """From x, once for each of its two ways, to the result, in the same way."""
        x, past = both
        y, _ = self.norm1(self.conv1(x, biased=False), self.conv1.bias, next(activations))
        z: tuple[Tensor, Tensor] = self.norm2(
            self.conv2(y, biased=False), self.conv2.bias, next(activations), residual=self.shortcut(past)
        )
        return z


class ResNet(Network):
    """conv 16@3x3, three times n blocks of 16, 32 and 64 channels, average, linear classes; 6n + 2 layers deep."""

    def __init__(self, rows: Sequence[Row], task: Task, n: int = 9) -> None:
        widths = [16] * n + [32] * n + [64] * n
        super().__init__(rows, task, widths=[16, *(width for width in widths for _ in range(2))])
        self.n = n
        k = self.members
        self.conv = Convolution(k, task.in_channels, 16, 3, same=True)
        self.norm = BatchNorm(k, 16)
        self.blocks = nn.ModuleList(Block(k, *sizes) for sizes in zip([16, *widths], widths, strict=False))
        self.linear = Linear(k, 64, task.num_classes)

    def alike(self, rows: Sequence[Row]) -> ResNet:
        return ResNet(rows, self.task, self.n)

    def logits(self, x: Tensor | Sight) -> Tensor:
        activations = self.activations()
        both = self.norm(self.conv(x, biased=False), self.conv.bias, next(activations))
        for block in self.blocks:
            both = block(both, activations)
        logits: Tensor = self.linear(average(both[0], self.members))
        return logits
