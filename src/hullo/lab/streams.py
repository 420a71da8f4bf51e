"""Random numbers that are computed, not drawn in turn: each is a function of a seed, a purpose and a position.

A member of a population therefore meets the same numbers alone or beside others, on any device, after any number of
other draws. Whole numbers alone are used, so the results are equal to the bit.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Purpose(enum.IntEnum):
    """What a stream is for; streams of different purposes have nothing to do with each other."""

    ORDER = 1
    MOVES = 2
    VALIDATION = 3
    DROPOUT = 4  # of a network's first dropout; the others follow


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Shifted right, zeros moving in: torch's own shift repeats the sign."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix_(words: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of 64-bit words under which every bit depends on all; in place."""
    words.bitwise_xor_(_shifted(words, 30)).mul_(_FIRST)
    words.bitwise_xor_(_shifted(words, 27)).mul_(_SECOND)
    return words.bitwise_xor_(_shifted(words, 31))


def open_streams(seeds: Tensor, purpose: int, index: int | Tensor) -> Tensor:
    """One stream a seed for a purpose and an index, such as an epoch or a step: the keys that `draw` takes.

    Examples:
        >>> open_streams(torch.tensor([0, 1]), Purpose.ORDER, 3).shape
        torch.Size([2])
    """
    return _mix_(_mix_(_mix_(seeds.clone()) + int(purpose)) + index)


def draw(keys: Tensor, positions: Tensor) -> Tensor:
    """64 random bits at each position of each stream, as int64: SplitMix64's outputs from the state `key`.

    Keys of shape (members,) meet positions of shape (count,) or (members, count). Within one stream no two positions
    share their bits.

    Examples:
        >>> draw(torch.tensor([1234567]), torch.arange(2))
        tensor([[6457827717110365317, 3203168211198807973]])
    """
    return _mix_(keys[:, None] + (positions + 1) * _STEP)


def draw_below(limit: int, keys: Tensor, positions: Tensor) -> Tensor:
    """Whole numbers from 0 to `limit` - 1, all equally likely but for a part in 2^32 / limit.

    Examples:
        >>> draw_below(6, torch.tensor([1234567]), torch.arange(5)).tolist()
        [[2, 1, 3, 1, 5]]
    """
    return _shifted(_shifted(draw(keys, positions), 32) * limit, 32)


def permute(keys: Tensor, size: int) -> Tensor:
    """A random order of 0 to `size` - 1 for each stream, of shape (members, size).

    No two sort keys are equal, so the order is the same whichever way a device sorts.

    Examples:
        >>> permute(torch.tensor([1234567, 89]), 4).sort().values.tolist()
        [[0, 1, 2, 3], [0, 1, 2, 3]]
    """
    return draw(keys, torch.arange(size, device=keys.device)).argsort()


def draw_short(keys: Tensor, shape: Sequence[int], first: int = 0) -> Tensor:
    """Random int16 of the shape (members, *shape), all values equally likely: four from each 64 bits of a stream.

    They begin at entry `first` of the first dimension of the shape, which has no end.

    Examples:
        >>> keys = torch.tensor([1234567])
        >>> draw_short(keys, (3, 5))[:, 1:].equal(draw_short(keys, (2, 5), first=1))
        True
    """
    start, count = first * math.prod(shape[1:]), math.prod(shape)
    words = draw(keys, torch.arange(start // 4, -(-(start + count) // 4), device=keys.device))
    return words.view(torch.int16)[:, start % 4 :][:, :count].reshape(len(keys), *shape)


def keep(seeds: Tensor, steps: Tensor, dropout: int, shape: Sequence[int], *, rate: float, first: int = 0) -> Tensor:
    """Which of (members, *shape) entries a network's dropout, counted from 0, leaves in place; the rate is rounded to
    16 bits. The shape's first dimension is that of the batch, from picture `first` on."""
    keys = open_streams(seeds, Purpose.DROPOUT + dropout, steps)
    return draw_short(keys, shape, first) >= round(rate * 2**16) - 2**15
