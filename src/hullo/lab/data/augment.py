"""Data augmentation on the device: the order of images, random flips and shifts, for all members at once.

Orders and augmentations are drawn for an epoch, then split into batches:

    order = draw_order(seeds, epoch, len(images))                       # (members, images)
    moves = draw_moves(seeds, epoch, order, images.shape[-2:])          # (members, images, 3)
    batch = AugmentedImages(images, order[:, :32], moves[:, :32])       # stands for (members, 32, channels, H, W)

The augmentation of an image depends only on the member's seed, the epoch and the image.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hullo.population.rng import Purpose, draw_below, open_streams, permute


def draw_order(seeds: Tensor, epoch: int | Tensor, size: int) -> Tensor:
    """Return the order in which each member sees `size` images in an epoch, of shape (members, size).

    Examples:
        >>> draw_order(torch.tensor([7]), 0, 5).sort().values
        tensor([[0, 1, 2, 3, 4]])
    """
    return permute(open_streams(seeds, Purpose.ORDER, epoch), size)


def draw_moves(
    seeds: Tensor, epoch: int | Tensor, images: Tensor, sides: Sequence[int], *, flip: bool = True, shift: float = 0.1
) -> Tensor:
    """Draw the augmentation of each member's images in an epoch: flipped (0 or 1), pixels down, pixels to the right.

    `images` are indices of shape (members, count), `sides` is (height, width); returns (members, count, 3).
    With `flip`, an image is flipped with probability 1/2. A shift is a uniformly random integer of pixels up to the
    fraction `shift` of the side, in either direction.

    Examples:
        >>> draw_moves(torch.tensor([7]), 0, torch.tensor([[11, 12]]), (28, 28)).tolist()
        [[[0, 2, 2], [1, 0, -2]]]
    """
    keys = open_streams(seeds, Purpose.MOVES, epoch)
    down, right = (int(shift * side) for side in sides)
    moves = (
        draw_below(2 if flip else 1, keys, 3 * images),
        draw_below(2 * down + 1, keys, 3 * images + 1) - down,
        draw_below(2 * right + 1, keys, 3 * images + 2) - right,
    )
    return torch.stack(moves, -1).to(torch.int16)  # small: those of a complete epoch are in memory
