"""Restrict gradients before each optimizer step, on the boundary of the simplex and of the orthant.

With the parametrizations "projection" and "clamped", the gradient of the raw parameters is linear in the gradient of
the coefficients, so gradients of micro-batches and of processes add up to that of the whole batch. On the boundary, a
step along this gradient would move raw parameters ever further outside, where they no longer change the
coefficients. So before every step of an optimizer of torch.optim, the accumulated gradient is restricted to the
directions in which the coefficients can move, by the `restrict` of a :class:`hullo.parametrizations.Parametrization`.

An optimizer that is not a :class:`torch.optim.Optimizer` does not call this hook. Coefficients then still lie in the
set, but one that has reached zero grows again only after its raw parameter has become positive.
"""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from hullo._compat import copy_each, gather, is_sharded, shard_like
from hullo.parametrizations import Parametrization

if TYPE_CHECKING:
    from hullo.modules import Hull

_watched: weakref.WeakSet[Hull] = weakref.WeakSet()
_tables: weakref.WeakSet[Table] = weakref.WeakSet()


class Table(Protocol):
    """Raw parameters of many hulls in one tensor, whose rows may have different parametrizations."""

    raw: Tensor

    def feasible_gradient(self, gradient: Tensor) -> Tensor:
        """Restrict a gradient of `raw` to directions in which coefficients can move."""


def watch_table(table: Table) -> None:
    """Restrict the gradients of a table before every optimizer step, as long as it exists."""
    _tables.add(table)
    _register()


def watch(hull: Hull) -> None:
    """Restrict the gradients of a hull's raw parameters before every optimizer step, as long as the hull exists."""
    _watched.add(hull)
    _register()


@functools.cache
def _register() -> None:
    register_optimizer_step_pre_hook(_before_step)


def _before_step(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Restrict the gradients of a step, or of each call of the closure that a step is given."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        _restrict_gradients(optimizer)
        return None

    @functools.wraps(closure)
    def restricted() -> Any:
        loss = closure()
        _restrict_gradients(optimizer)
        return loss

    return args[:1], kwargs | {"closure": restricted}


@torch.no_grad()
def _restrict_gradients(optimizer: Optimizer) -> None:
    tables = {id(table.raw): table for table in _tables}
    for parameter, sign in _parameters(optimizer):
        if (table := tables.get(id(parameter))) is not None and parameter.grad is not None:
            parameter.grad.copy_(sign * table.feasible_gradient(sign * parameter.grad))
    batches: dict[tuple[Parametrization, int, torch.device, torch.dtype, int], list[Tensor]] = defaultdict(list)
    for raw, parametrization, sign in _restricted(optimizer):
        if is_sharded(raw):
            feasible = parametrization.restrict(gather(raw), sign * gather(raw.grad))  # type: ignore[arg-type, misc]
            raw.grad.copy_(shard_like(sign * feasible, raw.grad))  # type: ignore[arg-type, union-attr]
        else:
            batches[parametrization, sign, raw.device, raw.dtype, raw.shape[-1]].append(raw)
    for (parametrization, sign, _, _, bases), raws in batches.items():
        gradients = [raw.grad.view(-1, bases) for raw in raws if raw.grad is not None]
        rows, descent = torch.cat([raw.view(-1, bases) for raw in raws]), torch.cat(gradients)
        feasible = parametrization.restrict(rows, descent if sign > 0 else -descent)  # type: ignore[misc]
        feasible = feasible if sign > 0 else -feasible
        copy_each(gradients, torch.split(feasible, [len(gradient) for gradient in gradients]))


def _restricted(optimizer: Optimizer) -> Iterator[tuple[Tensor, Parametrization, int]]:
    """Yield the raw parameters with gradients to restrict, in the optimizer's order, and the sign of the descent."""
    hulls = {id(hull._parameters.get(hull.raw_name)): hull for hull in _watched if hasattr(hull, "constraint")}
    for raw, sign in _parameters(optimizer):
        hull = hulls.get(id(raw))
        # a shard of a flattened parameter has another shape, and not all coefficients of a row
        if hull and hull.constraint.parametrization.restrict and raw.grad is not None and raw.shape == hull.shape:
            yield raw, hull.constraint.parametrization, sign


def _parameters(optimizer: Optimizer) -> Iterator[tuple[Tensor, int]]:
    """Yield the parameters of an optimizer, in its order, and the sign of the descent."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter, -1 if group.get("maximize") else 1
