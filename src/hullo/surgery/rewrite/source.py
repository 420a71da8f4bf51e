"""Parse the source of functions, and find the methods of classes and the local names of functions."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Position = tuple[int, int, int | None, int | None]


def position(node: ast.expr | ast.stmt) -> Position:
    """Return the position of a node in the text of its function, which identifies it among nodes of its type."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


@functools.lru_cache(maxsize=1024)
def parse(function: types.FunctionType) -> ast.FunctionDef:
    """Return the syntax tree of a function, with private names (``self.__x``) mangled as the compiler does.

    Raises:
        LookupError: the source code is unavailable, or does not match the compiled code.
    """
    try:
        text = inspect.getsource(function)
        tree = ast.parse(f"if True:\n{text}" if text[:1].isspace() else text)
    except (OSError, TypeError, SyntaxError) as error:
        raise LookupError("its source code is unavailable") from error
    node = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise LookupError("it is not a plain function")
    if not any(code == function.__code__ for code in _codes_in("".join(inspect.findsource(function)[0]))):
        raise LookupError("its source code does not match its compiled code")
    _mangle_private_names(node, function.__code__)
    return node


def _mangle_private_names(tree: ast.AST, code: types.CodeType) -> None:
    names = {name for part in codes(code) for name in names_in(part)}
    for node in ast.walk(tree):
        for field in ("attr", "id", "arg"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name.startswith("__") and not name.endswith("__"):
                spelled = [other for other in names if re.fullmatch(f"_[^_].*{re.escape(name)}", other)]
                setattr(node, field, spelled[0] if len(spelled) == 1 else name)


def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Return all names in code: globals, attributes, locals and closure variables."""
    return (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)


def place(function: types.FunctionType, node: ast.expr | ast.stmt) -> str:
    """Return the function and the line of a node, for messages."""
    tree = parse(function)
    first = min([tree.lineno, *(item.lineno for item in tree.decorator_list)])
    return f"{function.__qualname__}, line {function.__code__.co_firstlineno + node.lineno - first}"


@functools.lru_cache(maxsize=64)
def _codes_in(text: str) -> list[types.CodeType]:
    """Return all code objects of a file; a function alone may compile to other code, because of future imports."""
    try:
        return list(codes(compile(text, "<file>", "exec", dont_inherit=True)))
    except SyntaxError:  # a notebook cell may contain more than Python
        return []


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all nested ones."""
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from codes(item)


def is_written_out(node: ast.Call) -> bool:
    """Return whether a call has no ``*args`` or ``**kwargs``."""
    return not any(isinstance(item, ast.Starred) for item in node.args) and all(item.arg for item in node.keywords)


def input_of(node: ast.Call) -> ast.expr | None:
    """Return the input in a call of an activation: the first argument, the one named `input`, the only one, or the
    object of a method; None if it is not written out.
    """
    named = [item.value for item in node.keywords if item.arg == "input" or len(node.keywords) == 1]
    if not is_written_out(node):
        return None
    if node.args or named:
        return (node.args or named)[0]
    return node.func.value if isinstance(node.func, ast.Attribute) and not node.keywords else None


def method(mro: Sequence[type], name: str) -> tuple[type, str, Any]:
    """Return the class and the name under which a method was defined, and its value in the first class with it."""
    cls = next(cls for cls in mro if name in vars(cls))
    for written in vars(cls).get("_hullo_written", (None, ()))[1]:
        if written.name == name:
            return written.cls, written.origin, vars(cls)[name]
    return cls, name, vars(cls)[name]


def methods(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the methods of a class and of its parents in the same file, without special methods."""
    classes = [parent for parent in cls.__mro__ if parent.__module__ == cls.__module__]
    for name in dict.fromkeys(name for parent in classes for name in vars(parent) if not name.startswith("__")):
        function = method(classes, name)[2]
        if isinstance(function, types.FunctionType):
            yield name, function


_MUTATING = frozenset(
    name
    for kind in (list, dict, set)
    for name in vars(kind)
    if not hasattr(tuple, name) and not hasattr(frozenset, name)
) - {"keys", "values", "items", "get", "fromkeys"}

_PURE = frozenset({"len", "zip", "enumerate", "reversed", "list", "tuple", "sum", "min", "max", "isinstance", "print"})
_DISPLAYS = (ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Set, ast.SetComp)


@dataclass(frozen=True)
class LocalNames:
    """Hold the local names of a function.

    Args:
        local: all of them.
        loop_names: loop variables.
        bindable: names that are assigned once, or by loops only, and whose values the code does not modify.
        definitions: the assigned expressions of names that are assigned once.
    """

    local: frozenset[str]
    loop_names: frozenset[str]
    bindable: frozenset[str]
    definitions: Mapping[str, ast.expr]


@functools.lru_cache(maxsize=1024)
def names_of(function: types.FunctionType) -> LocalNames:
    """Return the local names of a function.

    Raises:
        LookupError: its source code is unavailable.
    """
    tree = parse(function)
    loops = [node.target for node in ast.walk(tree) if isinstance(node, (ast.For, ast.comprehension))]
    loop_names = [name for target in loops for name in bindings(target)]
    every = bindings(tree)
    plain = Counter(every) - Counter(loop_names)
    changed = {thing.id for node in ast.walk(tree) if isinstance(thing := changed_by(node), ast.Name)}
    changed |= {name for node in ast.walk(tree) for name in _passed_names(node)} & _lists_in(tree)
    bindable = frozenset(name for name in every if plain[name] + (name in loop_names) == 1 and name not in changed)
    definitions = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if node.targets[0].id in bindable
    }
    return LocalNames(frozenset(every), frozenset(loop_names), bindable, definitions)


def changed_by(node: ast.AST) -> ast.expr | None:
    """Return the collection that a node modifies: by item assignment or a mutating method; None if there is none."""
    match node:
        case ast.Subscript(value=thing, ctx=ast.Store() | ast.Del()):
            return thing
        case ast.Call(func=ast.Attribute(value=thing, attr=name)) if name in _MUTATING:
            return thing
    return None


def _passed_names(node: ast.AST) -> list[str]:
    """Return the names that a call passes to a function that may modify their values."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in _PURE:
            return []
        case ast.Call(args=given, keywords=named):
            return [item.id for item in (*given, *(item.value for item in named)) if isinstance(item, ast.Name)]
    return []


def _lists_in(tree: ast.AST) -> set[str]:
    """Return the names that are assigned new lists, dicts or sets."""
    assignments = [
        node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, _DISPLAYS)
    ]
    return {target.id for node in assignments for target in node.targets if isinstance(target, ast.Name)}


def bindings(tree: ast.AST) -> list[str]:
    """Return the names that are assigned in a tree, once for each assignment."""
    names: list[str | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                names.append(name)
            case ast.alias(name=name, asname=other):
                names.append(other or name.partition(".")[0])
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name if node is not tree else None)
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                names.append(name)
            case ast.MatchMapping(rest=name):
                names.append(name)
    return [name for name in names if name is not None]


def is_empty(cell: types.CellType) -> bool:
    """Return whether a closure variable has no value yet."""
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def closure_values(function: types.FunctionType) -> Iterator[Any]:
    """Yield the values of the closure variables of a function."""
    yield from (cell.cell_contents for cell in function.__closure__ or () if not is_empty(cell))
