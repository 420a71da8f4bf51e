"""Compute properties of combinations: monotonicity, bounds of the slope, identity at the origin, the base they equal.

Every function takes a hull, or coefficients and bases. A hull with several groups gets a list with an answer for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from hullo._compat import real_tensors
from hullo.bases import Base, resolve
from hullo.bases.slope_extremes import extremes, largest_slope
from hullo.modules import Hull
from hullo.recognition.known import same_as

Coefficients = Tensor | Sequence[float] | Sequence[Sequence[float]]
Answer = TypeVar("Answer")

_TOLERANCE = 1e-6


def slope_bounds(
    subject: Hull | Coefficients, bases: Iterable[str | Base] | None = None
) -> tuple[float, float] | list[tuple[float, float] | None] | None:
    """Return the infimum and the supremum of the slope over the real line; None if they are unknown.

    The larger of their magnitudes is the Lipschitz constant. Both are certain, to 1e-7 of the largest slope that the
    coefficients and the slopes of the bases allow; for a base with unbounded slope, its slope at ±1 counts. They are
    unknown if a base of :func:`hullo.add_base` has a nonzero coefficient, since samples cannot bound its slope, and for
    combinations of a wave, `sin` or `snake`, with a base whose slope is not constant.

    >>> import hullo
    >>> hullo.slope_bounds([2.0, -1.0], ["identity", "tanh"])
    (1.0, 2.0)
    """
    return _for_each_row(_slope_bounds, subject, bases)


def is_monotone(
    subject: Hull | Coefficients, bases: Iterable[str | Base] | None = None
) -> bool | list[bool | None] | None:
    """Return whether the function is non-decreasing; None if that is unknown.

    Slopes down to -1e-6, or to -1e-6 times the largest coefficient if that is below one, count as rounding errors of
    the coefficients. Apart from that, the answer is as certain as :func:`slope_bounds`, and unknown where these are.

    >>> import hullo
    >>> hullo.is_monotone(hullo.ConvexHull("identity", "relu", "tanh"))
    True
    >>> hullo.is_monotone([-1.0, 2.0], ["identity", "tanh"])
    False
    >>> hullo.is_monotone([-0.02, 1.01991, 9e-5], ["asinh", "arctan", "identity"])     # decreases from 79 to 143
    False
    """
    return _for_each_row(_is_monotone, subject, bases)


def approximates_identity(subject: Hull | Coefficients, bases: Iterable[str | Base] | None = None) -> bool | list[bool]:
    """Return whether f(x) = x + o(x) at the origin: value zero and slope one from both sides.

    >>> import hullo
    >>> hullo.properties.approximates_identity(hullo.AffineHull("identity", "tanh", init=[3.0, -2.0]))
    True
    >>> hullo.properties.approximates_identity(hullo.AffineHull("identity", "relu"))
    False
    """
    return _for_each_row(_approximates_identity, subject, bases)


def identify(
    subject: Hull | Coefficients, bases: Iterable[str | Base] | None = None
) -> Base | list[Base | None] | None:
    """Return the base function of the catalogue that the combination equals, or None.

    Members of families, such as ``elu(0.5)``, are found, too. Coefficients that differ by at most 1e-6 count as equal.

    >>> import hullo
    >>> hullo.identify(hullo.ConvexHull("identity", "relu", init=[0.25, 0.75]))
    Base(leaky_relu(0.25))
    >>> hullo.identify([0.5, 0.5], ["relu", "elu"])
    Base(elu(0.5))
    """
    return _for_each_row(lambda c, resolved: same_as(c, resolved, _TOLERANCE), subject, bases)


@real_tensors()
def _for_each_row(
    question: Callable[[list[float], tuple[Base, ...]], Answer],
    subject: Hull | Coefficients,
    bases: Iterable[str | Base] | None,
) -> Answer | list[Answer]:
    if isinstance(subject, Hull):
        if bases is not None:
            raise TypeError(
                "bases are given together with a hull, which has its own; give a hull, or coefficients and bases"
            )
        if subject.inner_scale is not None:
            raise TypeError(
                "the hull has an inner scale, f(b x), which is not supported here; give coefficients and bases"
            )
        if subject.raw.is_meta:
            raise ValueError("the coefficients of the hull have no values, on the meta device; load a state first")
        resolved, rows = subject.bases, subject.coefficients.detach().double().cpu()
    elif bases is None:
        hint = "" if isinstance(subject, (Tensor, Sequence)) else "; hullo.summary(model).hulls has those of a model"
        raise TypeError(f"got a {type(subject).__name__}: give a hull, or coefficients and their bases{hint}")
    else:
        resolved, rows = resolve(bases, strict=False), torch.as_tensor(subject, dtype=torch.float64, device="cpu")
    if rows.dim() not in (1, 2) or rows.shape[-1] != len(resolved) or not bool(rows.isfinite().all()):
        shape = tuple(rows.shape)
        raise ValueError(
            f"{len(resolved)} bases need {len(resolved)} finite coefficients per row, got shape {shape}: {rows}"
        )
    if rows.dim() == 1:
        return question(rows.tolist(), resolved)
    return [question(row.tolist(), resolved) for row in rows]


def _slope_bounds(coefficients: list[float], resolved: tuple[Base, ...]) -> tuple[float, float] | None:
    bounds = extremes(coefficients, resolved)
    if bounds is None:
        return None
    digits = 10 - math.frexp(largest_slope(coefficients, resolved) or 1.0)[1] * 3 // 10
    return round(bounds[0], digits) + 0.0, round(bounds[1], digits) + 0.0


def _is_monotone(coefficients: list[float], resolved: tuple[Base, ...]) -> bool | None:
    floor = -_TOLERANCE * min(1.0, max(map(abs, coefficients)))
    bounds = extremes(coefficients, resolved)
    return None if bounds is None else bounds[0] >= floor


def _approximates_identity(coefficients: list[float], resolved: tuple[Base, ...]) -> bool:
    pairs = list(zip(coefficients, resolved, strict=True))
    slopes = [sum(c * item.slopes_at_zero[side] for c, item in pairs) for side in (0, 1)]
    value = sum(c * item.value_at_zero for c, item in pairs)
    return abs(value) < _TOLERANCE and all(abs(slope - 1) < _TOLERANCE for slope in slopes)
