"""KerasNet: the convolutional network of Keras's CIFAR-10 example."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hullo.lab.networks.init import MakeActivation, init_as_keras


class KerasNet(nn.Module):
    """Two convolutions 3x3, max pooling 2x2 and dropout of 0.25, with 32 filters and again with 64; linear 512, dropout
    of 0.5, linear classes; an activation after each layer but the last.

    The arguments are those of :class:`hullo.lab.networks.lenet5.LeNet5`; images have at least 10 pixels on each side.
    """

    def __init__(
        self, activation: MakeActivation, *, in_channels: int = 3, image_size: int = 32, num_classes: int = 10
    ) -> None:
        super().__init__()
        side = ((image_size - 2) // 2 - 2) // 2
        self.conv1, self.act1 = nn.Conv2d(in_channels, 32, 3, padding=1), activation(32)
        self.conv2, self.act2 = nn.Conv2d(32, 32, 3), activation(32)
        self.conv3, self.act3 = nn.Conv2d(32, 64, 3, padding=1), activation(64)
        self.conv4, self.act4 = nn.Conv2d(64, 64, 3), activation(64)
        self.linear1, self.act5 = nn.Linear(64 * side**2, 512), activation(1)
        self.linear2 = nn.Linear(512, num_classes)
        self.drop1, self.drop2, self.drop3 = nn.Dropout(0.25), nn.Dropout(0.25), nn.Dropout(0.5)
        init_as_keras(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act2(self.conv2(self.act1(self.conv1(x))))
        x = self.drop1(F.max_pool2d(x, 2))
        x = self.act4(self.conv4(self.act3(self.conv3(x))))
        x = self.drop2(F.max_pool2d(x, 2))
        x = x.permute(0, 2, 3, 1).flatten(1)  # in Keras's order, channels last
        logits: Tensor = self.linear2(self.drop3(self.act5(self.linear1(x))))
        return logits
