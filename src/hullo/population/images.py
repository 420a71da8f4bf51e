"""Images that are augmented while a network reads them from the bytes of a data set."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from hullo.population.values import Value


@dataclass(frozen=True, eq=False)
class AugmentedImages:
    """Hold the image, the flip and the shift of each member and sample.

    Pass it to a population instead of a tensor of shape (K, B, C, H, W) with numbers from 0 to 1. On a GPU, the first
    convolution reads the bytes, and augmented images are never written.

    Args:
        images: bytes, (count, C, H, W).
        index: the index of each image, (K, B).
        moves: whether it is flipped (0 or 1), pixels down and pixels to the right, (K, B, 3).

    Example:
        >>> import torch
        >>> row = torch.tensor([[[[0, 51, 102, 255]]]], dtype=torch.uint8)
        >>> batch = AugmentedImages(row, torch.tensor([[0, 0]]), torch.tensor([[[0, 0, 1], [1, 0, -1]]]))
        >>> batch.tensor().flatten(2)
        tensor([[[0.0000, 0.0000, 0.2000, 0.4000],
                 [0.4000, 0.2000, 0.0000, 0.0000]]])
    """

    images: Tensor
    index: Tensor
    moves: Tensor

    @property
    def shape(self) -> torch.Size:
        """Return (K, B, C, H, W)."""
        return torch.Size([*self.index.shape, *self.images.shape[1:]])

    def tensor(self) -> Tensor:
        """Return the augmented images, (K, B, C, H, W), numbers from 0 to 1."""
        return scale(move(self.images, self.index, self.moves))


class ImagesValue(Value):
    """Hold augmented images as an input of all members; a convolution reads them without creating `tensor`."""

    def __init__(self, source: AugmentedImages) -> None:
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "dim", 1)

    source: AugmentedImages

    @functools.cached_property
    def tensor(self) -> Tensor:
        """Return the images as (B, K, C, H, W) in channels-last memory format, in which convolutions are faster."""
        images = self.source.tensor()
        members, channels = images.shape[0], images.shape[2]
        wide = images.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)
        return torch.unflatten(wide, 1, (members, channels))

    @property
    def shape(self) -> torch.Size:
        return self.source.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def device(self) -> torch.device:
        return self.source.images.device


def move(images: Tensor, index: Tensor, moves: Tensor) -> Tensor:
    """Return images, each flipped and then shifted, with pixels at the edge repeated.

    For images of shape (count, C, H, W), indices of any shape and moves of that shape and 3, the result has the shape
    of the indices and (C, H, W).
    """
    channels, height, width = images.shape[1:]
    index, moves = index.contiguous(), moves.contiguous()  # the result has their memory order
    flipped, down, right = moves.long()[..., None].unbind(-2)
    rows = (torch.arange(height, device=images.device) - down).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) - right).clamp(0, width - 1)
    columns = torch.where(flipped == 1, width - 1 - columns, columns)
    every_channel = torch.arange(channels, device=images.device)[:, None, None]
    return images[index[..., None, None, None], every_channel, rows[..., None, :, None], columns[..., None, None, :]]


def scale(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return pixels from 0 to 255 as numbers from 0 to 1.

    Example:
        >>> scale(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    return images.to(dtype) / 255
