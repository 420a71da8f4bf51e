"""Rewrite methods of a module with some calls changed.

The module gets a class of its own, derived from its class, with the rewritten methods. Everything but the changed calls
remains: control flow, arguments, `self.training`, names of parameters. The new code is ordinary Python;
`inspect.getsource(type(module).forward)` shows it.
"""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import gc
import inspect
import linecache
import types
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from hullo.surgery.rewrite.source import Position, codes, is_empty, names_in, parse, position


@dataclass
class Edits:
    """Hold changes to the calls of a function.

    Args:
        callees: the source of the new callee, by the position of the old one.
        inputs: the position of the only argument to keep, by the position of the call.
        counters: the names of loop counters, by the position of the target of the loop.
    """

    callees: dict[Position, str] = field(default_factory=dict)
    inputs: dict[Position, Position] = field(default_factory=dict)
    counters: dict[Position, str] = field(default_factory=dict)

    def applied_to(self, function: types.FunctionType, name: str) -> str:
        """Return the text of a function with the changes and a name."""
        code = function.__code__
        is_shadowed = "enumerate" in {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *function.__globals__}
        count = "__import__('builtins').enumerate" if is_shadowed else "enumerate"
        node = _Editor(self, ast.parse(count, mode="eval").body).visit(copy.deepcopy(parse(function)))
        node.name = name
        return ast.unparse(ast.fix_missing_locations(node))


class _Editor(ast.NodeTransformer):
    def __init__(self, edits: Edits, count: ast.expr) -> None:
        self.edits, self.count = edits, count

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and position(node) in self.edits.callees:
            return ast.parse(self.edits.callees[position(node)], mode="eval").body
        return super().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        kept_position = self.edits.inputs.get(position(node))
        if kept_position is not None:
            parts = [*node.args, *(item.value for item in node.keywords)]
            parts += [node.func.value] if isinstance(node.func, ast.Attribute) else []
            argument = next(part for part in parts if position(part) == kept_position)
            return ast.Call(self.visit(node.func), [self.visit(argument)], [])
        return self.generic_visit(node)

    def _add_counter(self, node: Any) -> Any:
        counter = self.edits.counters.get(position(node.target))
        self.generic_visit(node)
        if counter is not None:
            node.target = ast.Tuple([ast.Name(counter, ast.Store()), node.target], ast.Store())
            node.iter = ast.Call(self.count, [node.iter], [])
        return node

    visit_For = visit_comprehension = _add_counter  # noqa: N815


@dataclass(frozen=True)
class NewMethod:
    """Hold the text of a rewritten method, and the class and the name of the original."""

    name: str
    cls: type
    origin: str
    text: str


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


def _function(wrapper: types.FunctionType, method: NewMethod) -> types.FunctionType:
    """Return a rewritten method with the decorators of the original."""
    original = inspect.unwrap(wrapper)
    code = _compile(original, ast.parse(method.text).body[0])  # type: ignore[arg-type]
    cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    function = types.FunctionType(code, original.__globals__, method.name, original.__defaults__, closure)
    functools.update_wrapper(function, original)
    del function.__wrapped__  # type: ignore[attr-defined]
    function.__kwdefaults__ = original.__kwdefaults__
    function.__name__ = method.name
    return _decorated(wrapper, original, function)


def _decorated(
    wrapper: types.FunctionType, original: types.FunctionType, new: types.FunctionType
) -> types.FunctionType:
    """Return a copy of a decorated function that calls `new` instead of `original`."""
    if wrapper is original:
        return new
    before: Any = wrapper.__wrapped__  # type: ignore[attr-defined]
    inner = _decorated(before, original, new)
    closure = tuple(types.CellType(inner) if holds(cell, before) else cell for cell in wrapper.__closure__ or ())
    decorated = types.FunctionType(
        wrapper.__code__, wrapper.__globals__, wrapper.__name__, wrapper.__defaults__, closure
    )
    functools.update_wrapper(decorated, wrapper)
    decorated.__kwdefaults__, decorated.__wrapped__ = wrapper.__kwdefaults__, inner  # type: ignore[attr-defined]
    return decorated


