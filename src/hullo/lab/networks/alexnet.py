"""AlexNet, as in Caffe's reference model bvlc_alexnet."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hullo.lab.networks.init import MakeActivation


class AlexNet(nn.Module):
    """Convolutions 96@11x11/4, 256@5x5, 384@3x3, 384@3x3, 256@3x3, the second, fourth and fifth in two groups; linear
    4096, 4096, classes; an activation after each layer but the last.

    Local response normalization follows the first two activations, dropout of 0.5 the last two, and max pooling 3x3/2
    the first, second and fifth convolution. Pooling rounds sizes up, as in Caffe: n pixels become n // 2. The arguments
    are those of :class:`hullo.lab.networks.lenet5.LeNet5`; images of ILSVRC-2012 have 227x227 pixels, the smallest
    valid ones 39x39.
    """

    def __init__(
        self, activation: MakeActivation, *, in_channels: int = 3, image_size: int = 227, num_classes: int = 1000
    ) -> None:
        super().__init__()
        side = ((image_size - 11) // 4 + 1) // 8
        self.conv1, self.act1 = nn.Conv2d(in_channels, 96, 11, stride=4), activation(96)
        self.conv2, self.act2 = nn.Conv2d(96, 256, 5, padding=2, groups=2), activation(256)
        self.conv3, self.act3 = nn.Conv2d(256, 384, 3, padding=1), activation(384)
        self.conv4, self.act4 = nn.Conv2d(384, 384, 3, padding=1, groups=2), activation(384)
        self.conv5, self.act5 = nn.Conv2d(384, 256, 3, padding=1, groups=2), activation(256)
        self.linear6, self.act6 = nn.Linear(256 * side**2, 4096), activation(1)
        self.linear7, self.act7 = nn.Linear(4096, 4096), activation(1)
        self.linear8 = nn.Linear(4096, num_classes)
        self.norm = nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)
        self.drop = nn.Dropout(0.5)
        for layer, std, bias in (
            (self.conv1, 0.01, 0.0),
            (self.conv2, 0.01, 0.1),
            (self.conv3, 0.01, 0.0),
            (self.conv4, 0.01, 0.1),
            (self.conv5, 0.01, 0.1),
            (self.linear6, 0.005, 0.1),
            (self.linear7, 0.005, 0.1),
            (self.linear8, 0.01, 0.0),
        ):
            nn.init.normal_(layer.weight, 0.0, std)
            nn.init.constant_(layer.bias, bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = _pool(self.norm(self.act1(self.conv1(x))))
        x = _pool(self.norm(self.act2(self.conv2(x))))
        x = self.act4(self.conv4(self.act3(self.conv3(x))))
        x = _pool(self.act5(self.conv5(x)))
        x = self.drop(self.act6(self.linear6(x.permute(0, 2, 3, 1).flatten(1))))
        logits: Tensor = self.linear8(self.drop(self.act7(self.linear7(x))))
        return logits


def _pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, ceil_mode=True)
