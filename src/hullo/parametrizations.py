"""Parametrizations: differentiable maps from raw parameters, which an optimizer updates, to coefficients in a set.

An optimizer updates *raw* parameters without constraints; a :class:`Parametrization` maps them into the set of the hull
(:mod:`hullo.coefficients`): coefficients are exact after every step of any optimizer. No built-in
parametrization divides by something that can reach zero.

A built-in parametrization has a formula in functions that PyTorch and :mod:`hullo.keras.arithmetic` both have, and a
form in each of the fused kernels: :mod:`hullo.kernels.parametrization_code` and
:mod:`hullo.population.kernels.parametrize`.
A user's parametrization runs as PyTorch code before the kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

Transform = Callable[[Tensor], Tensor]


class Parametrization:
    r"""A map from raw parameters, which an optimizer updates freely, to the coefficients of a hull.

    Pass an instance as `parametrization` of a hull. Its functions act on the last dimension of a tensor of any number
    of dimensions.

    Args:
        name: lower-case letters and digits, part of the names in a state_dict; not the name of a built-in
            parametrization.
        transform: raw parameters to coefficients, for all finite raw parameters. Autograd differentiates it.
        inverse: coefficients to raw parameters; ``transform(inverse(c))`` is c.
        fewer: the number of coefficients minus the number of raw parameters.
        restrict: (raw, gradient of the raw parameters) to the part of the gradient along which the coefficients can
            change, applied to the accumulated gradient before each step of an optimizer of torch.optim.

    Example:
        >>> import torch, hullo
        >>> spherical = hullo.parametrizations.Parametrization(  # c = r^2 / |r|^2
        ...     "spherical", lambda r: r.square() / r.square().sum(-1, keepdim=True), torch.sqrt
        ... )
        >>> hullo.ConvexHull("identity", "relu", init=[0.25, 0.75], parametrization=spherical)
        ConvexHull(identity=0.25, relu=0.75, parametrization='spherical')
    """

    def __init__(
        self,
        name: str,
        transform: Transform,
        inverse: Transform,
        *,
        fewer: int = 0,
        restrict: Callable[..., Any] | None = None,
    ) -> None:
        if not isinstance(name, str) or not re.fullmatch("[a-z][a-z0-9]*", name):
            raise ValueError(f"invalid name {name!r} of a parametrization; use lower-case letters and digits")
        if name in _BUILT_IN and not isinstance(self, BuiltInParametrization):
            raise ValueError(f"{name!r} is the name of a built-in parametrization; choose another name")
        for key, given in (("transform", transform), ("inverse", inverse)):
            if not callable(given):
                raise TypeError(f"parametrization {name!r} has {key}={given!r}; give a function of a tensor")
        self.name, self.transform, self.inverse = name, transform, inverse
        self.fewer, self.restrict = fewer, restrict

    def __repr__(self) -> str:
        return f"Parametrization({self.name!r})"


class BuiltInParametrization(Parametrization):
    """A parametrization that the kernels compute themselves.

    Args:
        formula: raw parameters to coefficients. Like `restrict`, it takes the functions to use as the argument `ops`.
        pullback: (raw, coefficients, gradient of the coefficients) to the gradient of the raw parameters.
        transform: the formula with another derivative.
    """

    def __init__(
        self,
        name: str,
        formula: Callable[..., Any],
        inverse: Transform,
        pullback: Callable[[Tensor, Tensor, Tensor], Tensor],
        *,
        transform: Transform | None = None,
        fewer: int = 0,
        restrict: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(name, transform or formula, inverse, fewer=fewer, restrict=restrict)
        self.formula, self.pullback = formula, pullback

    def __reduce__(self) -> tuple[Callable[[str], BuiltInParametrization], tuple[str]]:
        return get_parametrization, (self.name,)


_BUILT_IN: dict[str, BuiltInParametrization] = {}


def _centred(gradient: Tensor) -> Tensor:
    return gradient - gradient.mean(-1, keepdim=True)


def _recentre(raw: Any, ops: Any = torch) -> Any:
    """Compute c = r + (1 - sum r) / N: the nearest point of the hyperplane, argmin |c - r| subject to sum c = 1."""
    return raw - (ops.mean(raw, -1, keepdims=True) - 1 / raw.shape[-1])


def _complete(raw: Any, ops: Any = torch) -> Any:
    """Compute c = (r, 1 - sum r): the last coefficient completes the sum to one."""
    return ops.cat([raw, 1 - ops.sum(raw, -1, keepdims=True)], -1)


def _free_pullback(raw: Tensor, coefficients: Tensor, gradient: Tensor) -> Tensor:
    return gradient[..., :-1] - gradient[..., -1:]


def _softmax_pullback(raw: Tensor, coefficients: Tensor, gradient: Tensor) -> Tensor:
    return coefficients * (gradient - (coefficients * gradient).sum(-1, keepdim=True))


def nearest_in_simplex(raw: Any, ops: Any = torch) -> Any:
    """Compute c = argmin |c - r| subject to c >= 0, sum c = 1.

    The solution is c = max(r - t, 0) with t = max over k of (sum of the k largest r - 1) / k.
    """
    # A shift does not change the result, and keeps large numbers from absorbing the 1; an integer shift is exact.
    raw = raw - ops.floor(ops.amax(raw, -1, keepdims=True))
    ordered = ops.sort(raw, dim=-1, descending=True)[0]
    counts = ops.cumsum(ops.ones_like(raw), -1)
    threshold = ops.amax((ops.cumsum(ordered, -1) - 1) / counts, -1, keepdims=True)
    return ops.relu(raw - threshold)


def feasible_gradient(coefficients: Any, gradient: Any, ops: Any = torch) -> Any:
    """Return the part of a gradient along which coefficients can move without leaving the simplex.

    Descent goes along -gradient, so this is g = argmin |g - gradient| subject to sum g = 0 and g_i <= 0 wherever
    c_i = 0: a coefficient at zero moves if it would grow, and stays otherwise. Inside the simplex this is the centered
    gradient.

    The solution is g_i = gradient_i - t, clamped to at most 0 where c_i = 0, with t as in the projection: the minimum
    over k of the mean of the gradients inside and the k smallest gradients of those at zero.
    """
    inside = coefficients > 8 * ops.finfo(coefficients.dtype).eps  # above the rounding errors of a projection
    entered = ops.where(inside, -math.inf, gradient)  # those inside come first, then those at zero by gradient
    ordered = ops.gather(gradient, -1, ops.argsort(entered, -1))
    ones = ops.ones_like(gradient)
    counts, least = ops.cumsum(ones, -1), ops.sum(ops.where(inside, ones, 0.0), -1, keepdims=True)
    means = ops.where(counts >= least, ops.cumsum(ordered, -1) / counts, math.inf)
    moved = gradient - ops.amin(means, -1, keepdims=True)
    return ops.where(inside, moved, ops.clamp_max(moved, 0))


def _replace_gradient(coefficients: Tensor, linear: Tensor) -> Tensor:
    """Return the coefficients, with the derivative of a linear map of the raw parameters.

    For a projection, that is its Jacobian inside the set. On the boundary the Jacobian would never again give a
    gradient to a coefficient at zero. A linear map has the same derivative everywhere, so gradients of micro-batches
    and of processes add up to that of the whole batch; :mod:`hullo.optimizer_hook` restricts the sum to feasible
    directions before an optimizer step.
    """
    return coefficients.detach() + (linear - linear.detach())


_BUILT_IN |= {
    parametrization.name: parametrization
    for parametrization in (
        BuiltInParametrization("given", lambda raw, ops=None: raw, lambda c: c, lambda raw, c, gradient: gradient),
        BuiltInParametrization(
            "projection",
            nearest_in_simplex,
            lambda c: c,
            lambda raw, c, gradient: _centred(gradient),
            transform=lambda raw: _replace_gradient(nearest_in_simplex(raw), _centred(raw)),
            restrict=lambda raw, gradient, ops=torch: feasible_gradient(nearest_in_simplex(raw, ops), gradient, ops),
        ),
        BuiltInParametrization(
            "softmax", lambda raw, ops=torch: ops.softmax(raw, -1), lambda c: _centred(c.log()), _softmax_pullback
        ),
        BuiltInParametrization("recentred", _recentre, lambda c: c, lambda raw, c, gradient: _centred(gradient)),
        BuiltInParametrization("free", _complete, lambda c: c[..., :-1], _free_pullback, fewer=1),
        BuiltInParametrization(
            "clamped",
            lambda raw, ops=torch: ops.relu(raw),
            lambda c: c,
            lambda raw, c, gradient: gradient,
            transform=lambda raw: _replace_gradient(raw.clamp_min(0), raw),
            restrict=lambda raw, gradient, ops=torch: ops.where(raw > 0, gradient, ops.clamp_max(gradient, 0)),
        ),
        BuiltInParametrization(
            "softplus",
            lambda raw, ops=F: ops.softplus(raw),
            lambda c: c + (-torch.expm1(-c)).log(),
            lambda raw, c, gradient: gradient * -torch.expm1(-c),
        ),
    )
}


def get_parametrization(name: str) -> BuiltInParametrization:
    """Return a built-in parametrization."""
    return _BUILT_IN[name]


def evaluate(parametrization: Parametrization, raw: Tensor) -> Tensor:
    """Return coefficients in the precision of the raw parameters, also under autocast."""
    if isinstance(raw, fx.Proxy) or raw.is_meta or not torch.is_autocast_enabled(raw.device.type):
        return parametrization.transform(raw)
    with torch.autocast(raw.device.type, enabled=False):
        return parametrization.transform(raw)
