"""Rewrite methods of a module with some calls changed.

The module gets a class of its own, derived from its class, with the rewritten methods. Everything but the changed calls
remains: control flow, arguments, `self.training`, names of parameters. The new code is ordinary Python;
`inspect.getsource(type(module).forward)` shows it.
"""

from __future__ import annotations
import __future__

import ast
import copy
import copyreg
import functools
import linecache
import types
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from torch import nn

from hullo.surgery.source import Method, Position, codes, functions_in, is_empty, names_in, parse, position


@dataclass
class Edits:
    """Hold changes to the calls of a method.

    Args:
        callees: the source of the new callee, by the position of the call.
        inputs: the position of the only argument to keep, by the position of the call.
        counters: the names of loop counters, by the position of the target of the loop.
    """

    callees: dict[Position, str] = field(default_factory=dict)
    inputs: dict[Position, Position] = field(default_factory=dict)
    counters: dict[Position, str] = field(default_factory=dict)

    def applied_to(self, function: types.FunctionType) -> str:
        """Return the text of a function with the changes."""
        node = _Editor(self).visit(copy.deepcopy(parse(function)))
        return ast.unparse(ast.fix_missing_locations(node))


class _Editor(ast.NodeTransformer):
    def __init__(self, edits: Edits) -> None:
        self.edits = edits

    def visit_Call(self, node: ast.Call) -> ast.AST:
        callee = self.edits.callees.get(position(node))
        if callee is None:
            return self.generic_visit(node)
        kept = self.edits.inputs[position(node)]
        parts = [*node.args, *(item.value for item in node.keywords)]
        parts += [node.func.value] if isinstance(node.func, ast.Attribute) else []
        argument = next(part for part in parts if position(part) == kept)
        return ast.Call(ast.parse(callee, mode="eval").body, [self.visit(argument)], [])

    def _add_counter(self, node: Any) -> Any:
        counter = self.edits.counters.get(position(node.target))
        self.generic_visit(node)
        if counter is not None:
            node.target = ast.Tuple([ast.Name(counter, ast.Store()), node.target], ast.Store())
            node.iter = ast.Call(ast.Name("enumerate", ast.Load()), [node.iter], [])
        return node

    visit_For = visit_comprehension = _add_counter  # noqa: N815


@dataclass(frozen=True)
class NewMethod:
    """Hold the text of a rewritten method of a class.

    Args:
        home: the class that defines it.
        name: its name there.
        texts: the new texts; each with the index, in :func:`functions_in`, of the function it takes the place of: the
            method itself, or one of its decorators.
    """

    home: type
    name: str
    texts: tuple[tuple[int, str], ...]


def _compile(function: types.FunctionType, node: ast.FunctionDef) -> types.CodeType:
    """Return the code of an undecorated method with the closure variables of `function`."""
    outer = [name for name in function.__code__.co_freevars if name != "__class__"]
    names = {name for code in codes(function.__code__) for name in names_in(code)}
    class_name = "Home"  # a class, for super()
    while class_name in names:
        class_name += "_"
    flags = function.__code__.co_flags
    futures = [name for name in __future__.all_feature_names if getattr(__future__, name).compiler_flag & flags]
    tree = ast.parse(f"def outer({', '.join(outer)}):\n    class {class_name}: pass")
    bare = ast.FunctionDef(**{**dict(ast.iter_fields(node)), "decorator_list": []})
    tree.body[0].body[0].body = [bare]  # type: ignore[attr-defined]
    text = "".join(f"from __future__ import {name}\n" for name in futures) + ast.unparse(
        ast.fix_missing_locations(tree)
    )
    origin = function.__code__.co_filename
    file = f"<rewritten {function.__qualname__} of {origin}, {zlib.crc32(text.encode()):08x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)  # where inspect and tracebacks look
    code: types.CodeType = compile(text, file, "exec", dont_inherit=True)
    for name in ("outer", class_name, node.name):
        code = next(item for item in code.co_consts if isinstance(item, types.CodeType) and item.co_name == name)
    return code


def _function(method: NewMethod) -> Any:
    """Return a rewritten method with the decorators of the original."""
    value = vars(method.home)[method.name]
    functions = functions_in(value)
    new = {functions[n]: _rewrite(functions[n], text) for n, text in method.texts}
    return _decorated(value, new)


def _rewrite(original: types.FunctionType, text: str) -> types.FunctionType:
    """Return a function with another text, and the variables and attributes of the original."""
    code = _compile(original, ast.parse(text).body[0])  # type: ignore[arg-type]
    cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    function = types.FunctionType(code, original.__globals__, original.__name__, original.__defaults__, closure)
    functools.update_wrapper(function, original)
    del function.__wrapped__  # type: ignore[attr-defined]
    if hasattr(original, "__wrapped__"):
        function.__wrapped__ = original.__wrapped__  # type: ignore[attr-defined]
    function.__kwdefaults__ = original.__kwdefaults__
    return function


