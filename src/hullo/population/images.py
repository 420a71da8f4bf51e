"""Images that are augmented while a network reads them from the bytes of a data set."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from hullo.population.values import Value

PADDINGS = ("edge", "zeros")


@dataclass(frozen=True, eq=False)
class AugmentedImages:
    """Images that each member flips and shifts in its own way.

    Pass it to a population instead of a tensor of shape (K, B, C, H, W). On a GPU, with the default padding and without
    normalization, the first convolution reads the bytes, and augmented images are never written.

    Args:
        images: bytes, (count, C, H, W).
        index: the index of each image, (K, B).
        moves: whether it is flipped (0 or 1), pixels down and pixels to the right, (K, B, 3).
        padding: what a shift leaves open: "edge" repeats the pixels at the edge, "zeros" is black, as in a random crop
            with padding of torchvision.
        mean, std: one number per channel; the tensor is (pixels / 255 - mean) / std, and pixels / 255 by default.

    Example:
        >>> import torch
        >>> row = torch.tensor([[[[51, 102, 153, 255]]]], dtype=torch.uint8)
        >>> index, moves = torch.tensor([[0, 0]]), torch.tensor([[[0, 0, 1], [1, 0, -1]]])
        >>> AugmentedImages(row, index, moves).tensor().flatten(2)      # to the right; flipped and to the left
        tensor([[[0.2000, 0.2000, 0.4000, 0.6000],
                 [0.6000, 0.4000, 0.2000, 0.2000]]])
        >>> AugmentedImages(row, index, moves, padding="zeros").tensor().flatten(2)
        tensor([[[0.0000, 0.2000, 0.4000, 0.6000],
                 [0.6000, 0.4000, 0.2000, 0.0000]]])
    """

    images: Tensor
    index: Tensor
    moves: Tensor
    _: KW_ONLY
    padding: str = "edge"
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.padding not in PADDINGS:
            raise ValueError(f"padding={self.padding!r}: give one of {', '.join(map(repr, PADDINGS))}")
        if self.images.dtype != torch.uint8 or self.moves.shape != (*self.index.shape, 3):
            raise ValueError(
                f"images of {self.images.dtype}, moves of shape {tuple(self.moves.shape)}: give bytes, and a flip and "
                f"two shifts of each image, {(*self.index.shape, 3)}"
            )

    @property
    def is_plain(self) -> bool:
        """Return whether kernels read these images from their bytes."""
        return self.padding == "edge" and self.mean is None and self.std is None

    @property
    def shape(self) -> torch.Size:
        """Return (K, B, C, H, W)."""
        return torch.Size([*self.index.shape, *self.images.shape[1:]])

    def tensor(self) -> Tensor:
        """Return the augmented images, (K, B, C, H, W), numbers from 0 to 1 unless they are normalized."""
        images = scale(move(self.images, self.index, self.moves, self.padding))
        if self.mean is not None:
            images = images - _per_channel(tuple(self.mean), images.device)
        return images if self.std is None else images / _per_channel(tuple(self.std), images.device)


class ImagesValue(Value):
    """Hold augmented images as an input of all members; a convolution reads them without creating `tensor`."""

    def __init__(self, source: AugmentedImages) -> None:
        self.source, self.dim = source, 1

    @functools.cached_property
    def tensor(self) -> Tensor:  # type: ignore[override]
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


def move(images: Tensor, index: Tensor, moves: Tensor, padding: str = "edge") -> Tensor:
    """Return images, each flipped and then shifted.

    For images of shape (count, C, H, W), indices of any shape and moves of that shape and 3, the result has the shape
    of the indices and (C, H, W).
    """
    channels, height, width = images.shape[1:]
    index, moves = index.contiguous(), moves.contiguous()  # the result has their memory order
    flipped, down, right = moves.long()[..., None].unbind(-2)
    rows, columns = (torch.arange(size, device=images.device) for size in (height, width))
    rows, columns = rows - down, columns - right
    every_channel = torch.arange(channels, device=images.device)[:, None, None]
    at_rows, at_columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    at_columns = torch.where(flipped == 1, width - 1 - at_columns, at_columns)
    places = index[..., None, None, None], every_channel, at_rows[..., None, :, None], at_columns[..., None, None, :]
    if padding == "edge":
        return images[places]
    is_row, is_column = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    return images[places] * (is_row[..., None, :, None] & is_column[..., None, None, :])


@functools.cache
def _per_channel(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return one number per channel, as (C, 1, 1); a capture cannot copy it to a GPU, so it is kept."""
    return torch.tensor(numbers, device=device)[:, None, None]


def scale(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return pixels from 0 to 255 as numbers from 0 to 1.

    Example:
        >>> scale(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    return images.to(dtype) / 255
