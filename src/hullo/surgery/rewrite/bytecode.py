"""Inspect the bytecode of functions, also without source: does it call activations?"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from hullo.surgery.recognise import NAMES, is_torch_function, read_module
from hullo.surgery.rewrite.source import closure_values, codes

_ACTIVATIONS = nn.ReLU.__module__


def code_of(thing: Any) -> types.FunctionType | None:
    """Return the Python function that runs when something is called; None for PyTorch's functions and modules."""
    if isinstance(thing, functools.partial):
        return code_of(thing.func)
    if isinstance(thing, property):
        return code_of(thing.fget)
    if isinstance(thing, (types.MethodType, staticmethod, classmethod)):
        return code_of(thing.__func__)
    if isinstance(thing, types.FunctionType):
        return None if thing.__module__ is not None and thing.__module__.startswith("torch.") else thing
    if isinstance(thing, (type, nn.Module, types.BuiltinFunctionType)) or not callable(thing):
        return None
    call = next((vars(cls)["__call__"] for cls in type(thing).__mro__ if "__call__" in vars(cls)), None)
    return code_of(call) if isinstance(call, types.FunctionType) else None


def mentions_activation(thing: Any) -> bool:
    """Return whether the code of a callable, or a function that it uses, names a possible activation."""
    function = code_of(thing)
    return function is not None and _mentions(function)


@functools.lru_cache(maxsize=4096)
def _mentions(function: types.FunctionType) -> bool:
    for item, names, values in _with_helpers(function):
        constants = {value for code in codes(item.__code__) for value in code.co_consts if isinstance(value, str)}
        if names & NAMES or ("getattr" in names and constants & NAMES):
            return True
        if any(_is_activation(part) for value in values for part in _parts_of(value)):
            return True
    return False


def functions_named(thing: Any) -> list[str]:
    """Return the names of PyTorch's activations in the code of a callable and of the functions that it uses."""
    function = code_of(thing)
    found = () if function is None else _with_helpers(function)
    return sorted({name.rstrip("_") for _, names, _ in found for name in names & NAMES})


def _with_helpers(function: types.FunctionType) -> Iterator[tuple[types.FunctionType, set[str], list[Any]]]:
    """Yield a function and the functions that it uses, each with the names in its code and the values it refers to."""
    seen, waiting = {function}, [function]
    while waiting:
        item = waiting.pop()
        names = {name for code in codes(item.__code__) for name in code.co_names}
        values = [item.__globals__[name] for name in names if name in item.__globals__]
        values += [*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values(), *closure_values(item)]
        yield item, names, values
        parts = [part for value in values for part in _parts_of(value)]
        used = [*values, *(part.forward for part in parts if _is_module_class(part))]
        helpers = {code for value in used if (code := code_of(value)) is not None} - seen
        waiting += helpers
        seen |= helpers


def is_activation_or_holds_one(value: Any) -> bool:
    """Return whether something is an activation, a class of activations, or a collection that contains one."""
    return any(
        _is_activation(part) or (_is_module_class(part) and mentions_activation(part.forward))
        for part in _parts_of(value)
    )


def _parts_of(value: Any) -> list[Any]:
    """Return the items of a collection, or the thing itself; of a pair of a class and its arguments, the class."""
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (nn.ModuleList, nn.ModuleDict)):
        parts = list(value.children())
    else:
        parts = list(value) if isinstance(value, (list, tuple)) else [value]
    return [part[0] if isinstance(part, tuple) and part else part for part in parts]


def _is_module_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def _is_activation(value: Any) -> bool:
    """Return whether something is an activation, or one of PyTorch's classes of activations."""
    if isinstance(value, nn.Module):
        return read_module(value) is not None
    if isinstance(value, type):
        return _is_module_class(value) and value.__module__ == _ACTIVATIONS
    return is_from_torch(value)


def is_from_torch(thing: Any) -> bool:
    """Return whether something is one of PyTorch's functions that may be activations, such as ``Tensor.relu``."""
    if is_torch_function(thing):
        return True
    name = getattr(thing, "__name__", None)
    home = getattr(thing, "__module__", None) or getattr(getattr(thing, "__objclass__", None), "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] in NAMES and str(home).partition(".")[0] == "torch"


def times_named(function: types.FunctionType, name: str) -> int:
    """Return how often the code of a function names an attribute, plus one if it has a loop."""
    instructions = [item for code in codes(function.__code__) for item in dis.get_instructions(code)]
    loops = any(item.opname in ("FOR_ITER", "JUMP_BACKWARD") for item in instructions)
    return len([item for item in instructions if item.argval == name]) + loops
