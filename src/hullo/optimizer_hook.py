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
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from hullo._compat import copy_each, gather, is_sharded, shard_like
from hullo.parametrizations import Parametrization

_watched: weakref.WeakSet[Any] = weakref.WeakSet()


def watch(owner: Any) -> None:
    """Restrict the gradients of raw parameters before every optimizer step, as long as their owner exists.

    The owner is a hull, or holds the raw parameters of many as `raw`, with a method `feasible_gradient`.
    """
    _watched.add(owner)
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
    owners = dict(_owners())
    batches: dict[tuple[Parametrization, int, torch.device, torch.dtype, int], list[Tensor]] = defaultdict(list)
    for group in optimizer.param_groups:
        sign = -1 if group.get("maximize") else 1  # of the descent
        for raw in group["params"]:
            owner = owners.get(id(raw)) if raw.grad is not None else None
            if isinstance(owner, Parametrization) and not is_sharded(raw):
                batches[owner, sign, raw.device, raw.dtype, raw.shape[-1]].append(raw)  # which take one call
            elif owner is not None:
                descent = sign * gather(raw.grad)
                is_hull = isinstance(owner, Parametrization)
                feasible = owner.restrict(gather(raw), descent) if is_hull else owner.feasible_gradient(descent)
                raw.grad.copy_(shard_like(sign * feasible, raw.grad))
    for (parametrization, sign, _, _, bases), raws in batches.items():
        gradients = [raw.grad.view(-1, bases) for raw in raws if raw.grad is not None]
        rows, descent = torch.cat([raw.view(-1, bases) for raw in raws]), torch.cat(gradients)
        feasible = sign * parametrization.restrict(rows, sign * descent)  # type: ignore[misc]
        copy_each(gradients, torch.split(feasible, [len(gradient) for gradient in gradients]))


def _owners() -> Iterator[tuple[int, Any]]:
    """Yield the ids of raw parameters to restrict, and the parametrization of their hull, or what holds many."""
    for owner in _watched:
        if hasattr(owner, "feasible_gradient"):
            yield id(owner.raw), owner
        elif hasattr(owner, "parametrization"):  # a hull that is made completely
            raw = owner._parameters.get(owner.raw_name)
            # a shard of a flattened parameter has another shape, and not all coefficients of a row
            if raw is not None and raw.shape == owner.shape:
                yield id(raw), owner.parametrization
