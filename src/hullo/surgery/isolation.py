"""Run user code without side effects, and detect its side effects."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import operator
import random
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

from hullo.surgery.rewrite.source import closure_values, codes, is_empty

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_MAX_NUMBERS, _MAX_DEPENDENCIES, _LARGE = 400, 3000, 4096


@contextlib.contextmanager
def isolated(function: Any = None) -> Iterator[Callable[[], str]]:
    """Suppress side effects of the code inside: random numbers, output, warnings, compilation.

    Closure variables, lists, class attributes and so on that the given function may change are restored at exit. Yields
    a function that describes the side effects so far; empty if there are none.
    """
    states, output, snapshots = random_states(), io.StringIO(), _snapshots(function)

    def side_effects() -> str:
        if output.getvalue():
            return "it prints"
        if any(item.has_changed() for item in snapshots):
            return "calls change variables outside of it"
        is_same = all(map(operator.eq, _keys(states), _keys(random_states())))
        return "" if is_same else "it draws random numbers"

    with contextlib.ExitStack() as stack:
        stack.callback(set_random_states, states)
        for item in snapshots:
            stack.callback(item.restore)
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable()
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and the import is slow
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield side_effects


class _Snapshot:
    """Hold the original contents of a variable or container: `read` returns them, `write` restores them."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self._read, self._write, self._before = read, write, read()

    def has_changed(self) -> bool:
        return not _equal(self._read(), self._before, 2)

    def restore(self) -> None:
        self._write(self._before)


def _snapshots(function: Any) -> list[_Snapshot]:
    """Return snapshots of what a function may change besides its arguments: variables and containers."""
    partial, snapshots = functools.partial, list[_Snapshot]()
    for item in _dependencies(function):
        match item:
            case types.FunctionType() if not is_from_torch(item):
                snapshots += [
                    _attribute(cell, "cell_contents") for cell in item.__closure__ or () if not is_empty(cell)
                ]
                space = item.__globals__
                names = {name for code in codes(item.__code__) for name in code.co_names}
                plain = [name for name in names if name in space and isinstance(space[name], _PLAIN)]
                snapshots += [_Snapshot(partial(space.get, name), partial(space.__setitem__, name)) for name in plain]
            case types.MethodType() if not is_from_torch(item):
                kind = type(item.__self__)
                plain = [name for name, value in vars(kind).items() if isinstance(value, _PLAIN)]
                snapshots += [_attribute(kind, name) for name in plain]
            case list() | dict() | set() if len(item) < _LARGE:
                snapshots.append(_Snapshot(partial(_plain_copy, item), partial(_restore_container, item)))
            case Tensor() if item.numel() < _LARGE and not item.is_meta:
                snapshots.append(_Snapshot(lambda item=item: item.detach().clone(), partial(_restore_tensor, item)))  # type: ignore[misc]
    return snapshots


def _attribute(owner: Any, name: str) -> _Snapshot:
    def write(value: Any) -> None:
        if getattr(owner, name) is not value:  # setting an attribute may run code
            setattr(owner, name, value)

    return _Snapshot(functools.partial(getattr, owner, name), write)


def _plain_copy(item: Any) -> Any:
    """Return the contents in a built-in container: methods of a subclass may run code."""
    return dict(item.items()) if isinstance(item, dict) else list(item) if isinstance(item, list) else set(item)


def _restore_container(item: Any, contents: Any) -> None:
    if not _equal(_plain_copy(item), contents, 1):
        item.clear()
        (item.extend if isinstance(item, list) else item.update)(contents)


def _restore_tensor(item: Tensor, values: Tensor) -> None:
    if not torch.equal(item, values):
        item.data.copy_(values)


def random_states() -> list[Any]:
    numpy = sys.modules.get("numpy")
    return [torch.get_rng_state(), random.getstate(), *([numpy.random.get_state()] if numpy else [])]


def _keys(states: list[Any]) -> list[Any]:
    """Return random states in comparable form; those of NumPy only if it was imported."""
    return [states[0].tolist(), states[1], *([states[2][1].tobytes(), states[2][2]] if len(states) > 2 else [])]


