"""Find out whether copies of a module have its children, where its class has a say in how it is copied."""

from __future__ import annotations

import copy
import threading
import types
from typing import Any

from torch import Tensor, nn

from hullo.surgery.rewrite.write import rewritten
from hullo.surgery.untouched import collect

_PROBE = "_hullo_probe"
_SHARED = (type(threading.Lock()), type(threading.RLock()), types.ModuleType)
_HOOKS = ("__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of a model.

    What copy.deepcopy refuses is copied too: locks and Python modules are shared, tensors with a history lose it.

    Raises:
        TypeError: something in it cannot be copied.
    """
    found: dict[int, Any] = {}
    for module in model.modules():
        collect(vars(module), found)
    shared = [thing for module in model.modules() for thing in vars(module).values() if isinstance(thing, _SHARED)]
    memo: dict[int, Any] = {id(thing): thing for thing in shared}
    for thing in found.values():
        if isinstance(thing, Tensor) and not thing.is_leaf:
            memo[id(thing)] = thing.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise TypeError(f"the model cannot be copied{_culprit(model, memo)}: {error}") from error


def _culprit(model: nn.Module, memo: dict[int, Any]) -> str:
    """Name the attribute that makes it impossible to copy a model, if it is one."""
    for name, module in model.named_modules():
        for attribute, thing in vars(module).items():
            try:
                copy.deepcopy(thing, dict(memo) | {id(child): child for child in model.modules()})
            except Exception:
                return f" because of {'.'.join(part for part in (name, attribute) if part)}"
    return ""


def has_own_copies(module: nn.Module) -> bool:
    """Return whether somebody's class, not PyTorch's, has a say in how a module is copied or pickled."""
    homes = [
        cls for cls in type(module).__mro__ if cls.__module__.partition(".")[0] not in ("torch", "builtins", "hullo")
    ]
    return any(name in vars(cls) for cls in homes for name in _HOOKS)


def loses_children(module: nn.Module) -> str:
    """Return how copies of a module lose a child that it is given; empty if they keep it, or there are no copies."""
    if not has_own_copies(module):
        return ""
    for way in (copy.deepcopy, _reduced):
        if _survives(module, way) is False:
            return f"copies of {type(module).__qualname__} are made anew by its own code, without a hull"
    return ""


def _survives(module: nn.Module, way: Any) -> bool | None:
    """Return whether a child survives; None if the module cannot be copied at all."""
    shared = {id(item): item for item in [*module.parameters(), *module.buffers()]}
    children, cls, attributes = dict(module._modules), type(module), dict(vars(module))
    memo = {**shared, **{id(child): child for child in children.values()}}
    try:
        way(module, dict(memo))
    except Exception:  # it cannot be copied as it is
        return None
    try:
        module.__class__ = rewritten(module, {})
        module._modules[_PROBE] = nn.Identity()
        return _PROBE in way(module, dict(memo))._modules
    except Exception:
        return False
    finally:
        module.__class__ = cls
        vars(module).clear()
        vars(module).update(attributes)
        module._modules.clear()
        module._modules.update(children)


def _reduced(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a copy by way of what pickle would keep."""
    reduced: Any = module.__reduce_ex__(4)
    made: nn.Module = reduced[0](*reduced[1])
    if len(reduced) > 2 and isinstance(reduced[2], dict):
        made.__setstate__({name: copy.copy(item) for name, item in reduced[2].items()})  # type: ignore[no-untyped-call]
    return made
