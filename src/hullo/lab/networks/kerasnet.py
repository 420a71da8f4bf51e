"""KerasNet: the convolutional network of Keras's CIFAR-10 example."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hullo.lab.activations import Row
from hullo.lab.networks.layers import Convolution, Linear
from hullo.lab.networks.network import Network, Task
from hullo.lab.sights import Sight


class KerasNet(Network):
    """Twice two convolutions 3x3 (32, then 64 filters), pool 2 and dropout .25; linear 512, dropout .5, linear classes;
    an activation after each but the last."""

    smallest = 10

    def __init__(self, rows: Sequence[Row], task: Task) -> None:
        super().__init__(rows, task, widths=(32, 32, 64, 64, 1))
        k = self.members
        side = ((task.image_size - 2) // 2 - 2) // 2
        self.conv1 = Convolution(k, task.in_channels, 32, 3, same=True)
        self.conv2 = Convolution(k, 32, 32, 3)
        self.conv3 = Convolution(k, 32, 64, 3, same=True)
        self.conv4 = Convolution(k, 64, 64, 3)
        self.linear1 = Linear(k, 64 * side**2, 512)
        self.linear2 = Linear(k, 512, task.num_classes)

    def logits(self, x: Tensor | Sight) -> Tensor:
        first, second, third, fourth, fifth = self.activations()
        y = self.pool(self.conv2, first(self.conv1(x)), second, rate=0.25, number=0)
        y = self.pool(self.conv4, third(self.conv3(y)), fourth, rate=0.25, number=1, flat=True)
        y = self.drop(fifth(self.linear1(y)), 0.5, number=2)
        logits: Tensor = self.linear2(y)
        return logits
