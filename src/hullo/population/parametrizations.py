"""The parametrizations of hullo.parametrizations for rows that use different bases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hullo.parametrizations import get_parametrization

UNUSED, USED, REST = 0, 1, 2
"""The role of a base in a row: REST is the coefficient that a "free" row does not learn, one minus all others."""


def _masked_recentre(numbers: Tensor, roles: Tensor, total: float) -> Tensor:
    """Add a constant to the used numbers of each row to make them sum to `total`."""
    used = roles != UNUSED
    numbers = numbers.masked_fill(~used, 0.0)
    missing = total - numbers.sum(-1, keepdim=True)
    return (numbers + missing / used.sum(-1, keepdim=True)).masked_fill(~used, 0.0)


def _complete(raw: Tensor, roles: Tensor) -> Tensor:
    others = raw.masked_fill(roles != USED, 0.0)
    return torch.where(roles == REST, 1 - others.sum(-1, keepdim=True), others)


def _complete_pullback(raw: Tensor, coefficients: Tensor, gradient: Tensor, roles: Tensor) -> Tensor:
    rest = gradient.masked_fill(roles != REST, 0.0).sum(-1, keepdim=True)
    return (gradient - rest).masked_fill(roles != USED, 0.0)


@dataclass(frozen=True)
class _Parametrization:
    """Map raw parameters of rows to coefficients, and gradients of coefficients to gradients of raw parameters."""

    coefficients: Callable[[Tensor, Tensor], Tensor]
    pullback: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _entrywise(name: str) -> _Parametrization:
    """Return a parametrization of the library that maps each coefficient separately."""
    plain = get_parametrization(name)
    return _Parametrization(
        lambda raw, roles: plain.transform(raw).masked_fill(roles == UNUSED, 0.0),
        lambda raw, coefficients, gradient, roles: plain.pullback(raw, coefficients, gradient).masked_fill(
            roles == UNUSED, 0.0
        ),
    )


def _over_used(name: str) -> _Parametrization:
    """Return a parametrization of the library in which a raw number of -inf is an unused base."""
    plain = get_parametrization(name)
    return _Parametrization(
        lambda raw, roles: plain.transform(raw.masked_fill(roles == UNUSED, -torch.inf)),
        lambda raw, coefficients, gradient, roles: plain.pullback(
            raw, coefficients, gradient.masked_fill(roles == UNUSED, 0.0)
        ),
    )


PARAMETRIZATIONS = {
    "fixed": _Parametrization(
        lambda raw, roles: torch.zeros_like(raw), lambda raw, coefficients, gradient, roles: torch.zeros_like(gradient)
    ),
    "projection": _Parametrization(
        _over_used("projection").coefficients,
        lambda raw, coefficients, gradient, roles: _masked_recentre(gradient, roles, 0.0),
    ),
    "softmax": _over_used("softmax"),
    "recentred": _Parametrization(
        lambda raw, roles: _masked_recentre(raw, roles, 1.0),
        lambda raw, coefficients, gradient, roles: _masked_recentre(gradient, roles, 0.0),
    ),
    "free": _Parametrization(_complete, _complete_pullback),
    "given": _entrywise("given"),
    "clamped": _entrywise("clamped"),
    "softplus": _entrywise("softplus"),
}
CODES = {name: code for code, name in enumerate(PARAMETRIZATIONS)}


class Parametrize(torch.autograd.Function):
    """Map raw parameters to coefficients, each row by its own parametrization."""

    generate_vmap_rule = True

    @staticmethod
    def forward(raw: Tensor, roles: Tensor, codes: Tensor, parametrizations: Sequence[str]) -> Tensor:
        coefficients = torch.zeros_like(raw)
        for name in parametrizations:
            coefficients = torch.where(
                codes == CODES[name], PARAMETRIZATIONS[name].coefficients(raw, roles), coefficients
            )
        return coefficients

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        raw, roles, codes, ctx.parametrizations = inputs
        ctx.save_for_backward(raw, output, roles, codes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        raw, coefficients, roles, codes = ctx.saved_tensors
        result = torch.zeros_like(gradient)
        for name in ctx.parametrizations:
            pullback = PARAMETRIZATIONS[name].pullback(raw, coefficients, gradient, roles)
            result = torch.where(codes == CODES[name], pullback, result)
        return result, None, None, None
