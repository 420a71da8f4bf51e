"""ResNet-56: the first version of the residual network of Keras's CIFAR-10 example."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hullo.lab.networks.init import MakeActivation, init_as_keras


class Block(nn.Module):
    """act(shortcut(x) + norm(conv(act(norm(conv(x)))))); the shortcut is a convolution 1x1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, activation: MakeActivation) -> None:
        super().__init__()
        self.stride = outputs // inputs  # twice the channels, half the size
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=self.stride, padding=1 if self.stride == 1 else 0)
        self.norm1, self.act1 = _batch_norm(outputs), activation(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2, self.act2 = _batch_norm(outputs), activation(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=2) if self.stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        # with stride 2, Keras pads only on the right and at the bottom
        y = self.conv1(x if self.stride == 1 else F.pad(x, (0, 1, 0, 1)))
        y = self.norm2(self.conv2(self.act1(self.norm1(y))))
        z: Tensor = self.act2(y + self.shortcut(x))
        return z


class ResNet(nn.Module):
    """A convolution 16@3x3, three times n blocks of 16, 32 and 64 channels, average, linear classes: 6n + 2 layers.

    With `he`, weights are drawn from He's normal distribution, as in the example of Keras. The other arguments are
    those of :class:`hullo.lab.networks.lenet5.LeNet5`.
    """

    def __init__(
        self,
        activation: MakeActivation,
        *,
        in_channels: int = 3,
        image_size: int = 32,
        num_classes: int = 10,
        n: int = 9,
        he: bool = False,
    ) -> None:
        super().__init__()
        widths = [16] * n + [32] * n + [64] * n
        self.conv = nn.Conv2d(in_channels, 16, 3, padding=1)
        self.norm, self.act = _batch_norm(16), activation(16)
        self.blocks = nn.Sequential(*(Block(*sizes, activation) for sizes in zip([16, *widths], widths, strict=False)))
        self.linear = nn.Linear(64, num_classes)
        init_as_keras(self)
        if he:
            for layer in self.modules():
                if isinstance(layer, (nn.Conv2d, nn.Linear)):
                    nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.act(self.norm(self.conv(x))))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    """Return a batch norm with the constants of Keras: running statistics keep 99 % of their value in each step.

    The running variance uses the unbiased estimate, as Keras 2 on TensorFlow does; Keras 3 uses the biased one.
    """
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
