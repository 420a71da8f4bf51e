"""Functions in the attributes and hooks of a network, and what they refer to."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn


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
    rebound: list[tuple[types.FunctionType, types.FunctionType]] = []
    for function in functions_of(network):
        if isinstance(function, types.FunctionType) and _leads_to(function, own, set()):
            cells = tuple(types.CellType() for _ in function.__closure__ or ())
            new = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
            functools.update_wrapper(new, function, updated=("__dict__",))
            vars(new).pop("__wrapped__", None)
            memo[id(function)] = new
            rebound.append((function, new))
    result = copy.deepcopy(network, memo)

    def follow(item: Any) -> Any:
        return copy.deepcopy(item, memo) if _leads_to(item, own, set()) else item

    for function, new in rebound:
        for cell, new_cell in zip(function.__closure__ or (), new.__closure__ or (), strict=True):
            try:
                new_cell.cell_contents = follow(cell.cell_contents)
            except ValueError:  # not assigned yet
                continue
        new.__defaults__ = follow(function.__defaults__)
        new.__kwdefaults__ = follow(function.__kwdefaults__)
    return result


def _leads_to(item: Any, modules: set[int], seen: set[int]) -> bool:
    """Return whether an object is one of some modules, or a function or a container that leads to one."""
    if id(item) in modules:
        return True
    if id(item) in seen:
        return False
    seen.add(id(item))
    return any(_leads_to(part, modules, seen) for part in _parts(item))
