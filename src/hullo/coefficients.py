"""The sets that coefficients of hulls lie in, and the parametrizations that map raw parameters into them.

A convex hull's coefficients lie in the :class:`Simplex`, an affine hull's in the :class:`Hyperplane`, a conic hull's
in the :class:`Orthant`, a linear hull's anywhere in :class:`Space`. An optimizer updates *raw* parameters without
constraints; a :class:`Parametrization` maps them into the set, so that coefficients are exact after every step of any
optimizer. No parametrization divides by something that can reach zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from hullo._compat import is_forward_mode, needs_plain_operations

_TOLERANCE = 1e-5  # on given coefficients; what is kept is exact to rounding


@dataclass(frozen=True, eq=False, repr=False)
class Parametrization:
    """Map raw parameters to coefficients; all functions act on the last dimension.

    Args:
        name: how the user chooses it.
        transform: raw parameters to coefficients, differentiable.
        inverse: coefficients to raw parameters, so that `transform(inverse(c)) = c`.
        pullback: (raw, coefficients, gradient of the coefficients) to the gradient of the raw parameters.
        fewer: how many raw parameters fewer than coefficients there are.
        restrict: (raw, gradient of the raw parameters) to the part of the gradient along which coefficients can move,
            applied to the summed gradient just before a step; None where every direction is open. See
            :mod:`hullo.boundary`.
    """

    name: str
    transform: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    pullback: Callable[[Tensor, Tensor, Tensor], Tensor]
    fewer: int = 0
    restrict: Callable[[Tensor, Tensor], Tensor] | None = None

    def __repr__(self) -> str:
        return f"Parametrization({self.name!r})"

    def __reduce__(self) -> tuple[Callable[[str], Parametrization], tuple[str]]:
        return get_parametrization, (self.name,)

    def __deepcopy__(self, memo: object) -> Parametrization:
        return self


def _centred(gradient: Tensor) -> Tensor:
    return gradient - gradient.mean(-1, keepdim=True)


def _recentre(raw: Tensor) -> Tensor:
    """c = r + (1 - sum r) / N: the nearest point of the hyperplane, argmin |c - r| subject to sum c = 1."""
    return raw - (raw.mean(-1, keepdim=True) - 1 / raw.shape[-1])


def _complete(raw: Tensor) -> Tensor:
    """c = (r, 1 - sum r): the last coefficient is what the others leave."""
    return torch.cat([raw, 1 - raw.sum(-1, keepdim=True)], dim=-1)


def _free_pullback(raw: Tensor, coefficients: Tensor, gradient: Tensor) -> Tensor:
    return gradient[..., :-1] - gradient[..., -1:]


def _softmax_pullback(raw: Tensor, coefficients: Tensor, gradient: Tensor) -> Tensor:
    return coefficients * (gradient - (coefficients * gradient).sum(-1, keepdim=True))


def nearest_in_simplex(raw: Tensor) -> Tensor:
    """c = argmin |c - r| subject to c >= 0, sum c = 1.

    The solution is c = max(r - t, 0) with t = max over k of (sum of the k largest r - 1) / k.
    """
    # A shift changes nothing; without it large numbers swallow the 1. By a whole number, small ones keep their digits.
    raw = raw - raw.amax(-1, keepdim=True).floor()
    ordered = raw.sort(dim=-1, descending=True).values
    counts = torch.arange(1, raw.shape[-1] + 1, device=raw.device, dtype=raw.dtype)
    threshold = ((ordered.cumsum(-1) - 1) / counts).amax(-1, keepdim=True)
    return (raw - threshold).clamp_min(0)


def feasible_gradient(coefficients: Tensor, gradient: Tensor) -> Tensor:
    """Return the part of a gradient along which coefficients can move without leaving the simplex.

    Descent goes along -gradient, so this is g = argmin |g - gradient| subject to sum g = 0 and g_i <= 0 wherever
    c_i = 0: a coefficient at zero moves if it would grow, and stays otherwise. Inside the simplex this is the centred
    gradient.

    The solution is g_i = gradient_i - t, clamped to at most 0 where c_i = 0, with t as in the projection: the minimum
    over k of the mean of the gradients inside and the k smallest gradients of those at zero.
    """
    inside = coefficients > 8 * torch.finfo(coefficients.dtype).eps  # a projection leaves rounding errors where zero is
    entered = torch.where(inside, -torch.inf, gradient)  # those inside count always, those at zero by their gradient
    order = entered.argsort(dim=-1)
    ordered = gradient.gather(-1, order)
    counts = torch.arange(1, gradient.shape[-1] + 1, device=gradient.device, dtype=gradient.dtype)
    means = ordered.cumsum(-1) / counts
    at_least = inside.sum(-1, keepdim=True)
    threshold = torch.where(counts >= at_least, means, torch.inf).amin(-1, keepdim=True)
    moved = gradient - threshold
    return torch.where(inside, moved, moved.clamp_max(0))


class _Projection(torch.autograd.Function):
    """Project onto the simplex; the backward pass centres the gradient.

    That is the Jacobian inside the simplex. On the boundary the Jacobian would never again give a gradient to a
    coefficient at zero. Centring is linear everywhere, so gradients of micro-batches and of processes add up to that
    of the whole batch; :mod:`hullo.boundary` restricts the sum to feasible directions before an optimizer step.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(raw: Tensor) -> Tensor:
        return nearest_in_simplex(raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save nothing: the backward pass needs the gradient alone."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _centred(gradient)


class _Clamp(torch.autograd.Function):
    """Project onto the orthant, max(r, 0); the backward pass hands the gradient on, for the reasons given above."""

    generate_vmap_rule = True

    @staticmethod
    def forward(raw: Tensor) -> Tensor:
        return raw.clamp_min(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save nothing: the backward pass needs the gradient alone."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clone()


def _with_derivative(values: Tensor, like: Tensor) -> Tensor:
    """Return values with the derivative of another tensor, as the Functions above do, in plain operations."""
    return values.detach() + (like - like.detach())


def _clamp(raw: Tensor) -> Tensor:
    if is_forward_mode():
        return raw.clamp_min(0)
    if needs_plain_operations():
        return _with_derivative(raw.clamp_min(0), raw)
    clamped: Tensor = _Clamp.apply(raw)  # type: ignore[no-untyped-call]
    return clamped


def _inverse_softplus(coefficients: Tensor) -> Tensor:
    return coefficients + (-torch.expm1(-coefficients)).log()


def _project(raw: Tensor) -> Tensor:
    if is_forward_mode():  # PyTorch drops second derivatives of a Function that has a forward derivative
        return nearest_in_simplex(raw)
    if needs_plain_operations():
        return _with_derivative(nearest_in_simplex(raw), _centred(raw))
    projected: Tensor = _Projection.apply(raw)  # type: ignore[no-untyped-call]
    return projected


_PARAMETRIZATIONS = {
    made.name: made
    for made in (
        Parametrization("given", lambda raw: raw, lambda c: c, lambda raw, c, gradient: gradient),
        Parametrization(
            "projection",
            _project,
            lambda c: c,
            lambda raw, c, gradient: _centred(gradient),
            restrict=lambda raw, gradient: feasible_gradient(nearest_in_simplex(raw), gradient),
        ),
        Parametrization("softmax", lambda raw: raw.softmax(-1), lambda c: _centred(c.log()), _softmax_pullback),
        Parametrization("recentred", _recentre, lambda c: c, lambda raw, c, gradient: _centred(gradient)),
        Parametrization("free", _complete, lambda c: c[..., :-1], _free_pullback, fewer=1),
        Parametrization(
            "clamped",
            _clamp,
            lambda c: c,
            lambda raw, c, gradient: gradient,
            restrict=lambda raw, gradient: torch.where(raw > 0, gradient, gradient.clamp_max(0)),
        ),
        Parametrization(
            "softplus", F.softplus, _inverse_softplus, lambda raw, c, gradient: gradient * -torch.expm1(-c)
        ),
    )
}


def get_parametrization(name: str) -> Parametrization:
    return _PARAMETRIZATIONS[name]


class _Set:
    """A set of coefficients with one of its parametrizations, by default the first of `choices`."""

    choices: ClassVar[tuple[str, ...]] = ()

    def __init__(self, parametrization: str | None = None) -> None:
        name = self.choices[0] if parametrization is None else parametrization
        if name not in self.choices:
            listed = " or ".join(map(repr, self.choices))
            raise ValueError(f"parametrization={name!r} is unknown for {type(self).__name__}; choose {listed}")
        self.parametrization = get_parametrization(name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parametrization.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.parametrization is other.parametrization

    def __hash__(self) -> int:
        return hash((type(self), self.parametrization.name))

    def check(self, coefficients: Tensor) -> tuple[bool, str]:
        """Return whether every row of coefficients is in the set, and if not, why."""
        ok = bool(coefficients.isfinite().all())
        return ok, "" if ok else "coefficients must be finite numbers"

    def _check_sum(self, coefficients: Tensor) -> tuple[bool, str]:
        sums = coefficients.sum(-1)
        worst = sums.flatten()[(sums - 1).abs().argmax()].item()
        ok = abs(worst - 1) <= _TOLERANCE
        return ok, "" if ok else f"coefficients must sum to one, these sum to {worst:.6g}"

    def _check_signs(self, coefficients: Tensor, hull: str, positive: str, closed: str) -> tuple[bool, str]:
        """Check that no coefficient is negative and, for a parametrization that never reaches zero, that none is."""
        least = coefficients.amin().item()
        if least < 0:
            return False, f"coefficients of a {hull} hull must not be negative, one is {least:.6g}"
        if self.parametrization is get_parametrization(positive) and least < 1e-30:
            return (
                False,
                f"{positive} never reaches zero, one is {least:.6g}; parametrization={closed!r} can start there",
            )
        return True, ""


class Hyperplane(_Set):
    """The coefficients of an affine hull: {c : sum c = 1}.

    `parametrization` is ``"recentred"``, c = r + (1 - sum r) / N, which treats all bases alike, or ``"free"``, where
    the first N - 1 coefficients are the raw parameters and the last is what they leave to one.

    >>> import torch, hullo
    >>> hullo.Hyperplane().check(torch.tensor([2.0, -1.0]))
    (True, '')
    """

    choices: ClassVar[tuple[str, ...]] = ("recentred", "free")

    def check(self, coefficients: Tensor) -> tuple[bool, str]:
        ok, reason = super().check(coefficients)
        return self._check_sum(coefficients) if ok else (ok, reason)


class Simplex(_Set):
    """The coefficients of a convex hull: {c : c >= 0, sum c = 1}.

    `parametrization` is ``"projection"``, the Euclidean projection, which reaches vertices and edges exactly and leaves
    them again when the gradient says so, or ``"softmax"``, which stays strictly inside. With both, the gradients of
    micro-batches and of processes add up to that of the whole batch. On the boundary, an optimizer of torch.optim steps
    along the part of the summed gradient that stays in the simplex.

    >>> import torch, hullo
    >>> hullo.Simplex().check(torch.tensor([2.0, -1.0]))
    (False, 'coefficients of a convex hull must not be negative, one is -1')
    """

    choices: ClassVar[tuple[str, ...]] = ("projection", "softmax")

    def check(self, coefficients: Tensor) -> tuple[bool, str]:
        ok, reason = super().check(coefficients)
        ok, reason = self._check_sum(coefficients) if ok else (ok, reason)
        return self._check_signs(coefficients, "convex", "softmax", "projection") if ok else (ok, reason)


class Orthant(_Set):
    """The coefficients of a conic hull: {c : c >= 0}.

    `parametrization` is ``"clamped"``, c = max(r, 0), which reaches zero exactly and leaves it again when the gradient
    says so, as the projection of :class:`Simplex` does, or ``"softplus"``, c = log(1 + exp(r)), which stays above zero.

    >>> import torch, hullo
    >>> hullo.Orthant().check(torch.tensor([2.0, 0.0]))
    (True, '')
    """

    choices: ClassVar[tuple[str, ...]] = ("clamped", "softplus")

    def check(self, coefficients: Tensor) -> tuple[bool, str]:
        ok, reason = super().check(coefficients)
        return self._check_signs(coefficients, "conic", "softplus", "clamped") if ok else (ok, reason)


class Space(_Set):
    """The coefficients of a linear hull: any numbers, the raw parameters themselves.

    >>> import torch, hullo
    >>> hullo.Space().check(torch.tensor([2.0, -3.0]))
    (True, '')
    """

    choices: ClassVar[tuple[str, ...]] = ("given",)
