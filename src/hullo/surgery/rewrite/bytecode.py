"""Inspect the bytecode of functions, which needs no source: does it use activations?"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from hullo.surgery.recognize import NAMES, is_torch_function, read_module
from hullo.surgery.rewrite.source import closure_values, codes

_ACTIVATIONS = nn.ReLU.__module__


def code_of(value: Any) -> types.FunctionType | None:
    """Return the Python function that runs when a value is called; None for PyTorch's functions and modules."""
    if isinstance(value, functools.partial):
        return code_of(value.func)
    if isinstance(value, property):
        return code_of(value.fget)
    if isinstance(value, (types.MethodType, staticmethod, classmethod)):
        return code_of(value.__func__)
    if isinstance(value, types.FunctionType):
        return None if value.__module__ is not None and value.__module__.startswith("torch.") else value
    if isinstance(value, (type, nn.Module, types.BuiltinFunctionType)) or not callable(value):
        return None
    call = next((vars(cls)["__call__"] for cls in type(value).__mro__ if "__call__" in vars(cls)), None)
    return code_of(call) if isinstance(call, types.FunctionType) else None


def mentions_activation(value: Any) -> bool:
    """Return whether the code of a callable, or a function that it uses, names a possible activation."""
    function = code_of(value)
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


def activation_names(value: Any) -> list[str]:
    """Return the names of PyTorch's activations in the code of a callable and of the functions that it uses."""
    function = code_of(value)
    used = () if function is None else _with_helpers(function)
    return sorted({name.rstrip("_") for _, names, _ in used for name in names & NAMES})


def _with_helpers(function: types.FunctionType) -> Iterator[tuple[types.FunctionType, set[str], list[Any]]]:
    """Yield a function and the functions that it uses, each with the names in its code and the values it refers to."""
    seen, pending = {function}, [function]
    while pending:
        item = pending.pop()
        names = {name for code in codes(item.__code__) for name in code.co_names}
        values = [item.__globals__[name] for name in names if name in item.__globals__]
        values += [*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values(), *closure_values(item)]
        yield item, names, values
        parts = [part for value in values for part in _parts_of(value)]
        used = [*values, *(part.forward for part in parts if _is_module_class(part))]
        helpers = {code for value in used if (code := code_of(value)) is not None} - seen
        pending += helpers
        seen |= helpers


def contains_activation(value: Any) -> bool:
    """Return whether a value is an activation, a class of activations, or a collection that contains one."""
    return any(
        _is_activation(part) or (_is_module_class(part) and mentions_activation(part.forward))
        for part in _parts_of(value)
    )


def _parts_of(value: Any) -> list[Any]:
    """Return the items of a collection, or the value itself; of a pair of a class and its arguments, the class."""
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
    """Return whether a value is an activation, or one of PyTorch's classes of activations."""
    if isinstance(value, nn.Module):
        return read_module(value) is not None
    if isinstance(value, type):
        return _is_module_class(value) and value.__module__ == _ACTIVATIONS
    return is_torch_activation(value)


def is_torch_activation(value: Any) -> bool:
    """Return whether a value is one of PyTorch's functions that may be activations, such as ``Tensor.relu``."""
    if is_torch_function(value):
        return True
    name = getattr(value, "__name__", None)
    home = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] in NAMES and str(home).partition(".")[0] == "torch"


def count_uses(function: types.FunctionType, name: str) -> int:
    """Return how often the code of a function names an attribute, plus one if it has a loop."""
    instructions = [item for code in codes(function.__code__) for item in dis.get_instructions(code)]
    loops = any(item.opname in ("FOR_ITER", "JUMP_BACKWARD") for item in instructions)
    return len([item for item in instructions if item.argval == name]) + loops
