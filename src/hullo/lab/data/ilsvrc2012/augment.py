"""Augmentation of packed images on the device: crop, flip, subtract the mean image.

The crop of an image depends only on the seed, the epoch and the image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hullo.lab.data.ilsvrc2012.pack import SIDE
from hullo.population import kernels
from hullo.population.rng import Purpose, draw_below, open_streams

CROP = 227


def draw_crops(seeds: Tensor, epoch: int | Tensor, numbers: Tensor) -> Tensor:
    """Draw the crops of each member's images in an epoch: flipped (0 or 1), first row, first column.

    For image indices of shape (members, count) the result has shape (members, count, 3) and is uniformly distributed.

    Examples:
        >>> draw_crops(torch.tensor([7]), 0, torch.tensor([[11, 12]])).tolist()
        [[[0, 29, 29], [1, 17, 1]]]
    """
    keys = open_streams(seeds, Purpose.MOVES, epoch)
    limits = (2, SIDE - CROP + 1, SIDE - CROP + 1)
    return torch.stack([draw_below(limit, keys, 3 * numbers + k) for k, limit in enumerate(limits)], -1)


def center_crops(count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the crops of evaluation: the center of each image, not flipped.

    Examples:
        >>> center_crops(1)
        tensor([[ 0, 14, 14]])
    """
    middle = (SIDE - CROP) // 2
    return torch.tensor([0, middle, middle], device=device).expand(count, 3)


def crop(images: Tensor, crops: Tensor, mean: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Subtract the mean image from images, crop and flip them.

    Takes uint8 images of shape (count, 256, 256, 3), crops of shape (count, 3) and a mean image of shape (256, 256, 3);
    returns shape (count, 3, 227, 227) in channels-last memory format. As in Caffe, the mean is subtracted before
    cropping.

    Examples:
        >>> images, mean = torch.full((2, 256, 256, 3), 9, dtype=torch.uint8), torch.full((256, 256, 3), 4.0)
        >>> crop(images, center_crops(2), mean).unique(), crop(images, center_crops(2), mean).shape
        (tensor([5.]), torch.Size([2, 3, 227, 227]))
    """
    if kernels.support(images):
        from hullo.lab.data.ilsvrc2012 import crop_kernel as fused

        return fused.crop(images, crops, mean, CROP, dtype)
    flipped, top, left = crops[..., None].unbind(1)
    offsets = torch.arange(CROP, device=images.device)
    rows = (top + offsets)[:, :, None]
    columns = (left + torch.where(flipped == 1, CROP - 1 - offsets, offsets))[:, None, :]
    indices = torch.arange(len(images), device=images.device)[:, None, None]
    return (images[indices, rows, columns] - mean[rows, columns]).to(dtype).permute(0, 3, 1, 2)
