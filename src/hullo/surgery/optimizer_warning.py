"""Warn about optimizers that do not update the coefficients of a model."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections import defaultdict
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hullo.modules import Hull
from hullo.surgery.sites import named_hulls

_STEPS = 3  # per optimizer; by then, other optimizers of the same training have taken a step

_pending: weakref.WeakKeyDictionary[Hull, weakref.ref[nn.Module]] = weakref.WeakKeyDictionary()  # hull to its model
_Steps = weakref.WeakKeyDictionary[Hull, tuple[int, int]]  # number of steps, version of the raw parameter at the first
_seen: weakref.WeakKeyDictionary[Optimizer, _Steps] = weakref.WeakKeyDictionary()


def expect_optimizer(model: nn.Module) -> None:
    """Warn if an optimizer updates weights of the model for several steps, but no optimizer updates its hulls.

    An optimizer updates the parameters that it was constructed with; one constructed before `replace_activations` does
    not have the hulls. Optimizers of other libraries run no hooks; their updates show in the version counters.
    """
    for hull in named_hulls("", model).values():
        _pending[hull] = weakref.ref(model)
    _register()


@functools.cache
def _register() -> None:
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not _pending:
        return
    updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for hull in [hull for hull in _pending if id(hull.raw) in updated]:
        del _pending[hull]
    steps = _seen.setdefault(optimizer, weakref.WeakKeyDictionary())
    late: dict[nn.Module, set[Hull]] = defaultdict(set)
    for hull, model in [(hull, reference()) for hull, reference in _pending.items()]:
        if model is not None and hull.raw.is_leaf and hull.raw.grad is not None:
            count, version = steps.get(hull, (0, hull.raw._version))
            steps[hull] = count + 1, version
            if count + 1 >= _STEPS and hull.raw._version == version:
                late[model].add(hull)
    for model, hulls in late.items():
        if not updated.isdisjoint(map(id, model.parameters())):
            _warn([name or "the model" for name, hull in named_hulls("", model).items() if hull in hulls])
            for hull in [hull for hull, reference in _pending.items() if reference() is model]:
                del _pending[hull]


def _warn(names: list[str]) -> None:
    listed = ", ".join(names[:3]) + (", ..." if names[3:] else "")
    warnings.warn(
        f"the optimizer updates the model but not the coefficients of {len(names)} hull{'s' * (len(names) > 1)} "
        f"({listed}): it was made before replace_activations, or without them. Make it afterwards, or call "
        "optimizer.add_param_group({'params': hullo.coefficient_parameters(model), 'weight_decay': 0.0}). To train the "
        "weights alone, freeze the hulls with requires_grad_(False)",
        stacklevel=4,
    )
