"""The layers of a population: K layers of one kind, side by side, that never touch each other.

Pictures are (B, K*C, H, W), features (K, B, F). Every parameter and buffer has its members in the first dimension: the
first of K equal parts belongs to member 0, and so on. Defaults are those of Keras.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from hullo.kernels.plan import compute_dtype
from hullo.lab import kernels
from hullo.lab.activations import Activation
from hullo.lab.sights import Sight


@dataclass(frozen=True)
class Glorot:
    """Keras's start: uniform weights, |w| < sqrt(6 / (fan in + fan out)), and biases of zero."""

    fan_in: int
    fan_out: int
    bias = 0.0

    def draw(self, shape: torch.Size, generator: Generator) -> Tensor:
        limit = (6 / (self.fan_in + self.fan_out)) ** 0.5
        return torch.empty(shape, device="cpu").uniform_(-limit, limit, generator=generator)


@dataclass(frozen=True)
class Gaussian:
    """Caffe's start: normal weights of a given deviation, and biases that are all the same."""

    deviation: float
    bias: float

    def draw(self, shape: torch.Size, generator: Generator) -> Tensor:
        return torch.empty(shape, device="cpu").normal_(0.0, self.deviation, generator=generator)


OWN_WIDTHS = range(17, 65)
"""The channels, the most of inputs and outputs, where kernels of our own convolve members faster than cuDNN."""


class Convolution(nn.Module):
    """K convolutions as one with K groups; ``same`` pads as Keras does, more at the end where the sides cannot be even.

    Pictures that all members share come as (B, C, H, W): one convolution with all members' filters serves. A member's
    own convolution may be in `groups` itself, and its `padding` may be given.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        same: bool = False,
        groups: int = 1,
        start: Gaussian | None = None,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.same, self.groups = stride, padding, same, members * groups
        self.start = start or Glorot(inputs * kernel**2, outputs * kernel**2)
        self.weight = nn.Parameter(torch.empty(members * outputs, inputs // groups, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(members * outputs))

    def forward(self, x: Tensor | Sight, *, biased: bool = True) -> Tensor:
        if isinstance(x, Sight):
            return x.convolve(self.weight, self.bias if biased else torch.zeros_like(self.bias), same=self.same)
        before, behind = self._padding(x.shape[-1])
        groups = self.groups if x.shape[1] == self.groups * self.weight.shape[1] else 1
        bias = self.bias if biased else None
        widest = max(self.weight.shape[1], len(self.weight) // groups)
        dtype = kernels.working_dtype(x)
        if groups > 1 and widest in OWN_WIDTHS and dtype.itemsize == 2 and kernels.serve(x):
            from hullo.lab.kernels.convolution import convolve

            return convolve(
                x.to(dtype), self.weight, bias, members=groups, stride=self.stride, padding=(before, behind)
            )
        if before != behind:
            x, before = F.pad(x, (before, behind) * 2), 0
        return F.conv2d(x, self.weight, bias, self.stride, before, groups=groups)

    def _padding(self, size: int) -> tuple[int, int]:
        """Zeros before and behind a side of so many pixels."""
        if not self.same:
            return self.padding, self.padding
        total = max(0, (math.ceil(size / self.stride) - 1) * self.stride + self.weight.shape[-1] - size)
        return total // 2, total - total // 2


class Linear(nn.Module):
    """K linear layers as one batched product of features (K, B, inputs)."""

    def __init__(self, members: int, inputs: int, outputs: int, *, start: Gaussian | None = None) -> None:
        super().__init__()
        self.start = start or Glorot(inputs, outputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


MOMENTUM = 0.01
"""Of running statistics: the share of the new; Keras's own number is that of the old."""
EPSILON = 1e-3


class BatchNorm(nn.Module):
    """K batch norms over C channels each, with epsilon 1e-3 and statistics that keep 99 % of themselves a step, and
    what follows them: an activation, perhaps after a residual is added.

    The running variance takes up the unbiased estimate, as Keras 2 does on TensorFlow; Keras 3 takes the biased one.

    The bias of the convolution before it is not added to x: it would be subtracted again with the mean, and all that
    remained would be rounding, which RMSprop blows up to whole steps. So the bias has a gradient of zero, and only the
    running mean, which is that of x and the bias, knows of it.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, members: int, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members * channels))
        self.shift = nn.Parameter(torch.zeros(members * channels))
        self.register_buffer("running_mean", torch.zeros(members * channels))
        self.register_buffer("running_variance", torch.ones(members * channels))

    def forward(
        self, x: Tensor, bias: Tensor, activation: Activation, residual: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The activation of what is normalised, and of a residual that is added to it, in fused passes on a GPU; once
        for each of two ways on, so that the fused passes add up their gradients, too."""
        if kernels.serve(x):
            from hullo.lab.kernels.norm import normalise_combine

            return normalise_combine(
                x,
                self.running_mean,
                self.running_variance,
                self.scale,
                self.shift,
                activation.rows,
                activation.bases,
                self.training,
                momentum=MOMENTUM,
                eps=EPSILON,
                bias=bias,
                residual=residual,
            )
        y = self.normalise(x, bias)
        y = activation(y if residual is None else y + residual)
        return y, y

    def normalise(self, x: Tensor, bias: Tensor) -> Tensor:
        statistics, bias = (self.running_mean, self.running_variance), bias.to(self.shift.dtype)
        share = 0 if self.training else self.scale * (self.running_variance + EPSILON).rsqrt()
        shift = self.shift + share * bias
        if self.training:  # behind autograd's back, as batch_norm updates its statistics itself
            self.running_mean.data.add_(bias.detach(), alpha=MOMENTUM / (1 - MOMENTUM))
        return F.batch_norm(x, *statistics, self.scale, shift, self.training, momentum=MOMENTUM, eps=EPSILON)


def local_response_norm(x: Tensor, members: int, *, size: int = 5, alpha: float = 1e-4, beta: float = 0.75) -> Tensor:
    """Each of (B, K*C, H, W) over a power of the squares in the `size` channels around it, its own member's alone:

        y = x / (1 + alpha / size * sum of x^2)^beta

    with Caffe's constants for AlexNet by default. Values are computed in float32 at least; the result is of x's type.

    Example:
        >>> import torch
        >>> x = torch.ones(1, 6, 1, 1)
        >>> local_response_norm(x, members=2, size=3, alpha=3.0, beta=1.0).flatten()
        tensor([0.3333, 0.2500, 0.3333, 0.3333, 0.2500, 0.3333])
    """
    if size % 2 == 0:
        raise ValueError(f"size={size}: give an odd number of channels, as many before as after")
    channels = x.shape[1] // members
    if kernels.serve(x):
        from hullo.lab.kernels.lrn import LocalResponseNorm

        fused: Tensor = LocalResponseNorm.apply(x, channels, size, alpha, beta)  # type: ignore[no-untyped-call]
        return fused
    wide = x.to(compute_dtype(x)).reshape(-1, channels, *x.shape[2:])
    return F.local_response_norm(wide, size, alpha, beta, 1.0).reshape(x.shape).to(x.dtype)


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
