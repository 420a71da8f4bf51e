"""Warn about optimizers that do not update the coefficients of a model."""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hullo.surgery.sites import named_hulls

_STEPS = 3  # by then, other optimizers of the same training have taken a step

_waiting: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]] = weakref.WeakKeyDictionary()
"""Number of steps that updated a model but no hull, and versions of the raw parameters at the first, by model."""


def expect_optimizer(model: nn.Module) -> None:
    """Warn if an optimizer updates weights of the model for several steps, but no optimizer updates its hulls.

    An optimizer updates the parameters that it was constructed with; one constructed before `replace_activations` does
    not have the hulls. Optimizers of other libraries run no hooks; their updates show in the version counters.
    """
    _waiting[model] = 0, 0
    _register()


@functools.cache
def _register() -> None:
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for model, (steps, version_before) in list(_waiting.items()):
        raw = {name or "the model": hull.raw for name, hull in named_hulls("", model).items()}
        version = sum(item._version for item in raw.values())
        late = [name for name, item in raw.items() if item.is_leaf and item.grad is not None]
        if any(id(item) in updated for item in raw.values()) or (steps and version != version_before):
            del _waiting[model]
        elif late and not updated.isdisjoint(map(id, model.parameters())):
            _waiting[model] = steps + 1, version
            if steps + 1 == _STEPS:
                del _waiting[model]
                _warn(late)


def _warn(names: list[str]) -> None:
    listed = ", ".join(names[:3]) + (", ..." if names[3:] else "")
    warnings.warn(
        f"the optimizer updates the model but not the coefficients of {len(names)} hull{'s' * (len(names) > 1)} "
        f"({listed}): it was made before replace_activations, or without them. Make it afterwards, or call "
        "optimizer.add_param_group({'params': hullo.coefficient_parameters(model), 'weight_decay': 0.0}). To train the "
        "weights alone, freeze the hulls with requires_grad_(False)",
        stacklevel=4,
    )
