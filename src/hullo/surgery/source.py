"""Find the methods of classes, and the calls in their source."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from hullo.recognition.table import NAMES

Position = tuple[int, int]  # of a call: its last line and column, where no other call ends
_DEPTH = 6  # of decorators


def position(node: ast.Call) -> Position:
    """Return the position of a call, which identifies it among the calls of its file."""
    return node.end_lineno or 0, node.end_col_offset or 0


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all nested ones."""
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from codes(item)


def functions_in(value: Any) -> list[types.FunctionType]:
    """Return a function and those that its decorators wrap, each once."""
    return list(dict.fromkeys(_functions_in(value, _DEPTH)))


def _functions_in(value: Any, depth: int) -> Iterator[types.FunctionType]:
    for name in ("__func__", "fget", "__wrapped__"):  # of a static or class method, a property, a decorator's object
        if not isinstance(value, (types.FunctionType, type)):
            value = getattr(value, name, value)
    if isinstance(value, types.FunctionType) and depth:
        yield value
        held = [cell.cell_contents for cell in value.__closure__ or () if not is_empty(cell)]
        for inner in [*held, getattr(value, "__wrapped__", None)]:
            yield from _functions_in(inner, depth - 1)


def is_empty(cell: types.CellType) -> bool:
    """Return whether a closure variable has no value yet."""
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


Method = tuple[
    type, str, types.FunctionType
]  # the class and the name it was defined with, and the undecorated function


def method_of(cls: type, code: types.CodeType) -> Method | None:
    """Return the method of a class that code belongs to, directly or nested, or None."""
    return _methods(cls).get(code)


@functools.lru_cache(maxsize=4096)
def _methods(cls: type) -> dict[types.CodeType, Method]:
    found: dict[types.CodeType, Method] = {}
    for parent in cls.__mro__:
        for name, value in vars(parent).items():
            for function in functions_in(value):
                for code in codes(function.__code__):
                    found.setdefault(code, (parent, name, function))
    return found


def own_functions(cls: type) -> list[types.FunctionType]:
    """Return the methods of a class, and of its parents if they are not overridden, other than PyTorch's."""
    found = (function for name in dir(cls) for function in functions_in(inspect.getattr_static(cls, name, None)))
    return list(dict.fromkeys(item for item in found if not item.__module__.startswith("torch.")))


@functools.lru_cache(maxsize=4096)
def parse(function: types.FunctionType) -> ast.FunctionDef:
    """Return the syntax tree of a function, with positions as in its file.

    Raises:
        LookupError: the source code is unavailable.
    """
    try:
        text = inspect.getsource(function.__code__)  # of a decorator, not of what it wraps
        tree = ast.parse(f"if True:\n{text}" if text[:1].isspace() else text)
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise LookupError("has no source code") from error
    node = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise LookupError("is not a plain function")
    first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
    ast.increment_lineno(node, function.__code__.co_firstlineno - first)
    return node


def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Return all names in code: globals, attributes, locals and closure variables."""
    return (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)


def call_at(tree: ast.AST, at: Position) -> ast.Call | None:
    """Return the call at a position of a tree, or None."""
    return next((node for node in ast.walk(tree) if isinstance(node, ast.Call) and position(node) == at), None)


def _calls(function: types.FunctionType) -> Iterator[tuple[str, bool, ast.Call]]:
    """Yield the name of each callee in the source of a function, whether it is an attribute of self, and the call."""
    try:
        tree = parse(function)
    except LookupError:
        return
    first = tree.args.args[0].arg if tree.args.args else ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Attribute(value, name):
                    yield name, isinstance(value, ast.Name) and value.id == first, node
                case ast.Name(name):
                    yield name, False, node


def activation_calls(function: types.FunctionType) -> list[tuple[str, Position, str]]:
    """Return the calls of activation functions in the source of a function: names, positions and places."""
    used = {name.removesuffix("_") for code in codes(function.__code__) for name in names_in(code)}
    if used.isdisjoint(NAMES):
        return []
    return [
        (name.removesuffix("_"), position(node), f"{function.__qualname__}, line {node.lineno}")
        for name, is_own, node in _calls(function)
        if name.removesuffix("_") in NAMES and not is_own and (node.args or isinstance(node.func, ast.Attribute))
    ]


def count_calls(cls: type, attribute: str) -> int:
    """Return how many expressions in the methods of a class call an attribute of self."""
    found = (call for function in own_functions(cls) for call in _calls(function))
    return sum(name == attribute and is_own for name, is_own, _ in found)
