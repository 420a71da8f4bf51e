"""Counter-based random numbers: each number is a function of a seed, a purpose and a position.

So a member of a population gets the same numbers alone or beside others, on any device and after any number of other
draws. Only integer arithmetic is used, so the numbers are equal to the bit everywhere.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Purpose(enum.IntEnum):
    """Name the purpose of a stream; streams of different purposes are independent."""

    ORDER = 1
    MOVES = 2
    VALIDATION = 3
    DROPOUT = 4  # the first random operation of a network; the others have the next numbers


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; PyTorch's shift fills with the sign bit."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix_(words: Tensor) -> Tensor:
    """Apply the finalizer of SplitMix64 in place: a bijection of 64-bit words that mixes all bits."""
    words.bitwise_xor_(_shifted(words, 30)).mul_(_FIRST)
    words.bitwise_xor_(_shifted(words, 27)).mul_(_SECOND)
    return words.bitwise_xor_(_shifted(words, 31))


def open_streams(seeds: Tensor, purpose: int, index: int | Tensor) -> Tensor:
    """Return one stream key per seed, for a purpose and an index such as an epoch or a step.

    Examples:
        >>> open_streams(torch.tensor([0, 1]), Purpose.ORDER, 3).shape
        torch.Size([2])
    """
    return _mix_(_mix_(_mix_(seeds.clone()) + int(purpose)) + index)


def draw(keys: Tensor, positions: Tensor) -> Tensor:
    """Return 64 random bits per position of each stream, as int64: the outputs of SplitMix64 from the state `key`.

    Keys have shape (members,), positions (count,) or (members, count). No two positions of a stream have equal bits.

    Examples:
        >>> draw(torch.tensor([1234567]), torch.arange(2))
        tensor([[6457827717110365317, 3203168211198807973]])
    """
    return _mix_(keys[:, None] + (positions + 1) * _STEP)


def draw_below(limit: int, keys: Tensor, positions: Tensor) -> Tensor:
    """Return integers from 0 to `limit` - 1, uniform up to one part in 2^32 / limit.

    Examples:
        >>> draw_below(6, torch.tensor([1234567]), torch.arange(5)).tolist()
        [[2, 1, 3, 1, 5]]
    """
    return _shifted(_shifted(draw(keys, positions), 32) * limit, 32)


def permute(keys: Tensor, size: int) -> Tensor:
    """Return a random permutation of 0 to `size` - 1 per stream, of shape (members, size).

    No two sort keys are equal, so every sorting algorithm gives the same permutation.

    Examples:
        >>> permute(torch.tensor([1234567, 89]), 4).sort().values.tolist()
        [[0, 1, 2, 3], [0, 1, 2, 3]]
    """
    return draw(keys, torch.arange(size, device=keys.device)).argsort()


def draw_short(keys: Tensor, shape: Sequence[int], first: int = 0) -> Tensor:
    """Return uniform int16 of shape (members, *shape), four from each 64 bits of a stream.

    They start at entry `first` of the first dimension of `shape`, which is unlimited.

    Examples:
        >>> keys = torch.tensor([1234567])
        >>> draw_short(keys, (3, 5))[:, 1:].equal(draw_short(keys, (2, 5), first=1))
        True
    """
    start, count = first * math.prod(shape[1:]), math.prod(shape)
    words = draw(keys, torch.arange(start // 4, -(-(start + count) // 4), device=keys.device))
    return words.view(torch.int16)[:, start % 4 :][:, :count].reshape(len(keys), *shape)


def draw_uniform(keys: Tensor, shape: Sequence[int], dtype: torch.dtype, first: int = 0) -> Tensor:
    """Return numbers between 0 and 1 of shape (members, *shape): odd multiples of half the spacing of `dtype` below 1.

    So they are exact, neither 0 nor 1 occurs, and their mean is 1/2. They start at entry `first` of dimension 0.

    Examples:
        >>> draw_uniform(torch.tensor([1234567]), (2,), torch.float32)
        tensor([[0.3501, 0.1736]])
    """
    if not dtype.is_floating_point:
        raise TypeError(f"random numbers of {dtype} are not supported; draw real ones")
    digits = 1 - round(math.log2(torch.finfo(dtype).eps))
    start, count = first * math.prod(shape[1:]), math.prod(shape)
    words = draw(keys, torch.arange(start, start + count, device=keys.device))
    odd = _shifted(words, 65 - digits) * 2 + 1
    return (odd.to(torch.promote_types(dtype, torch.float32)) * 2.0**-digits).to(dtype).view(len(keys), *shape)


def is_zero(rate: float | Tensor) -> bool:
    """Return whether nothing is dropped at a rate; a rate per member counts as not zero."""
    return not isinstance(rate, Tensor) and rate == 0


def dropout_mask(
    seeds: Tensor, steps: Tensor, number: int, shape: Sequence[int], *, rate: float | Tensor, first: int = 0
) -> Tensor:
    """Return a mask of shape (members, *shape): the entries that a dropout keeps.

    Args:
        seeds, steps: seeds and step counts of the members, (members,).
        number: index of the dropout among the random operations of the network, from 0.
        shape: shape of one member's tensor; the first dimension is the batch.
        rate: the probability of dropping an entry, or one per member; it is rounded to 16 bits.
        first: index of the first sample, if the batch is part of a larger one.
    """
    keys = open_streams(seeds, Purpose.DROPOUT + number, steps)
    numbers = draw_short(keys, shape, first)
    if isinstance(rate, Tensor):
        least = (rate.double() * 2**16).round().int() - 2**15
        return numbers >= least.view(-1, *[1] * len(shape))
    return numbers >= round(rate * 2**16) - 2**15
