"""Parse the source of functions, and find the methods of classes."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

Position = tuple[int, int, int | None, int | None]


def position(node: ast.expr | ast.stmt) -> Position:
    """Return where a node stands in its function's text, which tells it from all others of its type."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


@functools.lru_cache(maxsize=1024)
def parse(function: types.FunctionType) -> ast.FunctionDef:
    """Return the syntax tree of a function, with private names (``self.__x``) spelled as the compiler spells them.

    Raises:
        LookupError: the source code is unavailable, or it is not that of the code that runs.
    """
    try:
        text = inspect.getsource(function)
        tree = ast.parse(f"if True:\n{text}" if text[:1].isspace() else text)
    except (OSError, TypeError, SyntaxError) as error:
        raise LookupError("its source code is unavailable") from error
    node = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise LookupError("it is not an ordinary function")
    if not any(code == function.__code__ for code in _codes_in("".join(inspect.findsource(function)[0]))):
        raise LookupError("its source is not that of the code that runs")
    _spell_private_names(node, function.__code__)
    return node


def _spell_private_names(tree: ast.AST, code: types.CodeType) -> None:
    names = {name for part in codes(code) for name in names_in(part)}
    for node in ast.walk(tree):
        for field in ("attr", "id", "arg"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name.startswith("__") and not name.endswith("__"):
                spelled = [other for other in names if re.fullmatch(f"_[^_].*{re.escape(name)}", other)]
                setattr(node, field, spelled[0] if len(spelled) == 1 else name)


def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Return all names in a piece of code: globals, attributes, locals and names from around it."""
    return (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)


def place(function: types.FunctionType, node: ast.expr | ast.stmt) -> str:
    """Return where a node of a function's tree stands, for people."""
    tree = parse(function)
    first = min([tree.lineno, *(item.lineno for item in tree.decorator_list)])
    return f"{function.__qualname__}, line {function.__code__.co_firstlineno + node.lineno - first}"


@functools.lru_cache(maxsize=64)
def _codes_in(text: str) -> list[types.CodeType]:
    """Return the code of everything in a file. A part alone may compile to other code, because of imports around it."""
    try:
        return list(codes(compile(text, "<file>", "exec", dont_inherit=True)))
    except SyntaxError:  # a cell of a notebook may hold more than Python
        return []


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a piece of code and all that is inside it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from codes(item)


def is_written_out(node: ast.Call) -> bool:
    """Return whether a call names all its arguments, unlike ``act(*args)``."""
    return not any(isinstance(item, ast.Starred) for item in node.args) and all(item.arg for item in node.keywords)


def input_of(node: ast.Call) -> ast.expr | None:
    """Return the tensor that a call gives to an activation; None where it is not written out.

    It is the first argument, the one named `input`, the only one there is, or the owner of a method.
    """
    named = [item.value for item in node.keywords if item.arg == "input" or len(node.keywords) == 1]
    if not is_written_out(node):
        return None
    if node.args or named:
        return (node.args or named)[0]
    return node.func.value if isinstance(node.func, ast.Attribute) and not node.keywords else None


def method(mro: Sequence[type], name: str) -> tuple[type, str, Any]:
    """Find the first class that has something of a name: the class and name it was first written as, and it itself."""
    home = next(home for home in mro if name in vars(home))
    for written in vars(home).get("_hullo_written", (None, ()))[1]:
        if written.name == name:
            return written.home, written.origin, vars(home)[name]
    return home, name, vars(home)[name]


def methods(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the ordinary methods of a class and of its parents in the same file, without Python's own."""
    homes = [home for home in cls.__mro__ if home.__module__ == cls.__module__]
    for name in dict.fromkeys(name for home in homes for name in vars(home) if not name.startswith("__")):
        function = method(homes, name)[2]
        if isinstance(function, types.FunctionType):
            yield name, function
