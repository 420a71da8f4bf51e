"""Notice optimizers that update a model's weights and not the coefficients of its hulls.

An optimizer updates the parameters that it was given when it was made; one made before `replace_activations` does not
know the hulls. That shows only when it steps: the hulls have gradients that no optimizer takes.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from hullo.modules import Hull

_STEPS = 3  # of one optimizer; by then, others of the same training have stepped, too

_pending: weakref.WeakKeyDictionary[Hull, weakref.ref[nn.Module]] = weakref.WeakKeyDictionary()  # hulls and models
_steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()


def expect_optimizer(model: nn.Module, hulls: Iterable[Hull]) -> None:
    """Warn if hulls of a model get gradients that no optimizer takes, while one updates other parameters of it."""
    for hull in hulls:
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
    _steps[optimizer] = _steps.get(optimizer, 0) + 1
    if _steps[optimizer] < _STEPS:
        return
    for model in {ref() for ref in _pending.values()} - {None}:
        _check(model, updated)


def _check(model: Any, updated: set[int]) -> None:
    hulls = {name: module for name, module in model.named_modules() if isinstance(module, Hull) and module in _pending}
    missed = [name or "the model" for name, hull in hulls.items() if hull.raw.is_leaf and hull.raw.grad is not None]
    if not missed or updated.isdisjoint(map(id, model.parameters())):
        return
    for hull in hulls.values():
        del _pending[hull]
    named = ", ".join(missed[:3]) + (", ..." if missed[3:] else "")
    warnings.warn(
        f"the optimizer updates the model but not the coefficients of {len(missed)} hulls ({named}): it was made "
        "before replace_activations, or without them. Make it afterwards, or call optimizer.add_param_group({'params': "
        "hullo.coefficient_parameters(model), 'weight_decay': 0.0}). To train the weights alone, freeze the hulls with "
        "requires_grad_(False)",
        stacklevel=4,
    )
