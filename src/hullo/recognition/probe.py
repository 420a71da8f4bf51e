"""Recognize the function of a module, or a helper function, by calling it at test points.

In float64, values may differ by one unit of float32 rounding of the value, 2^-23 |f(x)|, so that constants written with
eight digits are precise enough. A function that always computes in float32 may differ by 2^-20 |f(x)| + 2^-18 |x|.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hullo._compat import real_tensors
from hullo.bases import all_bases
from hullo.modules import Hull
from hullo.recognition.known import NOT_IN_CATALOGUE, Known, Reading, candidate_members, points, values
from hullo.recognition.table import read_type, why_not_module

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Tolerance:
    """Bound rounding errors: `relative` times the value, plus `absolute` times |x| clamped to 1...64."""

    relative: float
    absolute: float

    def matches(self, actual: Tensor, expected: Tensor, x: Tensor) -> Tensor:
        """Return, for each row of expected values, whether `actual` equals it, up to rounding."""
        error = (actual - expected).abs()
        bound = self.relative * expected.abs() + self.absolute * x.abs().clamp(1, 64) + 1e-36
        close = expected.isfinite() & (error <= bound)
        return (close | (actual == expected) | (actual.isnan() & expected.isnan())).all(-1)


DOUBLE = Tolerance(2.0**-23, 2.0**-48)
SINGLE = Tolerance(2.0**-20, 2.0**-18)


def read_module(module: nn.Module) -> Reading | None:
    """Return which activation a module is; None if it is not one. Only copies of the module are called."""
    if isinstance(module, (Hull, torch.jit.ScriptModule)):
        return None
    if (reading := read_type(module)) is not None:
        return reading
    if not may_be_activation(module):
        return None
    modes = []
    for training in (False, True):
        try:
            with _quiet():
                module_copy = copy.deepcopy(module).cpu().double().train(training)
            modes.append(read_function(functools.partial(type(module_copy).forward, module_copy)))
        except Exception:  # it cannot be copied, or takes no tensor
            return None
    if modes[0] != modes[1]:
        return None if None in modes else Reading(None, reason="it differs between training and evaluation mode")
    if modes[0] is None or modes[0].known is None:
        return modes[0]
    reason, others = why_not_module(module), list(inspect.signature(type(module).forward).parameters)[2:]
    if others and not reason:
        reason = f"its forward takes more than one argument: {', '.join(others)}"
    return Reading(None if reason else modes[0].known, reason)


def may_be_activation(module: nn.Module) -> bool:
    """Return whether a module is of a user's own and has no parameters."""
    return not type(module).__module__.startswith("torch.") and not any(True for _ in module.parameters())


@contextmanager
def _quiet() -> Iterator[None]:
    """Call users' functions: no modes, no warnings, and random numbers as before."""
    with real_tensors(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_function(function: Function, *, has_gradient: bool = True) -> Reading | None:
    """Return which activation a function of one tensor is; None if it is not elementwise, or linear.

    Without `has_gradient`, as for a function of another framework, its values alone are compared.
    """
    with _quiet():
        try:
            with torch.no_grad():
                return _read(function, has_gradient)
        except Exception:  # it does not accept any tensor
            return None


def _read(function: Function, has_gradient: bool) -> Reading | None:
    x = points()
    result = function(x.clone())
    if not isinstance(result, Tensor) or result.shape != x.shape or not result.is_floating_point():
        return None
    y = result.double().clone()
    tolerance = SINGLE if torch.equal(y.nan_to_num(), y.float().double().nan_to_num()) else DOUBLE
    if not _is_elementwise(function, y) or _is_linear(function):
        return None
    if not torch.equal(function(x.clone()).double().nan_to_num(0.5), y.nan_to_num(0.5)):
        return Reading(None, "it is not deterministic")
    known = _match(function, y, tolerance)
    if known is None:
        return Reading(None, NOT_IN_CATALOGUE)
    has_slope = not has_gradient or _has_slope(function, known, tolerance)
    return Reading(known) if has_slope else Reading(None, f"its gradient is not that of {known.name}")


def _is_elementwise(function: Function, y: Tensor) -> bool:
    """Return whether values do not depend on the shape, the order and the other entries of the input."""
    x = points()
    for shape in ((8, 12), (2, 3, 4, 4)):
        expected = y[: math.prod(shape)]
        actual = function(x[: math.prod(shape)].flip(0).reshape(shape).clone())
        if actual.shape != shape or not torch.allclose(
            actual.double().flatten().flip(0), expected, rtol=1e-5, atol=1e-6, equal_nan=True
        ):
            return False
    return True


def _is_linear(function: Function) -> bool:
    x = points()
    low, middle, high = function(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)).double()
    return bool(SINGLE.matches(function(x.clone()).double(), middle + (high - low) / 2 * x, x))


def _match(function: Function, y: Tensor, tolerance: Tolerance) -> Known | None:
    """Return the base with these values, also times a constant, or None."""
    x, bases = points(), tuple(item for item in all_bases() if item.name not in ("identity", "constant"))
    members = candidate_members(lambda at: function(at).double(), decimals=6 if tolerance is SINGLE else None)
    candidates = [*zip(bases, values(bases), strict=True), *((item, item.function(x)) for item in members)]
    peak = int(torch.where(x.abs() < 12, y.abs().nan_to_num(0, 0, 0), 0).argmax())
    for is_scaled in (False, True):
        for item, row in candidates:
            scale = float(f"{y[peak] / row[peak]:.12g}") if is_scaled else 1.0
            if math.isfinite(scale) and scale != 0 and bool(tolerance.matches(y, scale * row, x)):
                return Known.of(item.name, scale)
    return None


@torch.enable_grad()
def _has_slope(function: Function, known: Known, tolerance: Tolerance) -> bool:
    item, scale = known.bases[0], known.rows[0][0]
    x = points()
    x = x[(x.abs() < 1e6) & (x.abs() > 1e-6)]
    kinks = torch.tensor([0.0, *item.kinks], dtype=torch.float64)
    x = x[((x[:, None] - kinks).abs() > 1e-5).all(1)].requires_grad_()
    y = function(x * 1.0)
    if not y.requires_grad:
        return False
    upstream = 0.5 + torch.rand(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(y, x, upstream)
    actual, expected = gradient / upstream, scale * item.derivative(x.detach())
    relative, absolute = (2.0**-14, 2.0**-14) if tolerance is SINGLE else (2.0**-20, 2.0**-22)
    close = (actual - expected).abs() <= relative * expected.abs() + absolute
    return bool((close | (actual.isnan() & (x.abs() > 80))).all())  # 0 times infinity in the other branch of where