def can_be_decorated_again(wrapper: Any) -> bool:
    """Return whether all decorators of a function are plain closures that refer to it by one variable.

    PyTorch's decorators do more than that.
    """
    while hasattr(wrapper, "__wrapped__"):
        if not isinstance(wrapper, types.FunctionType) or wrapper.__globals__["__name__"].partition(".")[0] == "torch":
            return False
        inner: Any = wrapper.__wrapped__  # type: ignore[attr-defined]
        others = [cell for cell in wrapper.__closure__ or () if not holds(cell, inner)]
        if any(item is inner for cell in others for item in gc.get_referents(*gc.get_referents(cell))):
            return False
        wrapper = inner
    return True


def leads_to(wrapper: Any, wrapped: types.FunctionType) -> bool:
    """Return whether a decorated function refers to the original in its closure."""
    while wrapper is not wrapped:
        inner = wrapper.__wrapped__
        cells = wrapper.__closure__ or () if isinstance(wrapper, types.FunctionType) else None
        if cells is not None and not any(holds(cell, inner) for cell in cells):
            return False
        wrapper = inner
    return True


def holds(cell: types.CellType, thing: Any) -> bool:
    """Return whether a closure variable is a thing."""
    return not is_empty(cell) and cell.cell_contents is thing


class PerIteration(nn.ModuleDict):
    """Hold the modules that a call in a loop goes to, by the index of the iteration."""

    def __getitem__(self, key: str) -> nn.Module:
        if key not in self:
            raise KeyError(
                f"iteration {key} of a loop that had {len(self)} iterations when activations were replaced; set the "
                "number of iterations first, then replace the activations"
            )
        return super().__getitem__(key)


class _DerivedMarker:
    """Represent the derived class in a pickle, which cannot name it."""


class Rewritten:
    """Make modules with rewritten methods copyable and picklable; the first base of every derived class."""

    _hullo_written: ClassVar[tuple[type, tuple[NewMethod, ...]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Do not register derived classes with the bases."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        if isinstance(reduced, str):
            return reduced
        make, given, *state = reduced
        given = tuple(_DerivedMarker if item is type(self) else item for item in given)
        return _restore, (*self._hullo_written, _DerivedMarker if make is type(self) else make, given), *state

    def __setstate__(self, state: Any) -> None:
        children = dict(state.get("_modules") or {}) if isinstance(state, dict) else {}
        super().__setstate__(state)  # type: ignore[misc]  # may set an attribute that has become a hull
        put_children(self, children)  # type: ignore[arg-type]


def put_children(module: nn.Module, children: dict[str, nn.Module | None]) -> None:
    """Set children of a module, and delete attributes of the same names, which would hide them."""
    for name, child in children.items():
        vars(module).pop(name, None)
        module._modules[name] = child


def _restore(cls: type, methods: tuple[NewMethod, ...], make: Any, given: Iterable[Any]) -> Any:
    new_class = derived(cls, methods)
    arguments = (new_class if item is _DerivedMarker else item for item in given)
    module = (cls if make is _DerivedMarker else make)(*arguments)
    module.__class__ = new_class
    return module


class _Derived(type):
    """Make calls of a derived class construct a module of the original class."""

    _hullo_written: tuple[type, tuple[NewMethod, ...]]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._hullo_written[0](*args, **kwargs)


@functools.cache
def derived(cls: type, methods: tuple[NewMethod, ...]) -> type[nn.Module]:
    """Return a subclass of `cls` with the same name and rewritten methods."""
    space: dict[str, Any] = {"_hullo_written": (cls, methods), "__doc__": cls.__doc__}
    space |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    for method in methods:
        space[method.name] = _function(vars(method.cls)[method.origin], method)
    meta = type("Derived", (_Derived, type(cls)), {}) if type(cls) is not type else _Derived
    new_class: type[nn.Module] = meta(cls.__name__, (Rewritten, cls), space)
    return new_class


def rewritten(module: nn.Module, methods: dict[str, NewMethod]) -> type[nn.Module]:
    """Return a class for a module with these rewritten methods, and those rewritten before."""
    current: type = type(module)
    cls, before = vars(current).get("_hullo_written", (current, ()))
    all_methods = {method.name: method for method in before} | methods
    return derived(cls, tuple(all_methods.values()))