def _decorated(
    wrapper: types.FunctionType,
    new: dict[types.FunctionType, types.FunctionType],
    copies: dict[types.FunctionType, types.FunctionType] | None = None,
) -> types.FunctionType:
    """Return a copy of a decorated function that calls new functions instead of those they take the place of.

    A decorator may refer to itself, so a copy is noted in `copies` before its closure is filled.
    """

    def changes(value: object) -> TypeGuard[types.FunctionType]:
        return isinstance(value, types.FunctionType) and not new.keys().isdisjoint(functions_in(value))

    copies = {} if copies is None else copies
    if wrapper in copies or not changes(wrapper):
        return copies.get(wrapper, wrapper)
    made = new.get(wrapper, wrapper)
    closure = made.__closure__ or ()
    cells = [types.CellType() if not is_empty(old) and changes(old.cell_contents) else old for old in closure]
    decorated = types.FunctionType(made.__code__, made.__globals__, made.__name__, made.__defaults__, tuple(cells))
    copies[wrapper] = decorated
    for cell, old in zip(cells, closure, strict=True):
        if cell is not old:
            cell.cell_contents = _decorated(old.cell_contents, new, copies)
    functools.update_wrapper(decorated, made)
    decorated.__kwdefaults__ = made.__kwdefaults__
    del decorated.__wrapped__  # type: ignore[attr-defined]
    if hasattr(wrapper, "__wrapped__"):
        decorated.__wrapped__ = _decorated(wrapper.__wrapped__, new, copies)  # type: ignore[attr-defined]
    return decorated


def why_not_rewritten(cls: type, method: Method) -> str:
    """Return why a method cannot be rewritten; empty if it can."""
    home, name, function = method
    value = vars(home)[name]
    if not isinstance(value, types.FunctionType):
        return f"its calls must be changed, but {function.__qualname__} is a {type(value).__name__}"
    if not function.__code__.co_argcount or function.__code__.co_name == "<lambda>":
        return f"its calls must be changed, but {function.__qualname__} is not a method"
    return ""


@dataclass
class Turns:
    """Hold which of the loops around a call decide, and the name of the hull for each of their iterations."""

    loops: list[int] = field(default_factory=list)
    hulls: dict[tuple[int, ...], str] = field(default_factory=dict)


class PerIteration(nn.ModuleDict):
    """Hold the hulls that a call in loops goes to."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns

    def at(self, *iterations: int) -> nn.Module:
        """Return the hull for an iteration of each loop around the call."""
        key = tuple(iterations[n] for n in self.turns.loops)
        if key not in self.turns.hulls:
            raise KeyError(
                f"iteration {', '.join(map(str, key))} of a loop that had {len(self.turns.hulls)} iterations when "
                "activations were replaced; set the number of iterations first, then replace the activations"
            )
        return self[self.turns.hulls[key]]


class _Derived(type):
    """The metaclass of derived classes. It pickles them as what they are made of, since no module contains them."""

    _hullo_written: tuple[type, tuple[NewMethod, ...]]


def _metaclass(cls: type) -> type[_Derived]:
    """Return a metaclass for subclasses of `cls`."""
    meta = _Derived if type(cls) is type else type("Derived", (_Derived, type(cls)), {})
    copyreg.pickle(meta, lambda made: (derived, made._hullo_written))  # type: ignore[attr-defined]
    return meta


class _Unregistered:
    """Do not register subclasses with their other bases."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


class _Rewritten(_Unregistered):
    """The first base of derived classes; those between have its parent, so that they come later."""


@functools.cache
def derived(cls: type, methods: tuple[NewMethod, ...]) -> type[nn.Module]:
    """Return a subclass of `cls` with the same name and rewritten methods.

    A method that a parent defines is rewritten in a class between `cls` and the parent, where super() finds it.
    """
    spaces: dict[type, dict[str, Any]] = {cls: {}}
    for method in methods:
        function, value = _function(method), vars(method.home)[method.name]
        names = [name for name, other in vars(method.home).items() if other is value]
        spaces.setdefault(method.home, {}).update(dict.fromkeys(names, function))
    parents = sorted((home for home in spaces if home is not cls), key=cls.__mro__.index)
    between = [type(home)(home.__name__, (_Unregistered, home), spaces[home]) for home in parents]
    space = {"_hullo_written": (cls, methods), "__doc__": cls.__doc__} | spaces[cls]
    space |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    new_class: Any = _metaclass(cls)(cls.__name__, (_Rewritten, cls, *between), space)
    return new_class  # type: ignore[no-any-return]


def origin_of(home: type) -> type:
    """Return the class that defines the methods which a derived class, or one between, has rewritten."""
    return home.__bases__[1] if issubclass(home.__bases__[0], _Unregistered) else home


def written(module: nn.Module) -> tuple[type, tuple[NewMethod, ...]]:
    """Return the original class of a module, and its rewritten methods."""
    current: type = type(module)
    return vars(current).get("_hullo_written", (current, ()))  # type: ignore[no-any-return]


def rewritten(module: nn.Module, methods: Iterable[NewMethod]) -> type[nn.Module]:
    """Return a class for a module with these rewritten methods, and those rewritten before."""
    cls, before = written(module)
    texts: dict[tuple[type, str], dict[int, str]] = {}
    for method in (*before, *methods):
        texts.setdefault((method.home, method.name), {}).update(dict(method.texts))
    return derived(cls, tuple(NewMethod(*key, tuple(sorted(found.items()))) for key, found in texts.items()))
