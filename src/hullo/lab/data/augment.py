"""What training does to pictures: their order, random flips and shifts, scaling; all in batch, where the pictures are.

An epoch is planned for all members at once, then shown in batches:

    order = draw_order(seeds, epoch, len(images))                       # (members, pictures)
    moves = draw_moves(seeds, epoch, order, images.shape[-2:])          # (members, pictures, 3)
    batch = scale(move(images, order[:, :32], moves[:, :32]))           # (members, 32, channels, height, width)

How a picture is moved depends on the member's seed, the epoch and the picture: not on the batch, nor on other members.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hullo.population.rng import Purpose, draw_below, open_streams, permute

SHIFT = 0.1
"""How far a picture is shifted at most, as a part of each side."""


def draw_order(seeds: Tensor, epoch: int | Tensor, size: int) -> Tensor:
    """The order in which each member sees `size` pictures in an epoch, of shape (members, size).

    Examples:
        >>> draw_order(torch.tensor([7]), 0, 5).sort().values
        tensor([[0, 1, 2, 3, 4]])
    """
    return permute(open_streams(seeds, Purpose.ORDER, epoch), size)


def draw_moves(seeds: Tensor, epoch: int | Tensor, pictures: Tensor, sides: Sequence[int]) -> Tensor:
    """How each member's pictures are moved in an epoch: flipped (0 or 1), pixels down, pixels to the right.

    For pictures (their numbers) of shape (members, count) and sides (height, width), of shape (members, count, 3). A
    shift is a whole number of pixels up to `SHIFT` of the side, either way; all are equally likely.

    Examples:
        >>> draw_moves(torch.tensor([7]), 0, torch.tensor([[11, 12]]), (28, 28)).tolist()
        [[[0, 2, 2], [1, 0, -2]]]
    """
    keys = open_streams(seeds, Purpose.MOVES, epoch)
    down, right = (int(SHIFT * side) for side in sides)
    moves = (
        draw_below(2, keys, 3 * pictures),
        draw_below(2 * down + 1, keys, 3 * pictures + 1) - down,
        draw_below(2 * right + 1, keys, 3 * pictures + 2) - right,
    )
    return torch.stack(moves, -1).to(torch.int16)  # a whole epoch of them is kept


def move(images: Tensor, pictures: Tensor, moves: Tensor) -> Tensor:
    """The chosen pictures, each flipped and then shifted as its move says, pixels at the edge repeated.

    From images of shape (count, channels, height, width), numbers of pictures of any shape and moves of that shape and
    3, the moved pictures, of the numbers' shape and (channels, height, width).

    Examples:
        >>> row = torch.tensor([[[[1, 2, 3, 4]]]], dtype=torch.uint8)
        >>> move(row, torch.tensor([0, 0]), torch.tensor([[0, 0, 1], [1, 0, -1]])).flatten(1).tolist()
        [[1, 1, 2, 3], [3, 2, 1, 1]]
    """
    channels, height, width = images.shape[1:]
    pictures, moves = pictures.contiguous(), moves.contiguous()  # the result takes their order in memory
    flipped, down, right = moves.long()[..., None].unbind(-2)
    rows = (torch.arange(height, device=images.device) - down).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) - right).clamp(0, width - 1)
    columns = torch.where(flipped == 1, width - 1 - columns, columns)
    every_channel = torch.arange(channels, device=images.device)[:, None, None]
    return images[pictures[..., None, None, None], every_channel, rows[..., None, :, None], columns[..., None, None, :]]


def scale(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pixels from 0 to 255 as numbers from 0 to 1.

    Examples:
        >>> scale(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    return images.to(dtype) / 255
