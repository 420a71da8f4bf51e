"""Coefficients of hulls: the sets they lie in, raw parameters of given ones, and read-only values.

A convex hull's coefficients lie in a simplex, an affine hull's in a hyperplane, a conic hull's in an orthant, a linear
hull's anywhere. A parametrization (:mod:`hullo.parametrizations`) maps the raw parameters of an optimizer into the set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hullo._compat import are_transforms_active, is_intercepted, without_torch_function
from hullo.parametrizations import BuiltInParametrization, Parametrization, get_parametrization

_TOLERANCE = 1e-5  # on the sum of given coefficients, relative to the largest; those of a hull are exact up to rounding


@dataclass(frozen=True)
class CoefficientSet:
    """A set of coefficients, and the names of its parametrizations.

    The first is the default; the second never reaches zero, if coefficients are not negative.
    """

    choices: tuple[str, ...]
    sums_to_one: bool = False
    is_nonnegative: bool = False

    def read_parametrization(self, given: str | Parametrization | None) -> Parametrization:
        """Return the parametrization of a name, a user's own, or the default."""
        if isinstance(given, Parametrization) and not isinstance(given, BuiltInParametrization):
            return given
        name = self.choices[0] if given is None else getattr(given, "name", given)
        if name not in self.choices:
            listed = ", ".join(map(repr, self.choices))
            raise ValueError(
                f"invalid parametrization {given!r}; valid are {listed} and instances of "
                "hullo.parametrizations.Parametrization"
            )
        return get_parametrization(name)

    def describe_violation(self, coefficients: Tensor, parametrization: str = "") -> str:
        """Return why a row of coefficients is not in the set, or is out of reach of a parametrization; or ""."""
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
        if self.is_nonnegative and least < 1e-300 and parametrization == self.choices[1]:
            closed = self.choices[0]
            return (
                f"{parametrization} never reaches zero, one is {least:.6g}; parametrization={closed!r} can start there"
            )
        return ""


SIMPLEX = CoefficientSet(("projection", "softmax"), sums_to_one=True, is_nonnegative=True)
HYPERPLANE = CoefficientSet(("recentred", "free"), sums_to_one=True)
ORTHANT = CoefficientSet(("clamped", "softplus"), is_nonnegative=True)
SPACE = CoefficientSet(("given",))


def invert(parametrization: Parametrization, coefficients: Tensor, allowed: CoefficientSet) -> Tensor:
    """Return raw parameters of coefficients; check that a user's parametrization maps them back and stays in the set.

    Raises:
        ValueError: the parametrization cannot represent the coefficients, or leaves the set near them.
    """
    raw = parametrization.inverse(coefficients)
    if isinstance(parametrization, BuiltInParametrization):
        return raw
    expected = (*coefficients.shape[:-1], coefficients.shape[-1] - parametrization.fewer)
    back = parametrization.transform(raw)
    fits = tuple(raw.shape) == expected and back.shape == coefficients.shape and bool(raw.isfinite().all())
    if not fits or (back - coefficients).abs().max() > _TOLERANCE:
        raise ValueError(
            f"{parametrization!r} cannot represent coefficients {coefficients.tolist()}: inverse gives {raw.tolist()}, "
            f"and transform of that {back.tolist()}, with fewer={parametrization.fewer}; choose other coefficients, or "
            "correct transform, inverse and fewer"
        )
    moved = raw + 0.3 * torch.arange(1, raw.shape[-1] + 1).to(raw).sin()  # as an optimizer step might
    if reason := allowed.describe_violation(parametrization.transform(moved)):
        raise ValueError(
            f"{parametrization!r} leaves the set of the hull: transform of {moved.tolist()} gives "
            f"{parametrization.transform(moved).tolist()}; {reason}"
        )
    return raw


class ReadOnly(Tensor):
    """A tensor that cannot be changed in place; operations on it return ordinary tensors."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__setitem__" or (name.endswith("_") and not name.startswith("_")):
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
