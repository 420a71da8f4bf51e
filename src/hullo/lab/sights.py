"""Pictures that are seen without being made: a first convolution reads them from the bytes of the data set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hullo.lab import kernels


@dataclass(frozen=True)
class Sight:
    """What a population sees: for each member and place in the batch, which picture, and how it is moved.

    It stands where pictures (B, K*C, H, W) would, on a GPU, and goes straight into a network's first convolution.
    """

    images: Tensor  # bytes, (count, C, H, W)
    order: Tensor  # (K, B)
    moves: Tensor  # (K, B, 3)

    @property
    def shape(self) -> torch.Size:
        members, batch = self.order.shape
        channels, height, width = self.images.shape[1:]
        return torch.Size((batch, members * channels, height, width))

    @property
    def device(self) -> torch.device:
        return self.images.device

    def convolve(self, weight: Tensor, bias: Tensor, *, same: bool) -> Tensor:
        """conv2d over the moved and scaled pictures."""
        from hullo.lab.kernels.first import convolve

        dtype = kernels.working_dtype(weight)
        return convolve(self.images, self.order, self.moves, weight, bias, same=same, dtype=dtype)
