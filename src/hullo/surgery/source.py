"""The code of a forward: read as a tree, and written again with some calls changed.

A module's code is changed by giving that one module a class of its own, derived from the one it had, in which a few
methods are written anew. Everything but the changed calls stays as it was: control flow, arguments, `self.training`,
names of parameters. The new code is ordinary Python; `inspect.getsource(type(module).forward)` shows it.
"""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import inspect
import linecache
import types
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

Position = tuple[int, int, int | None, int | None]


def position(node: ast.expr | ast.stmt) -> Position:
    """Where a node stands in its function's text, which tells it from all others of its type."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


@functools.lru_cache(maxsize=1024)
def parse(function: types.FunctionType) -> ast.FunctionDef:
    """The tree of a function's source.

    Raises:
        LookupError: there is no source, or it is not that of the code that runs.
    """
    try:
        text = inspect.getsource(function)
        tree = ast.parse(f"if True:\n{text}" if text[:1].isspace() else text)
    except (OSError, TypeError, SyntaxError) as error:
        raise LookupError("its source is not to be had") from error
    node = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise LookupError("it is not an ordinary function")
    if not any(code == function.__code__ for code in _codes_in("".join(inspect.findsource(function)[0]))):
        raise LookupError("its source is not that of the code that runs")
    return node


def place(function: types.FunctionType, node: ast.expr | ast.stmt) -> str:
    """Where a node of a function's tree stands, for a reader."""
    tree = parse(function)
    first = min([tree.lineno, *(item.lineno for item in tree.decorator_list)])
    return f"{function.__qualname__}, line {function.__code__.co_firstlineno + node.lineno - first}"


@functools.lru_cache(maxsize=64)
def _codes_in(text: str) -> list[types.CodeType]:
    """The code of everything in a file. A part alone may compile to other code: imports around it make a difference."""
    try:
        return list(codes(compile(text, "<file>", "exec", dont_inherit=True)))
    except SyntaxError:  # a cell of a notebook may hold more than Python
        return []


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A piece of code and all that is inside it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from codes(item)


def _compile(function: types.FunctionType, node: ast.FunctionDef) -> types.CodeType:
    """The code of a method, undecorated, with the names around it that `function` has around it."""
    outer = [name for name in function.__code__.co_freevars if name != "__class__"]
    home = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
    around = home if home.isidentifier() else "Home"  # the class it is in: private names are spelled by it
    flags = function.__code__.co_flags
    futures = [name for name in __future__.all_feature_names if getattr(__future__, name).compiler_flag & flags]
    tree = ast.parse(f"def outer({', '.join(outer)}):\n    class {around}: pass")
    bare = ast.FunctionDef(**{**dict(ast.iter_fields(node)), "decorator_list": []})
    tree.body[0].body[0].body = [bare]  # type: ignore[attr-defined]
    text = "".join(f"from __future__ import {name}\n" for name in futures) + ast.unparse(
        ast.fix_missing_locations(tree)
    )
    file = f"<{function.__module__}.{function.__qualname__} {zlib.crc32(text.encode()):08x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)  # where inspect and tracebacks look
    code: types.CodeType = compile(text, file, "exec", dont_inherit=True)
    for name in ("outer", around, node.name):
        code = next(item for item in code.co_consts if isinstance(item, types.CodeType) and item.co_name == name)
    return code


@dataclass
class Edits:
    """Changes to one function's calls.

    Args:
        functions: what is called instead, as source, by the position of the call.
        inputs_only: calls that pass on nothing but the input, because the rest was the function's parameters.
        turns: the names of counters for loops, by the position of the loop's target.
    """

    functions: dict[Position, str] = field(default_factory=dict)
    inputs_only: set[Position] = field(default_factory=set)
    turns: dict[Position, str] = field(default_factory=dict)

    def applied_to(self, function: types.FunctionType, name: str) -> str:
        """The function's text with the changes, under a name."""
        node = _Editor(self).visit(copy.deepcopy(parse(function)))
        node.name = name
        return ast.unparse(ast.fix_missing_locations(node))


