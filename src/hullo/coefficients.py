"""Sets of coefficients, one per kind of hull.

A convex hull's coefficients lie in the :class:`Simplex`, an affine hull's in the :class:`Hyperplane`, a conic hull's
in the :class:`Orthant`, a linear hull's anywhere in :class:`Space`. A parametrization
(:mod:`hullo.parametrizations`) maps the raw parameters of an optimizer into the set.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from hullo._compat import are_transforms_active, is_intercepted, without_torch_function
from hullo.parametrizations import BuiltInParametrization, Parametrization, get_parametrization

_TOLERANCE = 1e-5  # on the sum of given coefficients, relative to the largest; those of a hull are exact up to rounding


class _Set:
    """A set of coefficients with one of its parametrizations, by default the first of `choices`."""

    choices: ClassVar[tuple[str, ...]]  # the second one never reaches zero, if coefficients are not negative
    sums_to_one: ClassVar[bool] = False
    is_nonnegative: ClassVar[bool] = False
    parametrization: Parametrization

    def __init__(self, parametrization: str | Parametrization | None = None) -> None:
        chosen = self.choices[0] if parametrization is None else parametrization
        if isinstance(chosen, BuiltInParametrization):
            chosen = chosen.name
        if isinstance(chosen, Parametrization):
            self.parametrization = chosen
            return
        if chosen not in self.choices:
            listed = ", ".join(map(repr, self.choices))
            raise ValueError(
                f"invalid parametrization {chosen!r} for {type(self).__name__}; valid are {listed} and instances of "
                "hullo.parametrizations.Parametrization"
            )
        self.parametrization = get_parametrization(chosen)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parametrization.name!r})"

    def check(self, coefficients: Tensor) -> tuple[bool, str]:
        """Return whether every row of coefficients is in the set, and if not, why."""
        reason = self._describe_violation(coefficients)
        return not reason, reason

    def _describe_violation(self, coefficients: Tensor) -> str:
        if not bool(coefficients.isfinite().all()):
            return "coefficients must be finite numbers"
        if self.sums_to_one:
            sums = coefficients.sum(-1)
            worst = sums.flatten()[(sums - 1).abs().argmax()].item()
            if abs(worst - 1) > _TOLERANCE * max(1.0, coefficients.abs().amax().item()):
                return f"coefficients must sum to one, these sum to {worst:.6g}"
        least = coefficients.amin().item()
        if self.is_nonnegative and least < 0:
            return f"coefficients must not be negative, one is {least:.6g}"
        if self.is_nonnegative and least < 1e-300 and self.parametrization.name == self.choices[1]:
            closed = self.choices[0]
            return (
                f"{self.choices[1]} never reaches zero, one is {least:.6g}; parametrization={closed!r} can start there"
            )
        return ""


class Hyperplane(_Set):
    """The coefficients of an affine hull: {c : sum c = 1}.

    `parametrization` is ``"recentred"``, c = r + (1 - sum r) / N, which treats all bases alike, or ``"free"``, where
    the first N - 1 coefficients are the raw parameters and the last is one minus their sum.

    >>> import torch, hullo
    >>> hullo.coefficients.Hyperplane().check(torch.tensor([2.0, -1.0]))
    (True, '')
    """

    choices, sums_to_one = ("recentred", "free"), True


class Simplex(_Set):
    """The coefficients of a convex hull: {c : c >= 0, sum c = 1}.

    `parametrization` is ``"projection"``, the Euclidean projection, which reaches vertices and edges exactly and can
    leave them again, or ``"softmax"``, which stays strictly inside. With both, the gradients of micro-batches and of
    processes add up to that of the whole batch. On the boundary, an optimizer of torch.optim steps along the part of
    the summed gradient that stays in the simplex.

    >>> import torch, hullo
    >>> hullo.coefficients.Simplex().check(torch.tensor([2.0, -1.0]))
    (False, 'coefficients must not be negative, one is -1')
    """

    choices, sums_to_one, is_nonnegative = ("projection", "softmax"), True, True


class Orthant(_Set):
    """The coefficients of a conic hull: {c : c >= 0}.

    `parametrization` is ``"clamped"``, c = max(r, 0), which reaches zero exactly and can leave it again, as the
    projection of :class:`Simplex` does, or ``"softplus"``, c = log(1 + exp(r)), which stays above zero.

    >>> import torch, hullo
    >>> hullo.coefficients.Orthant().check(torch.tensor([2.0, 0.0]))
    (True, '')
    """

    choices, is_nonnegative = ("clamped", "softplus"), True


class Space(_Set):
    """The coefficients of a linear hull: any numbers, the raw parameters themselves.

    >>> import torch, hullo
    >>> hullo.coefficients.Space().check(torch.tensor([2.0, -3.0]))
    (True, '')
    """

    choices = ("given",)


def invert(constraint: _Set, coefficients: Tensor) -> Tensor:
    """Return raw parameters of coefficients; check that a user's parametrization maps them back and stays in the set.

    Raises:
        ValueError: the parametrization cannot represent the coefficients, or leaves the set near them.
    """
    chosen = constraint.parametrization
    raw = chosen.inverse(coefficients)
    if isinstance(chosen, BuiltInParametrization):
        return raw
    expected = (*coefficients.shape[:-1], coefficients.shape[-1] - chosen.fewer)
    if tuple(raw.shape) != expected:
        raise ValueError(
            f"invalid {chosen!r}: inverse maps coefficients of shape {tuple(coefficients.shape)} to raw parameters of "
            f"shape {tuple(raw.shape)}, expected {expected}; set fewer={coefficients.shape[-1] - raw.shape[-1]}"
        )
    back = chosen.transform(raw)
    if not raw.isfinite().all() or back.shape != coefficients.shape or (back - coefficients).abs().max() > _TOLERANCE:
        raise ValueError(
            f"{chosen!r} cannot represent coefficients {coefficients.tolist()}: inverse gives {raw.tolist()}, and "
            f"transform of that {back.tolist()}; choose other coefficients, or correct transform and inverse"
        )
    moved = raw + 0.3 * torch.arange(1, raw.shape[-1] + 1).to(raw).sin()  # as an optimizer step might
    ok, reason = constraint.check(chosen.transform(moved))
    if not ok:
        raise ValueError(
            f"{chosen!r} leaves the set of {constraint!r}: transform of {moved.tolist()} gives "
            f"{chosen.transform(moved).tolist()}; {reason}"
        )
    return raw


class ReadOnly(Tensor):
    """A tensor that cannot be changed in place; operations on it return ordinary tensors."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name.startswith("__i") and hasattr(Tensor, f"__{name[3:]}"):
            func = getattr(Tensor, f"__{name[3:]}")  # c *= 2 makes a new tensor: c = c * 2
        elif name == "__setitem__" or (name.endswith("_") and not name.startswith("_")):
            raise TypeError(
                "coefficients are computed from the raw parameters of a hull and cannot be changed in place; assign "
                "all of them, as in hull.coefficients = [0.5, 0.5], or change a copy, hull.coefficients.clone()"
            )
        with without_torch_function():
            return func(*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.as_subclass(Tensor))


def read_only(tensor: Tensor) -> Tensor:
    """Return a copy that cannot be changed in place; the tensor itself where code is traced."""
    if torch.compiler.is_compiling() or are_transforms_active() or is_intercepted(tensor):
        return tensor
    return tensor.clone().as_subclass(ReadOnly)
