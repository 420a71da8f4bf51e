"""The layers of a population: K layers of one kind, side by side, that never touch each other.

Pictures are (B, K*C, H, W), features (K, B, F). Every parameter and buffer has its members in the first dimension: the
first of K equal parts belongs to member 0, and so on. Defaults are those of Keras.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolution(nn.Module):
    """K convolutions as one with K groups; ``same`` pads as Keras does, more at the end where the sides cannot be even.

    Pictures that all members share come as (B, C, H, W): one convolution with all members' filters serves.
    """

    def __init__(
        self, members: int, inputs: int, outputs: int, kernel: int, *, stride: int = 1, same: bool = False
    ) -> None:
        super().__init__()
        self.stride, self.same = stride, same
        self.fans = inputs * kernel**2, outputs * kernel**2
        self.weight = nn.Parameter(torch.empty(members * outputs, inputs, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(members * outputs))

    def forward(self, x: Tensor) -> Tensor:
        padding = 0
        if self.same:
            kernel, size = self.weight.shape[-1], x.shape[-1]
            total = max(0, (math.ceil(size / self.stride) - 1) * self.stride + kernel - size)
            padding = total // 2
            if total % 2:
                x, padding = F.pad(x, (padding, total - padding) * 2), 0
        groups = x.shape[1] // self.weight.shape[1]
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, groups=groups)


class Linear(nn.Module):
    """K linear layers as one batched product of features (K, B, inputs)."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fans = inputs, outputs
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class BatchNorm(nn.Module):
    """K batch norms over C channels each, with epsilon 1e-3 and statistics that keep 99 % of themselves a step.

    The running variance takes up the unbiased estimate, as Keras 2 does on TensorFlow; Keras 3 takes the biased one.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, members: int, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members * channels))
        self.shift = nn.Parameter(torch.zeros(members * channels))
        self.register_buffer("running_mean", torch.zeros(members * channels))
        self.register_buffer("running_variance", torch.ones(members * channels))

    def forward(self, x: Tensor) -> Tensor:
        # PyTorch's momentum is the share of the new, Keras's that of the old
        statistics = self.running_mean, self.running_variance
        return F.batch_norm(x, *statistics, self.scale, self.shift, self.training, momentum=0.01, eps=1e-3)


def by_member(x: Tensor, members: int, dim: int = 0) -> Tensor:
    """A view of x with its dimension `dim` split into (members, what each of them has)."""
    split: Tensor = torch.unflatten(x, dim, (members, -1))
    return split


def flatten(x: Tensor, members: int) -> Tensor:
    """Pictures (B, K*C, H, W) to features (K, B, H*W*C): Keras's order, and that of pictures with channels last."""
    return by_member(x, members, dim=1).permute(1, 0, 3, 4, 2).flatten(2)


def average(x: Tensor, members: int) -> Tensor:
    """Pictures (B, K*C, H, W) to their means over height and width, (K, B, C)."""
    return by_member(x.mean((2, 3)), members, dim=1).transpose(0, 1)
