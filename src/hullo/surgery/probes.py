"""Identify functions by calling them at test points.

Two functions count as equal within these tolerances:

- In float64, values may differ by one unit of float32 rounding *of the value*, 2^-23 |f(x)|, so that constants written
  with eight digits or more are precise enough, plus cancellation in float64, 2^-48 |x| for |x| from 1 to 64. An offset
  such as 1e-7 is detected where the function is zero.
- A function that always computes in float32 returns float32 numbers in float64. It may differ by rounding in float32:
  2^-20 |f(x)| plus 2^-18 |x| for cancellation, for |x| up to 64. Beyond, where functions saturate or grow, only the
  relative part counts; so an offset is detected at tiny or large inputs.
- In float32 and shorter types, after float64 has agreed, some units of rounding of the value and of |x|.
- Slopes may differ by 2^-20 |f'(x)| plus 2^-22, away from kinks; in float32 by 2^-14 of either.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hullo._compat import real_tensors
from hullo.bases import Base, all_bases, get_base
from hullo.find_base import candidate_members
from hullo.surgery.isolation import isolated, numbers_in

_SPECIAL = (-20.0, -6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0, 20.0, 40.0)
_RANGE32 = 1e37
_SAMPLE = 64  # points that distinguish most functions


@dataclass(frozen=True)
class Tolerance:
    """Bound rounding errors: `relative` times the value, plus `absolute` times |x| clamped to 1...64.

    If `strict`, the second part is proportional to |x| also below 1, and zero above 64.
    """

    relative: float
    absolute: float
    strict: bool = False

    def matches(self, actual: Tensor, expected: Tensor, x: Tensor) -> Tensor:
        """Return, for each row of expected values, whether `actual` equals it, up to rounding."""
        near = torch.where(x.abs() < 64, x.abs(), 0.0) if self.strict else x.abs().clamp(1, 64)
        error = (actual - expected).abs()
        close = expected.isfinite() & (error <= self.relative * expected.abs() + self.absolute * near + 1e-36)
        same = (actual == expected) | (actual.isnan() & expected.isnan())
        return (close | same).all(-1)


DOUBLE = Tolerance(2.0**-23, 2.0**-48)
SINGLE = Tolerance(2.0**-20, 2.0**-18)
SINGLE_INSIDE = Tolerance(2.0**-20, 2.0**-18, strict=True)
BFLOAT16 = Tolerance(2.0**-5, 2.0**-5)
_SAME = {torch.float64: Tolerance(1e-12, 1e-13), torch.float32: Tolerance(1e-5, 1e-6)}


@functools.cache
@real_tensors()
def points(dtype: torch.dtype) -> Tensor:
    """Return numbers from the whole range of a type, dense near the origin, in random order."""
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
    """Return the values of bases at the points of a type, in float64, one row per base; NaN for one that fails."""
    x = points(dtype).double()
    rows = []
    for item in bases:
        try:
            rows.append(item.function(x))
        except Exception as error:  # a Python function of a user
            if dtype == torch.float64:
                reason = f"raised {type(error).__name__}: {error}; no activation is found to be it"
                warnings.warn(f"base function {item.name!r} {reason}", stacklevel=4)
            rows.append(torch.full_like(x, torch.nan))
    return torch.stack(rows)


@functools.cache
@real_tensors()
def _batches() -> list[Tensor]:
    """Return indices of points that form inputs of many shapes, memory layouts and ranges."""
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


def is_elementwise(function: Callable[[Tensor], Tensor], y: Tensor, single: bool) -> bool:
    """Return whether the value at a point, as in `y`, does not depend on the other entries of the input."""
    x = points(torch.float64)
    tolerance = _SAME[torch.float32 if single else torch.float64]
    for index in _batches():
        argument = torch.empty_strided(index.shape, index.stride(), dtype=torch.float64).copy_(x[index])
        try:
            actual = function(argument)
        except Exception:
            if index.dim() == 0:
                continue
            return False
        outside = single & ((x[index].abs() > _RANGE32) | (x[index].abs() < 1 / _RANGE32))
        if not bool((tolerance.matches(actual[..., None], y[index, None], x[index, None]) | outside).all()):
            return False
    return True


def slope_points(item: Base) -> Tensor:
    """Return points away from the kinks of a base."""
    x = points(torch.float64)
    x = x[(x.abs() < 1e6) & (x.abs() > 1e-6)]
    kinks = torch.tensor([0.0, *item.kinks], dtype=torch.float64)
    return x[((x[:, None] - kinks).abs() > 1e-5).all(1)]


def around(numbers: Sequence[float]) -> Tensor:
    """Return points next to and between numbers that occur in the code of a function."""
    symmetric = sorted({sign * number for number in numbers if math.isfinite(number) for sign in (-1.0, 1.0)})
    centers = torch.tensor([*symmetric, *((a + b) / 2 for a, b in itertools.pairwise(symmetric))], dtype=torch.float64)
    steps = torch.tensor([0.0, 1e-12, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 0.1], dtype=torch.float64)
    offsets = torch.cat([steps, -steps])
    return torch.cat([(centers[:, None] * (1 + offsets)).flatten(), (centers[:, None] + offsets).flatten()])


# Identify a function by its values


class _NotElementwiseError(Exception):
    """A call did not return a tensor like its input."""


_NO_BASE = "it is not in the catalogue, or has parameters that are not recognized; hullo.add_base adds a function"


def _call(function: Callable[..., Any], x: Tensor) -> Tensor:
    y = function(x)
    if type(y) is not Tensor or y.shape != x.shape or not y.is_floating_point() or y.device != x.device:
        raise _NotElementwiseError
    return y


def identify_function(function: Callable[..., Any]) -> tuple[Base | None, bool, str] | None:
    """Call a function to find out which base it computes.

    Returns:
        The base, whether the function works in place, and why a hull cannot compute the same (empty if it can); None if
        the function is not elementwise, or linear.
    """
    call = functools.partial(_call, function)
    bases = tuple(item for item in all_bases() if item.name != "identity")
    values(bases, torch.float64)  # warns of a base that fails, which `isolated` would hide
    with isolated(function) as side_effects, torch.no_grad():
        try:
            if not _seems_elementwise(call):
                return None
            x = points(torch.float64)
            argument = x.clone()
            actual = call(argument)
            y = actual.double().clone()
            single = torch.equal(y.nan_to_num(), y.float().double().nan_to_num())
            if _is_linear(call) or not is_elementwise(call, y, single):
                return None
        except Exception:  # it does not accept any tensor
            return None
        in_place = not torch.equal(argument, x)
        try:
            item = _match(call, y, single)
            reason = _NO_BASE if item is None else _check(function, item, single) or side_effects()
            if not torch.equal(call(x.clone()).double().nan_to_num(0.5), y.nan_to_num(0.5)):
                reason = "it is not deterministic"
        except Exception as error:
            item, reason = None, f"it fails for some inputs: {type(error).__name__}"
        if in_place and not (actual.data_ptr() == argument.data_ptr() and actual.stride() == argument.stride()):
            reason = reason or "it overwrites its input and returns another tensor"
        return None if reason else item, in_place, reason


def _seems_elementwise(call: Callable[[Tensor], Tensor]) -> bool:
    """Return whether a function may be elementwise: a quick test that rejects most others."""
    x = points(torch.float64)
    x = x[x.abs() < 5][:35].reshape(5, 7)
    y = call(x.clone())
    return torch.allclose(call(x.flip(0, 1)).flip(0, 1), y, rtol=1e-5, atol=1e-6, equal_nan=True)


def _is_linear(call: Callable[[Tensor], Tensor]) -> bool:
    x = points(torch.float32).double()
    low, middle, high = call(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)).double()
    return bool(SINGLE.matches(call(x.clone()).double(), middle + (high - low) / 2 * x, x))


def _match(call: Callable[[Tensor], Tensor], y: Tensor, single: bool) -> Base | None:
    """Return the base with these values; None if there is none."""
    x, tolerance = points(torch.float64), DOUBLE
    if single:
        x, tolerance = points(torch.float32).double(), SINGLE_INSIDE
        y = call(x.clone()).double()
    bases = tuple(item for item in all_bases() if item.name != "identity")
    expected = values(bases, torch.float32 if single else torch.float64)
    candidates = tolerance.matches(y[:_SAMPLE], expected[:, :_SAMPLE], x[:_SAMPLE]).tolist()
    for item, row, fits in zip(bases, expected, candidates, strict=True):
        if fits and bool(tolerance.matches(y, row, x)) and not bool(row.isnan().all()):
            return item
    for item in candidate_members(lambda sample: call(sample).double(), decimals=6 if single else None):
        if bool(tolerance.matches(y, item.function(x), x)):
            return get_base(item.name)
    return None


def _check(function: Callable[..., Any], item: Base, single: bool) -> str:
    """Return how a function that agrees with a base at the test points differs elsewhere; empty if it does not."""
    call = functools.partial(_call, function)
    tolerance = SINGLE_INSIDE if single else DOUBLE
    around_constants = around(numbers_in(function))
    infinite = torch.tensor([math.inf, -math.inf], dtype=torch.float64)
    for x in (around_constants.float().double() if single else around_constants, infinite):
        y, expected = call(x.clone()).double(), item.function(x)
        if x is infinite:  # many functions multiply infinity by zero
            expected = torch.where(y.isnan() | expected.isnan(), y, expected)
        if not bool(tolerance.matches(y, expected, x)):
            return _NO_BASE
    return _check_types(call, item) or _check_gradient(call, item, single)


def _check_types(call: Callable[[Tensor], Tensor], item: Base) -> str:
    """Return how a function differs from a base in dtypes other than float64, or under autocast; empty if not."""
    sample = points(torch.float32)
    sample = sample[(sample.abs() < 1000) & (sample.abs() > 1e-3)][:500]
    if call(sample.double()).dtype != torch.float64:
        return "it does not return the dtype of its input"
    cases = [(points(torch.float32), SINGLE, False), (sample, BFLOAT16, True)]
    for dtype in (torch.float16, torch.bfloat16):
        cases.append((sample.to(dtype), BFLOAT16, False))
    for x, tolerance, autocast in cases:
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                y = call(x.clone())
        except Exception:
            if x.dtype == torch.float32:
                raise
            continue  # a dtype that the function does not support
        if y.dtype != x.dtype:
            return "it does not return the dtype of its input" + autocast * " under autocast"
        wide = x.double()
        expected = item.function(wide).to(x.dtype).double()  # infinite on overflow
        if not bool(tolerance.matches(y.double(), expected, wide)):
            return f"it computes another function in {x.dtype}" + autocast * " under autocast"
    return ""


@torch.enable_grad()
def _check_gradient(call: Callable[[Tensor], Tensor], item: Base, single: bool) -> str:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float64, torch.float32):
        x = slope_points(item).to(dtype)
        upstream = torch.randn(len(x), dtype=dtype, generator=generator)
        upstream *= (20 * torch.rand(len(x), dtype=dtype, generator=generator) - 10).exp2()
        leaf = x.clone().requires_grad_()
        y = call(leaf * 1.0)
        (gradient,) = torch.autograd.grad(y, leaf, upstream, allow_unused=True) if y.requires_grad else (None,)
        if gradient is None:
            return "it has no gradient"
        wide, actual = x.double(), (gradient / upstream).double()
        expected, exact = item.derivative(wide), dtype == torch.float64 and not single
        relative, absolute = (2.0**-20, 2.0**-22) if exact else (2.0**-14, 2.0**-14)
        close = (actual - expected).abs() <= relative * expected.abs() + absolute
        overflown = actual.isnan() & (wide.abs() > 80)  # 0 times infinity in the other branch of torch.where
        same_values = (DOUBLE if exact else SINGLE).matches(y.detach().double(), item.function(wide), wide)
        if not (bool((close | overflown).all()) and bool(same_values)):
            return f"its gradient is not that of {item.name}"
    return ""
