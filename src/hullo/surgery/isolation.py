"""Run foreign code without side effects, and detect the side effects it would have."""

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
_NUMBERS, _REACHED, _LARGE = 400, 3000, 4096


@contextlib.contextmanager
def isolated(function: Any = None) -> Iterator[Callable[[], str]]:
    """Suppress side effects of the code inside: random numbers, output, warnings, compilation.

    What the given function may change, such as closure variables, lists and class attributes, is restored at exit.
    Yields a function that describes the side effects so far; empty if there are none.
    """
    states, output, held = random_states(), io.StringIO(), _held_by(function)

    def noticed() -> str:
        if output.getvalue():
            return "it prints"
        if any(item.has_changed() for item in held):
            return "calls change variables outside of it"
        is_same = all(map(operator.eq, _keys(states), _keys(random_states())))
        return "" if is_same else "it draws random numbers"

    with contextlib.ExitStack() as stack:
        stack.callback(set_random_states, states)
        for item in held:
            stack.callback(item.restore)
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable()
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and the import is slow
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield noticed


class _Held:
    """Hold the original contents of something that code may change: `read` returns them, `write` restores them."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self._read, self._write, self._before = read, write, read()

    def has_changed(self) -> bool:
        return not _same(self._read(), self._before, 2)

    def restore(self) -> None:
        self._write(self._before)


def _held_by(function: Any) -> list[_Held]:
    """Return what a function may change besides its arguments: variables and containers of plain values."""
    partial, held = functools.partial, list[_Held]()
    for item in _reached_from(function):
        match item:
            case types.FunctionType() if not is_from_torch(item):
                held += [_attribute(cell, "cell_contents") for cell in item.__closure__ or () if not is_empty(cell)]
                space = item.__globals__
                names = {name for code in codes(item.__code__) for name in code.co_names}
                plain = [name for name in names if name in space and isinstance(space[name], _PLAIN)]
                held += [_Held(partial(space.get, name), partial(space.__setitem__, name)) for name in plain]
            case types.MethodType() if not is_from_torch(item):
                kind = type(item.__self__)
                plain = [name for name, value in vars(kind).items() if isinstance(value, _PLAIN)]
                held += [_attribute(kind, name) for name in plain]
            case list() | dict() | set() if len(item) < _LARGE:
                held.append(_Held(partial(_plain_copy, item), partial(_refill, item)))
            case Tensor() if item.numel() < _LARGE and not item.is_meta:
                held.append(_Held(lambda item=item: item.detach().clone(), partial(_overwrite, item)))  # type: ignore[misc]
    return held


def _attribute(thing: Any, name: str) -> _Held:
    def write(value: Any) -> None:
        if getattr(thing, name) is not value:  # only then, because setting an attribute may run code
            setattr(thing, name, value)

    return _Held(functools.partial(getattr, thing, name), write)


def _plain_copy(item: Any) -> Any:
    """Return the contents in a built-in container: methods of a subclass may run code."""
    return dict(item.items()) if isinstance(item, dict) else list(item) if isinstance(item, list) else set(item)


def _refill(item: Any, contents: Any) -> None:
    if not _same(_plain_copy(item), contents, 1):
        item.clear()
        (item.extend if isinstance(item, list) else item.update)(contents)


def _overwrite(item: Tensor, values: Tensor) -> None:
    if not torch.equal(item, values):
        item.data.copy_(values)


def random_states() -> list[Any]:
    numpy = sys.modules.get("numpy")
    return [torch.get_rng_state(), random.getstate(), *([numpy.random.get_state()] if numpy else [])]


def _keys(states: list[Any]) -> list[Any]:
    """Return random states in comparable form, without NumPy if the code has imported it meanwhile."""
    return [states[0].tolist(), states[1], *([states[2][1].tobytes(), states[2][2]] if len(states) > 2 else [])]


def set_random_states(states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if len(states) > 2:
        sys.modules["numpy"].random.set_state(states[2])


def has_changed(module: nn.Module, original: nn.Module) -> bool:
    """Return whether calls have changed attributes, other than the mode, of a module that is a copy of the original."""
    return not _same({**vars(module), "training": True}, {**vars(original), "training": True}, 4)


def _same(a: Any, b: Any, depth: int) -> bool:
    """Return whether two things are equal, down to a depth; objects of unknown types count as equal."""
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
        mine, others = dict(a.items()), dict(b.items())
        return mine.keys() == others.keys() and all(_same(mine[key], others[key], depth - 1) for key in mine)
    if isinstance(a, Set):
        return len(a) == len(b)
    if isinstance(a, Sequence):
        return len(a) == len(b) and all(_same(x, y, depth - 1) for x, y in zip(a, b, strict=True))
    if type(a).__module__ == "numpy":
        return bytes(a.data) == bytes(b.data) if hasattr(a, "data") else bool(a == b)
    if isinstance(a, (types.FunctionType, types.MethodType, types.ModuleType, type)):
        return True
    return not hasattr(a, "__dict__") or _same(vars(a), vars(b), depth - 1)


def is_from_torch(function: Any) -> bool:
    """Return whether PyTorch defines a function."""
    return str(function.__module__).startswith("torch.")


class NotHashableError(Exception):
    """Raised for things whose state cannot be compared."""


def state_of(thing: Any, depth: int = 5) -> Hashable:
    """Return a hashable description of everything that the behaviour of a thing depends on, as a cache key."""
    if isinstance(thing, float):
        return float, repr(thing)
    if isinstance(thing, _PLAIN):
        return type(thing), thing
    if depth == 0:
        raise NotHashableError
    rest = functools.partial(state_of, depth=depth - 1)
    if isinstance(thing, (list, tuple)):
        return type(thing), tuple(map(rest, thing))
    if isinstance(thing, dict):
        return type(thing), tuple((rest(key), rest(value)) for key, value in thing.items())
    if isinstance(thing, functools.partial):
        return functools.partial, rest(thing.func), rest(thing.args), rest(thing.keywords)
    if isinstance(thing, types.FunctionType):
        if is_from_torch(thing):
            return thing
        return thing.__code__, rest(thing.__defaults__), rest(thing.__kwdefaults__), rest(_read_by(thing))
    if isinstance(thing, (types.BuiltinFunctionType, types.ModuleType, type, types.MethodDescriptorType)):
        return thing
    raise NotHashableError


def numbers_in(thing: Any) -> list[float]:
    """Return the numbers in the code of a function and in the variables that it reads."""
    found: dict[float, None] = {}
    for item in _reached_from(thing):
        if isinstance(item, Tensor) and item.numel() == 1 and not item.is_meta and not item.is_complex():
            item = item.item()
        if isinstance(item, (int, float)) and not isinstance(item, bool) and abs(item) < 1e300:
            found[float(item)] = None
    return list(found)[:_NUMBERS]


def _reached_from(thing: Any) -> Iterator[Any]:
    """Yield a thing and everything that its behaviour depends on, as far as the types are known."""
    seen: dict[int, Any] = {}  # keeps the things alive, so that no id is reused
    waiting = deque([thing])
    while waiting and len(seen) < _REACHED:
        item = waiting.popleft()
        if id(item) not in seen:
            seen[id(item)] = item
            yield item
            waiting.extend(_parts(item))


def _parts(thing: Any) -> Iterable[Any]:
    """Return what the behaviour of a thing directly depends on."""
    match thing:
        case tuple() | list() | set() | frozenset():
            return thing
        case dict():
            return thing.values()
        case functools.partial():
            return thing.func, thing.args, thing.keywords
        case types.MethodType():
            return thing.__func__, thing.__self__
        case nn.Module():
            return [value for name, value in vars(thing).items() if not name.startswith("_")]
        case types.FunctionType() if not is_from_torch(thing):
            return *codes(thing.__code__), thing.__defaults__, thing.__kwdefaults__, _read_by(thing)
        case types.CodeType():
            return thing.co_consts
    return ()


def _read_by(function: types.FunctionType) -> list[Any]:
    """Return the values of the closure variables and the globals that a function reads."""
    names = (name for code in codes(function.__code__) for name in code.co_names)
    return [*closure_values(function), *(function.__globals__[name] for name in names if name in function.__globals__)]
