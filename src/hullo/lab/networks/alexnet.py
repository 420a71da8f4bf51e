"""AlexNet, as Caffe's reference model bvlc_alexnet has it."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from hullo.lab.activations import Row
from hullo.lab.networks.layers import Convolution, Gaussian, Linear, flatten, local_response_norm
from hullo.lab.networks.network import Network, Task
from hullo.lab.sights import Sight


class AlexNet(Network):
    """Convolutions 96@11x11/4, 256@5x5, 384@3x3, 384@3x3, 256@3x3, of which the second, fourth and fifth are in two
    groups; linear 4096, 4096, classes; an activation after each but the last.

    Local response normalisation follows the first two activations, dropout .5 the last two, and a pool 3x3/2 the first,
    second and fifth convolution. Pools take part of a window at the end where sides are even, as Caffe's do: a side of
    n pixels becomes n // 2. ILSVRC-2012's pictures are 227x227.
    """

    smallest = 39

    def __init__(self, rows: Sequence[Row], task: Task) -> None:
        super().__init__(rows, task, widths=(96, 256, 384, 384, 256, 1, 1))
        k = self.members
        side = ((task.image_size - 11) // 4 + 1) // 8
        self.conv1 = Convolution(k, task.in_channels, 96, 11, stride=4, start=Gaussian(0.01, bias=0.0))
        self.conv2 = Convolution(k, 96, 256, 5, padding=2, groups=2, start=Gaussian(0.01, bias=0.1))
        self.conv3 = Convolution(k, 256, 384, 3, padding=1, start=Gaussian(0.01, bias=0.0))
        self.conv4 = Convolution(k, 384, 384, 3, padding=1, groups=2, start=Gaussian(0.01, bias=0.1))
        self.conv5 = Convolution(k, 384, 256, 3, padding=1, groups=2, start=Gaussian(0.01, bias=0.1))
        self.linear6 = Linear(k, 256 * side**2, 4096, start=Gaussian(0.005, bias=0.1))
        self.linear7 = Linear(k, 4096, 4096, start=Gaussian(0.005, bias=0.1))
        self.linear8 = Linear(k, 4096, task.num_classes, start=Gaussian(0.01, bias=0.0))

    def logits(self, x: Tensor | Sight) -> Tensor:
        first, second, third, fourth, fifth, sixth, seventh = self.activations()
        y = _pool(local_response_norm(first(self.conv1(x)), self.members))
        y = _pool(local_response_norm(second(self.conv2(y)), self.members))
        y = fourth(self.conv4(third(self.conv3(y))))
        y = _pool(fifth(self.conv5(y)))
        y = self.drop(sixth(self.linear6(flatten(y, self.members))), 0.5, number=0)
        y = self.drop(seventh(self.linear7(y)), 0.5, number=1)
        logits: Tensor = self.linear8(y)
        return logits


def _pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, ceil_mode=True)
