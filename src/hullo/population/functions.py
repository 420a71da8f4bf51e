"""Functions in the attributes and hooks of a network, and what they refer to."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from hullo.population.sites import BOOKKEEPING


def functions_of(network: nn.Module) -> list[Any]:
    """Return the functions and methods in attributes and forward hooks of all modules, and those that they refer to."""
    found: dict[int, Any] = {}
    for module in network.modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        for item in (*vars(module).values(), *hooks):
            _collect(item, found, set())
    return list(found.values())


def _collect(item: Any, found: dict[int, Any], seen: set[int]) -> None:
    if id(item) in found or id(item) in seen or isinstance(item, nn.Module):
        return
    seen.add(id(item))
    if isinstance(item, (types.FunctionType, types.MethodType)):
        found[id(item)] = item
    for part in _parts(item):
        _collect(part, found, seen)


def reached_from(function: Any) -> Iterator[Any]:
    """Yield what a function refers to: its closure, its defaults, the object of a method, and global variables."""
    yield from _parts(function)
    code = getattr(function, "__code__", None)
    if code is not None:
        yield from (function.__globals__[name] for name in _names(code) if name in function.__globals__)


def _parts(item: Any) -> Iterator[Any]:
    """Yield the objects that a function or a container holds."""
    if isinstance(item, types.FunctionType):
        for cell in item.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield from (*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values())
    elif isinstance(item, types.MethodType):
        yield from (item.__func__, item.__self__)
    elif isinstance(item, functools.partial):
        yield from (item.func, *item.args, *item.keywords.values())
    elif isinstance(item, Mapping):
        yield from item.values()
    elif isinstance(item, (list, tuple, set)):
        yield from item


def _names(code: types.CodeType) -> set[str]:
    """Return the names that code and the code inside it may look up as global variables."""
    inside = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inside))


def copy_network(network: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a deep copy whose functions refer to the copy, where those of the network refer to the network.

    :func:`copy.deepcopy` does not copy functions: a lambda that calls ``self.act`` would call that of the original.
    """
    own = set(map(id, network.modules()))
    result: nn.Module = copy.deepcopy(network, memo)
    new = {
        id(function): _empty_copy(function)
        for function in functions_of(network)
        if isinstance(function, types.FunctionType) and _leads_to(function, own, set())
    }
    if not new:
        return result

    def follow(item: Any) -> Any:
        return _replace(copy.deepcopy(item, memo), new) if _leads_to(item, own, set()) else item

    for function in functions_of(network):
        if id(function) in new:
            _fill(new[id(function)], function, follow)
    for module in result.modules():
        holders: tuple[dict[Any, Any], ...] = vars(module), module._forward_hooks, module._forward_pre_hooks
        for holder in holders:
            holder.update({name: _replace(item, new) for name, item in holder.items() if name not in BOOKKEEPING})
    return result


def _empty_copy(function: types.FunctionType) -> types.FunctionType:
    """Return a copy of a function without defaults, and with an empty closure."""
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    copied = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
    functools.update_wrapper(copied, function)
    del copied.__wrapped__  # type: ignore[attr-defined]
    return copied


def _fill(copied: types.FunctionType, function: types.FunctionType, follow: Callable[[Any], Any]) -> None:
    """Give a copy of a function the closure and the defaults that follow from those of the function."""
    for cell, new_cell in zip(function.__closure__ or (), copied.__closure__ or (), strict=True):
        try:
            new_cell.cell_contents = follow(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    copied.__defaults__ = follow(function.__defaults__)
    copied.__kwdefaults__ = follow(function.__kwdefaults__)


def _replace(item: Any, new: Mapping[int, types.FunctionType]) -> Any:
    """Return a function's copy; replace the functions in containers, and in partial functions, by theirs."""
    if isinstance(item, types.FunctionType):
        return new.get(id(item), item)
    if isinstance(item, functools.partial):
        arguments = {name: _replace(value, new) for name, value in item.keywords.items()}
        return functools.partial(_replace(item.func, new), *(_replace(value, new) for value in item.args), **arguments)
    if isinstance(item, list):
        item[:] = [_replace(value, new) for value in item]
    elif isinstance(item, dict):
        item.update({key: _replace(value, new) for key, value in item.items()})
    elif type(item) is tuple:
        return tuple(_replace(value, new) for value in item)
    return item


def _leads_to(item: Any, modules: set[int], seen: set[int]) -> bool:
    """Return whether an object is one of some modules, or a function or a container that leads to one."""
    if id(item) in modules:
        return True
    if id(item) in seen:
        return False
    seen.add(id(item))
    return any(_leads_to(part, modules, seen) for part in _parts(item))
