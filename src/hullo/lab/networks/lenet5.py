"""LeNet-5, as in Caffe's example."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hullo.lab.networks.init import MakeActivation, init_as_keras


class LeNet5(nn.Module):
    """Convolutions 20@5x5 and 50@5x5, each with max pooling 2x2; linear 500, classes; an activation after all but one.

    Args:
        activation: makes an activation, given its number of channels; 1 after a linear layer.
        in_channels: channels of an image.
        image_size: pixels on each side of an image, at least 16.
        num_classes: number of classes.
    """

    def __init__(
        self, activation: MakeActivation, *, in_channels: int = 3, image_size: int = 32, num_classes: int = 10
    ) -> None:
        super().__init__()
        side = ((image_size - 4) // 2 - 4) // 2
        self.conv1, self.act1 = nn.Conv2d(in_channels, 20, 5), activation(20)
        self.conv2, self.act2 = nn.Conv2d(20, 50, 5), activation(50)
        self.linear1, self.act3 = nn.Linear(50 * side**2, 500), activation(1)
        self.linear2 = nn.Linear(500, num_classes)
        init_as_keras(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.act1(self.conv1(x)), 2)
        x = F.max_pool2d(self.act2(self.conv2(x)), 2)
        x = x.permute(0, 2, 3, 1).flatten(1)  # in Keras's order, channels last
        logits: Tensor = self.linear2(self.act3(self.linear1(x)))
        return logits