class _Editor(ast.NodeTransformer):
    def __init__(self, edits: Edits) -> None:
        self.edits = edits

    def visit_Call(self, node: ast.Call) -> ast.AST:
        place = position(node)
        self.generic_visit(node)
        if place not in self.edits.functions:
            return node
        if place in self.edits.inputs_only:
            node.args, node.keywords = [input_of(node)], []
        node.func = ast.parse(self.edits.functions[place], mode="eval").body
        return node

    def _counted(self, node: Any) -> Any:
        counter = self.edits.turns.get(position(node.target))
        self.generic_visit(node)
        if counter is not None:
            node.target = ast.Tuple([ast.Name(counter, ast.Store()), node.target], ast.Store())
            node.iter = ast.Call(ast.Name("enumerate", ast.Load()), [node.iter], [])
        return node

    visit_For = visit_comprehension = _counted  # noqa: N815


def input_of(node: ast.Call) -> ast.expr:
    """The tensor that a call of an activation is given: its first argument, `input`, or the owner of the method."""
    named = [item.value for item in node.keywords if item.arg == "input"]
    if node.args or named:
        return (node.args or named)[0]
    if isinstance(node.func, ast.Attribute):
        return node.func.value
    raise LookupError("it is called without an input")


@dataclass(frozen=True)
class Written:
    """A method to write anew: its text, and the class and name of the method whose surroundings it gets."""

    name: str
    home: type
    origin: str
    text: str


class _Derived(type):
    """The type of derived classes: to make another module of one is to make one of the class it was derived from."""

    _hullo_written: tuple[type, tuple[Written, ...]]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._hullo_written[0](*args, **kwargs)


@functools.cache
def derived(cls: type, methods: tuple[Written, ...]) -> type[nn.Module]:
    """A class like `cls`, with the same name, some of whose methods are written anew. One for all modules alike."""
    space: dict[str, Any] = {"__reduce_ex__": _reduce, "_hullo_written": (cls, methods), "__doc__": cls.__doc__}
    space |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    for method in methods:
        space[method.name] = _function(vars(method.home)[method.origin], method)
    meta = type("Derived", (_Derived, type(cls)), {}) if type(cls) is not type else _Derived
    made: type[nn.Module] = meta(cls.__name__, (cls,), space)
    return made


def _function(original: types.FunctionType, method: Written) -> types.FunctionType:
    code = _compile(original, ast.parse(method.text).body[0])  # type: ignore[arg-type]
    cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    function = types.FunctionType(code, original.__globals__, method.name, original.__defaults__, closure)
    functools.update_wrapper(function, original)
    del function.__wrapped__  # type: ignore[attr-defined]
    function.__kwdefaults__ = original.__kwdefaults__
    function.__name__ = method.name
    return function


def _reduce(self: nn.Module, protocol: int) -> tuple[Any, ...]:
    return _restore, type(self)._hullo_written, self.__getstate__()  # type: ignore[attr-defined, no-untyped-call]


def _restore(cls: type, methods: tuple[Written, ...]) -> nn.Module:
    made = derived(cls, methods)
    module: nn.Module = made.__new__(made)
    return module


def rewritten(module: nn.Module, methods: dict[str, Written]) -> type[nn.Module]:
    """The class for a module in which these methods are written anew, and those that were so before."""
    current: type = type(module)
    cls, before = getattr(current, "_hullo_written", (current, ()))
    kept = {method.name: method for method in before} | methods
    return derived(cls, tuple(kept.values()))


def method(mro: Sequence[type], name: str) -> tuple[type, str, Any]:
    """The first of the classes that has something of a name: the class and name it was first written as, and it."""
    home = next(home for home in mro if name in vars(home))
    for written in vars(home).get("_hullo_written", (None, ()))[1]:
        if written.name == name:
            return written.home, written.origin, vars(home)[name]
    return home, name, vars(home)[name]


def methods(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """The ordinary methods of a class and of its parents in the same file, without Python's own (__init__ ...)."""
    homes = [home for home in cls.__mro__ if home.__module__ == cls.__module__]
    for name in dict.fromkeys(name for home in homes for name in vars(home) if not name.startswith("__")):
        function = method(homes, name)[2]
        if isinstance(function, types.FunctionType):
            yield name, function
