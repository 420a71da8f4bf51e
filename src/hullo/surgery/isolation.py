"""Run other people's code without leaving a trace, and notice what it does besides returning a value."""

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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hullo.surgery.rewrite.source import codes

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_NUMBERS, _REACHED, _LARGE = 400, 3000, 4096


@contextlib.contextmanager
def isolated(function: Any = None) -> Iterator[Callable[[], str]]:
    """Keep random numbers, output and warnings of the code inside to itself, and compile nothing.

    What a function that is called inside may change, such as variables around it, lists and attributes of classes, is
    put back. Yields a function that says what the code has done so far besides computing; an empty string if nothing is
    known.
    """
    states, output, held = _random_states(), io.StringIO(), _held_by(function)

    def noticed() -> str:
        if output.getvalue():
            return "it prints"
        if any(item.has_changed() for item in held):
            return "calls change what others may read"
        is_same = all(map(operator.eq, _keys(states), _keys(_random_states())))
        return "" if is_same else "it draws random numbers"

    with contextlib.ExitStack() as stack:
        stack.callback(_restore, states)
        for item in held:
            stack.callback(item.put_back)
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable()
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and the import takes long
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield noticed


@dataclass(frozen=True)
class _Held:
    """Something that code may change, as it was: its parts, and how to set them."""

    parts: Callable[[], Any]
    before: Any
    put_back: Callable[[], None]

    def has_changed(self) -> bool:
        return not _same(self.parts(), self.before, 2)


def _held_by(function: Any) -> list[_Held]:
    """Return what a function may change besides its arguments, as far as it is plain."""
    held: list[_Held] = []
    for item in _reached_from(function):
        match item:
            case types.FunctionType() if not is_from_torch(item):
                held += map(_held_cell, item.__closure__ or ())
                space = item.__globals__
                named = {name for code in codes(item.__code__) for name in code.co_names if name in space}
                held += [_held_key(space, name) for name in named if isinstance(space[name], _PLAIN)]
            case types.MethodType() if not is_from_torch(item):
                kind = type(item.__self__)
                held += [_held_attribute(kind, name) for name, value in vars(kind).items() if isinstance(value, _PLAIN)]
            case list() | dict() | set() if len(item) < _LARGE:
                held.append(_held_container(item))
            case Tensor() if item.numel() < _LARGE and not item.is_meta:
                held.append(_held_tensor(item))
    return held


def _held_cell(cell: types.CellType) -> _Held:
    def contents() -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # not filled yet
            return None

    before = contents()
    return _Held(contents, before, functools.partial(setattr, cell, "cell_contents", before))


def _held_key(space: dict[str, Any], name: str) -> _Held:
    return _Held(lambda: space.get(name), space[name], functools.partial(space.__setitem__, name, space[name]))


def _held_attribute(kind: type, name: str) -> _Held:
    before = getattr(kind, name)

    def put_back() -> None:
        if getattr(kind, name) is not before:  # else left alone: setting an attribute may run code
            setattr(kind, name, before)

    return _Held(functools.partial(getattr, kind, name), before, put_back)


def _held_container(item: Any) -> _Held:
    def parts() -> Any:
        """Return the parts in a plain container: the copy() and the item access of another may run code."""
        return dict(item.items()) if isinstance(item, dict) else list(item) if isinstance(item, list) else set(item)

    before = parts()

    def put_back() -> None:
        if not _same(parts(), before, 1):
            item.clear()
            (item.extend if isinstance(item, list) else item.update)(before)

    return _Held(parts, before, put_back)


def _held_tensor(item: Tensor) -> _Held:
    before = item.detach().clone()

    def put_back() -> None:
        if not torch.equal(item, before):
            item.data.copy_(before)

    return _Held(item.detach, before, put_back)


def _random_states() -> list[Any]:
    numpy = sys.modules.get("numpy")
    return [torch.get_rng_state(), random.getstate(), *([numpy.random.get_state()] if numpy else [])]


def _keys(states: list[Any]) -> list[Any]:
    """Return random states in a form that can be compared; NumPy is left out where code has imported it meanwhile."""
    return [states[0].tolist(), states[1], *([states[2][1].tobytes(), states[2][2]] if len(states) > 2 else [])]


def _restore(states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if len(states) > 2:
        sys.modules["numpy"].random.set_state(states[2])


def has_changed(module: nn.Module, original: nn.Module) -> bool:
    """Return whether calls have changed the attributes of a module, a copy of the original."""
    ignored = {"training"}
    mine, others = (
        {key: value for key, value in vars(item).items() if key not in ignored} for item in (module, original)
    )
    return not _same(mine, others, 4)


def _same(a: Any, b: Any, depth: int) -> bool:
    """Return whether two things are equal as far as that can be told; objects of unknown kinds are."""
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
    """Something has state that cannot be compared."""


def state_of(thing: Any, depth: int = 5) -> Hashable:
    """Return what the behaviour of a thing depends on, as far as that is plain, to remember answers by."""
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
    """Return the numbers that a function's code, and what it reads, mention."""
    found: dict[float, None] = {}
    for item in _reached_from(thing):
        if isinstance(item, Tensor) and item.numel() == 1 and not item.is_meta and not item.is_complex():
            item = item.item()
        if isinstance(item, (int, float)) and not isinstance(item, bool) and abs(item) < 1e300:
            found[float(item)] = None
    return list(found)[:_NUMBERS]


def _reached_from(thing: Any) -> Iterator[Any]:
    """Yield a thing and whatever belongs to its behaviour, as far as that is plain."""
    seen: dict[int, Any] = {}  # with the things themselves, so that no other gets the same id
    waiting = deque([thing])
    while waiting and len(seen) < _REACHED:
        item = waiting.popleft()
        if id(item) not in seen:
            seen[id(item)] = item
            yield item
            waiting.extend(_parts(item))


def _parts(thing: Any) -> Iterable[Any]:
    """Return what belongs to the behaviour of a thing."""
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
    """Return what a function reads besides its arguments: cells of functions around it, and globals."""
    cells: list[Any] = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # one that is not filled yet
            cells.append(cell.cell_contents)
    names = (name for code in codes(function.__code__) for name in code.co_names)
    return cells + [function.__globals__[name] for name in names if name in function.__globals__]
