"""Inputs that tell functions apart, and how close two functions have to be to count as one.

What counts as equal:

- In float64, values may differ by one unit of float32 rounding *of the value*, 2^-23 |f(x)|, so that constants written
  with eight digits or more serve, plus what cancellation costs in float64, 2^-48 |x| for |x| from 1 to 64. An offset
  such as 1e-7 shows where the function is zero.
- Code that computes in float32 whatever it is given returns float32 numbers in float64. It may differ by rounding in
  float32: 2^-20 |f(x)| plus 2^-18 |x| for cancellation, for |x| up to 64. Beyond, where functions saturate or grow,
  only the relative part counts; so an offset shows at tiny inputs or far out.
- In float32 and shorter types, after float64 has agreed, some units of rounding of the value and of |x|.
- Slopes may differ by 2^-20 |f'(x)| plus 2^-22, away from kinks; in float32 by 2^-14 of either.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hullo._compat import real_tensors
from hullo.bases import Base

_SPECIAL = (-20.0, -6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0, 20.0, 40.0)
_RANGE32 = 1e37


@dataclass(frozen=True)
class Tolerance:
    """The error that counts as rounding: `relative` to the value, plus `absolute` times |x| between 1 and 64.

    If `strict`, the second part goes to zero with x, and is zero for |x| above 64.
    """

    relative: float
    absolute: float
    strict: bool = False

    def admits(self, found: Tensor, expected: Tensor, x: Tensor) -> Tensor:
        """Return for each row of expected values whether those found are the same, up to rounding."""
        near = torch.where(x.abs() < 64, x.abs(), 0.0) if self.strict else x.abs().clamp(1, 64)
        error = (found - expected).abs()
        close = expected.isfinite() & (error <= self.relative * expected.abs() + self.absolute * near + 1e-36)
        same = (found == expected) | (found.isnan() & expected.isnan())
        return (close | same).all(-1)


DOUBLE = Tolerance(2.0**-23, 2.0**-48)
SINGLE = Tolerance(2.0**-20, 2.0**-18)
SINGLE_INSIDE = Tolerance(2.0**-20, 2.0**-18, strict=True)
BFLOAT16 = Tolerance(2.0**-5, 2.0**-5)
_SAME = {torch.float64: Tolerance(1e-12, 1e-13), torch.float32: Tolerance(1e-5, 1e-6)}


@functools.cache
@real_tensors()
def points(dtype: torch.dtype) -> Tensor:
    """Return numbers of the whole range of a type, dense near the origin, in an order that means nothing."""
    generator = torch.Generator().manual_seed(20180130)

    def spread(low: float, high: float, count: int) -> Tensor:
        steps = torch.arange(count, dtype=torch.float64) + torch.rand(count, dtype=torch.float64, generator=generator)
        return low + (high - low) * steps / count

    magnitudes = torch.cat([spread(-120, 120, 1000), spread(-1000, 996, 400)]).exp2()
    steps = 2.0 ** -torch.arange(1.0, 41.0, dtype=torch.float64)
    near = [at + sign * steps for at in _SPECIAL for sign in (-1, 1)]
    whole = torch.arange(-48.0, 49.0, dtype=torch.float64)
    x = torch.cat([spread(-64, 64, 6000), spread(-3, 3, 1000), magnitudes, -magnitudes, *near, whole, whole + 0.5])
    x = torch.cat([x, torch.tensor([-0.0, 5e-324, -5e-324, 1e-45, -1e-45], dtype=torch.float64)])
    x = x[torch.randperm(len(x), generator=generator)]
    return x if dtype == torch.float64 else x[(x.abs() < _RANGE32) & (x.abs() > 1 / _RANGE32)].to(dtype)


@functools.lru_cache(maxsize=8)
@real_tensors()
def values(bases: tuple[Base, ...], dtype: torch.dtype) -> Tensor:
    """Return the values of bases at the points of a type, in float64, a row for each."""
    x = points(dtype).double()
    return torch.stack([item.function(x) for item in bases])


@functools.cache
@real_tensors()
def companies() -> list[Tensor]:
    """Return which of the points stand together in inputs of many shapes and layouts, and of many ranges."""
    x = points(torch.float64)
    generator = torch.Generator().manual_seed(1)

    def pick(*shape: int, among: Tensor | None = None) -> Tensor:
        chosen = torch.arange(len(x)) if among is None else among.nonzero()[:, 0]
        return chosen[torch.randint(len(chosen), shape, generator=generator)]

    small = x.abs() < 1
    ranges = (x > 0, x < 0, small, small & (x > 0), small & (x < 0), x.abs() > 1e3, x == 0)
    return [
        *(pick(), pick(1), pick(37), pick(1, 67), pick(64, 33), pick(3, 4, 5), pick(2, 3, 5, 7), pick(2, 2, 2, 3, 2)),
        *(pick(4, 6).T, pick(9, 8)[::2, 1::3], pick(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        *(pick(5, 7, among=among) for among in ranges),
    ]


def is_alone(function: Callable[[Tensor], Tensor], y: Tensor, single: bool) -> bool:
    """Return whether a function treats each entry alone: as in `y`, its values at the points, in any company."""
    x = points(torch.float64)
    tolerance = _SAME[torch.float32 if single else torch.float64]
    for index in companies():
        given = torch.empty_strided(index.shape, index.stride(), dtype=torch.float64).copy_(x[index])
        try:
            found = function(given)
        except Exception:
            if index.dim() == 0:
                continue
            return False
        outside = single & ((x[index].abs() > _RANGE32) | (x[index].abs() < 1 / _RANGE32))
        if not bool((tolerance.admits(found[..., None], y[index, None], x[index, None]) | outside).all()):
            return False
    return True


def slope_points(item: Base) -> Tensor:
    """Return points where a base is smooth."""
    x = points(torch.float64)
    x = x[(x.abs() < 1e6) & (x.abs() > 1e-6)]
    kinks = torch.tensor([0.0, *item.kinks], dtype=torch.float64)
    return x[((x[:, None] - kinks).abs() > 1e-5).all(1)]


def around(numbers: Sequence[float]) -> Tensor:
    """Return points near numbers that a function's code mentions, on both sides and in between."""
    given = sorted({sign * number for number in numbers if math.isfinite(number) for sign in (-1.0, 1.0)})
    centres = torch.tensor([*given, *((a + b) / 2 for a, b in itertools.pairwise(given))], dtype=torch.float64)
    steps = torch.tensor([0.0, 1e-12, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 0.1], dtype=torch.float64)
    offsets = torch.cat([steps, -steps])
    return torch.cat([(centres[:, None] * (1 + offsets)).flatten(), (centres[:, None] + offsets).flatten()])
