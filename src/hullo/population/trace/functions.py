"""Functions in the attributes and hooks of a network, and what they refer to."""

from __future__ import annotations

import copy
import dis
import functools
import types
from collections.abc import Container, Iterator, Mapping
from typing import Any

from torch import nn

from hullo.population.sites import BOOKKEEPING

MOST_ITEMS = 1000
"""Larger containers are data, and are not searched for functions and modules."""


def functions_of(network: nn.Module) -> list[Any]:
    """Return the functions and methods in attributes and forward hooks of all modules, and those that they refer to."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    for module in network.modules():
        attributes = (item for name, item in vars(module).items() if name not in BOOKKEEPING)
        for item in (*attributes, *module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            _collect(item, found, seen)
    return list(found.values())


def _collect(item: Any, found: dict[int, Any], seen: set[int]) -> None:
    if id(item) in seen or isinstance(item, nn.Module):
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
        yield from (function.__globals__[name] for name in _global_names(code) if name in function.__globals__)


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
    elif type(item) in (dict, list, tuple, set) and len(item) <= MOST_ITEMS:
        yield from item.values() if isinstance(item, dict) else item


def _global_names(code: types.CodeType) -> set[str]:
    """Return the names of the global variables that code and the code inside it read."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inside = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return own.union(*map(_global_names, inside))


def copy_network(network: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a deep copy whose functions refer to the copy, where those of the network refer to the network.

    :func:`copy.deepcopy` does not copy functions: a lambda that calls ``self.act`` would call that of the original.
    """
    result: nn.Module = copy.deepcopy(network, memo)
    functions, own = functions_of(network), set(map(id, network.modules()))
    new: dict[int, Any] = {
        id(function): _empty_copy(function)
        for function in functions
        if isinstance(function, types.FunctionType) and _leads_to(function, own, set())
    }
    if not new:
        return result
    copies = new | {id(module): memo[id(module)] for module in network.modules()}
    for function in functions:
        if id(function) in new:
            _fill(new[id(function)], function, copies)
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


def _fill(copied: types.FunctionType, function: types.FunctionType, copies: Mapping[int, Any]) -> None:
    """Give a copy of a function the closure and the defaults of the function, with the copies of what they contain."""
    for cell, new_cell in zip(function.__closure__ or (), copied.__closure__ or (), strict=True):
        try:
            new_cell.cell_contents = _replace(cell.cell_contents, copies)
        except ValueError:  # not assigned yet
            continue
    copied.__defaults__ = _replace(function.__defaults__, copies)
    copied.__kwdefaults__ = _replace(function.__kwdefaults__, copies)


def _replace(item: Any, copies: Mapping[int, Any]) -> Any:
    """Return the copy of an object, or of a container or function that leads to such objects; others as they are."""
    if id(item) in copies:
        return copies[id(item)]
    if not _leads_to(item, copies, set()):
        return item
    if isinstance(item, types.MethodType):
        return types.MethodType(item.__func__, _replace(item.__self__, copies))
    if isinstance(item, functools.partial):
        keywords = {name: _replace(value, copies) for name, value in item.keywords.items()}
        return functools.partial(
            _replace(item.func, copies), *(_replace(value, copies) for value in item.args), **keywords
        )
    if type(item) in (list, tuple, set):
        return type(item)(_replace(value, copies) for value in item)
    return {key: _replace(value, copies) for key, value in item.items()} if type(item) is dict else item


def _leads_to(item: Any, found: Container[int], seen: set[int]) -> bool:
    """Return whether an object is one of those with some ids, or a function or a container that leads to one."""
    if id(item) in found:
        return True
    if id(item) in seen:
        return False
    seen.add(id(item))
    return any(_leads_to(part, found, seen) for part in _parts(item))