def set_random_states(states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if len(states) > 2:
        sys.modules["numpy"].random.set_state(states[2])


def has_changed(module: nn.Module, original: nn.Module) -> bool:
    """Return whether calls have changed attributes, other than the mode, of a module that is a copy of the original."""
    return not _equal({**vars(module), "training": True}, {**vars(original), "training": True}, 4)


def _equal(a: Any, b: Any, depth: int) -> bool:
    """Return whether two values are equal, down to a depth; objects of unknown types count as equal."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and (a.is_meta or torch.equal(a, b))
    if isinstance(a, _PLAIN):
        return bool(a == b) or (a != a and b != b)  # nan
    if depth == 0:
        return True
    if isinstance(a, Mapping):
        first, second = dict(a.items()), dict(b.items())
        return first.keys() == second.keys() and all(_equal(first[key], second[key], depth - 1) for key in first)
    if isinstance(a, Set):
        return len(a) == len(b)
    if isinstance(a, Sequence):
        return len(a) == len(b) and all(_equal(x, y, depth - 1) for x, y in zip(a, b, strict=True))
    if type(a).__module__ == "numpy":
        return bytes(a.data) == bytes(b.data) if hasattr(a, "data") else bool(a == b)
    if isinstance(a, (types.FunctionType, types.MethodType, types.ModuleType, type)):
        return True
    return not hasattr(a, "__dict__") or _equal(vars(a), vars(b), depth - 1)


def is_from_torch(function: Any) -> bool:
    """Return whether PyTorch defines a function."""
    return str(function.__module__).startswith("torch.")


class NotHashableError(Exception):
    """Raised for values whose state cannot be compared."""


def state_of(value: Any, depth: int = 5) -> Hashable:
    """Return a hashable description of everything that the behavior of a value depends on, as a cache key."""
    if isinstance(value, float):
        return float, repr(value)
    if isinstance(value, _PLAIN):
        return type(value), value
    if depth == 0:
        raise NotHashableError
    rest = functools.partial(state_of, depth=depth - 1)
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(rest, value))
    if isinstance(value, dict):
        return type(value), tuple((rest(key), rest(item)) for key, item in value.items())
    if isinstance(value, functools.partial):
        return functools.partial, rest(value.func), rest(value.args), rest(value.keywords)
    if isinstance(value, types.FunctionType):
        if is_from_torch(value):
            return value
        return value.__code__, rest(value.__defaults__), rest(value.__kwdefaults__), rest(_read_by(value))
    if isinstance(value, (types.BuiltinFunctionType, types.ModuleType, type, types.MethodDescriptorType)):
        return value
    raise NotHashableError


def numbers_in(value: Any) -> list[float]:
    """Return the numbers in the code of a function and in the variables that it reads."""
    numbers: dict[float, None] = {}
    for item in _dependencies(value):
        if isinstance(item, Tensor) and item.numel() == 1 and not item.is_meta and not item.is_complex():
            item = item.item()
        if isinstance(item, (int, float)) and not isinstance(item, bool) and abs(item) < 1e300:
            numbers[float(item)] = None
    return list(numbers)[:_MAX_NUMBERS]


def _dependencies(value: Any) -> Iterator[Any]:
    """Yield a value and everything that its behavior depends on, as far as the types are known."""
    seen: dict[int, Any] = {}  # keeps the values alive: ids are not reused
    pending = deque([value])
    while pending and len(seen) < _MAX_DEPENDENCIES:
        item = pending.popleft()
        if id(item) not in seen:
            seen[id(item)] = item
            yield item
            pending.extend(_parts(item))


def _parts(value: Any) -> Iterable[Any]:
    """Return what the behavior of a value directly depends on."""
    match value:
        case tuple() | list() | set() | frozenset():
            return value
        case dict():
            return value.values()
        case functools.partial():
            return value.func, value.args, value.keywords
        case types.MethodType():
            return value.__func__, value.__self__
        case nn.Module():
            return [item for name, item in vars(value).items() if not name.startswith("_")]
        case types.FunctionType() if not is_from_torch(value):
            return *codes(value.__code__), value.__defaults__, value.__kwdefaults__, _read_by(value)
        case types.CodeType():
            return value.co_consts
    return ()


def _read_by(function: types.FunctionType) -> list[Any]:
    """Return the values of the closure variables and the globals that a function reads."""
    names = (name for code in codes(function.__code__) for name in code.co_names)
    return [*closure_values(function), *(function.__globals__[name] for name in names if name in function.__globals__)]
