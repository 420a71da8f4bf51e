"""LeNet-5, as Caffe's example has it: two convolutions, two linear layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hullo.lab.activations import Row
from hullo.lab.networks.layers import Convolution, Linear
from hullo.lab.networks.network import Network, Task
from hullo.lab.sights import Sight


class LeNet5(Network):
    """conv 20@5x5, pool 2, conv 50@5x5, pool 2, linear 500, linear classes; an activation after each but the last."""

    smallest = 16

    def __init__(self, rows: Sequence[Row], task: Task) -> None:
        super().__init__(rows, task, widths=(20, 50, 1))
        k = self.members
        side = ((task.image_size - 4) // 2 - 4) // 2
        self.conv1 = Convolution(k, task.in_channels, 20, 5)
        self.conv2 = Convolution(k, 20, 50, 5)
        self.linear1 = Linear(k, 50 * side**2, 500)
        self.linear2 = Linear(k, 500, task.num_classes)

    def logits(self, x: Tensor | Sight) -> Tensor:
        first, second, third = self.activations()
        y = self.pool(self.conv2, self.pool(self.conv1, x, first), second, flat=True)
        logits: Tensor = self.linear2(third(self.linear1(y)))
        return logits
