"""Rewrite methods of a module with some calls changed.

The module gets a class of its own, derived from its class, with the rewritten methods. Everything but the changed calls
remains: control flow, arguments, `self.training`, names of parameters. The new code is ordinary Python;
`inspect.getsource(type(module).forward)` shows it.
"""

from __future__ import annotations
import __future__

import ast
import copyreg
import functools
import linecache
import types
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch import nn

from hullo.surgery.source import Method, codes, functions_in, is_empty, names_in


@dataclass(frozen=True)
class NewMethod:
    """Hold the text of a rewritten method."""

    home: type  # the class that defines it
    name: str  # its name there
    index: int  # in `functions_in`, of the rewritten function: the method itself, or one of its decorators
    text: str


def _compile(function: types.FunctionType, text: str) -> types.CodeType:
    """Return the code of an undecorated method with the closure variables of `function`.

    A class around it lets super() work, and gives private names such as ``self.__x`` the prefix that they have in the
    original: that of its class, whose leading underscores do not count.
    """
    node = ast.FunctionDef(**{**dict(ast.iter_fields(ast.parse(text).body[0])), "decorator_list": []})
    outer = [name for name in function.__code__.co_freevars if name != "__class__"]
    names = {name for code in codes(function.__code__) for name in names_in(code)}
    around = function.__code__.co_qualname.split(".")[-2:-1]
    class_name = around[0] if around and around[0].isidentifier() else "_"  # no class, no prefix
    while class_name in names:
        class_name = f"_{class_name}"
    tree = ast.parse(f"def outer({', '.join(outer)}):\n    class {class_name}: pass")
    tree.body[0].body[0].body = [node]  # type: ignore[attr-defined]
    text = ast.unparse(ast.fix_missing_locations(tree))
    origin = function.__code__.co_filename
    file = f"<rewritten {function.__qualname__} of {origin}, {zlib.crc32(text.encode()):08x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)  # where inspect and tracebacks look
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    code: types.CodeType = compile(text, file, "exec", flags, dont_inherit=True)
    for name in ("outer", class_name, node.name):
        code = next(item for item in code.co_consts if isinstance(item, types.CodeType) and item.co_name == name)
    return code


def _rewrite(original: types.FunctionType, text: str) -> types.FunctionType:
    """Return a function with another text, and the variables and attributes of the original."""
    code = _compile(original, text)
    cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
    return _copy(original, code, [cells[name] for name in code.co_freevars])


def _copy(function: types.FunctionType, code: types.CodeType, cells: Sequence[types.CellType]) -> types.FunctionType:
    """Return a copy of a function with other code and closure variables."""
    made = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, tuple(cells))
    for name in functools.WRAPPER_ASSIGNMENTS:
        setattr(made, name, getattr(function, name))
    made.__kwdefaults__ = function.__kwdefaults__
    vars(made).update(vars(function))
    return made


def _decorated(
    wrapper: types.FunctionType,
    new: dict[types.FunctionType, types.FunctionType],
    copies: dict[types.FunctionType, types.FunctionType],
) -> types.FunctionType:
    """Return a copy of a decorated function that calls new functions instead of those they take the place of.

    A decorator may refer to itself, so a copy is noted in `copies` before its closure is filled.
    """

    def changes(value: object) -> TypeGuard[types.FunctionType]:
        return isinstance(value, types.FunctionType) and not new.keys().isdisjoint(functions_in(value))

    if wrapper in copies or not changes(wrapper):
        return copies.get(wrapper, wrapper)
    made = new.get(wrapper, wrapper)
    closure = made.__closure__ or ()
    cells = [types.CellType() if not is_empty(old) and changes(old.cell_contents) else old for old in closure]
    copies[wrapper] = decorated = _copy(made, made.__code__, cells)
    for cell, old in zip(cells, closure, strict=True):
        if cell is not old:
            cell.cell_contents = _decorated(old.cell_contents, new, copies)
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


class PerTurn(nn.ModuleDict):
    """Hold the hulls that one expression in a loop calls in turn; `repeats` is whether the first follows the last."""

    def __init__(self, repeats: bool) -> None:
        super().__init__()
        self.repeats = repeats

    def at(self, turns: list[None]) -> nn.Module:
        """Return the hull of the next turn, after those that `turns` counts."""
        turn = len(turns)
        turns.append(None)
        if turn >= len(self) and not self.repeats:
            raise IndexError(
                f"turn {turn} of a loop that had {len(self)} turns when activations were replaced; set the number of "
                "turns first, then replace the activations"
            )
        return self[str(turn % len(self))]


class _Unregistered:
    """Do not register subclasses with their other bases."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


class _Derived(type):
    """The metaclass of derived classes. It pickles them as what they are made of, since no module contains them.

    Methods are found in `_Unregistered` first, and those of a class between just before those of its parent.
    """

    _hullo_written: tuple[type, tuple[NewMethod, ...]]

    def mro(cls) -> list[type]:
        original, *between = cls.__bases__
        order = [cls, _Unregistered]
        for parent in original.__mro__:
            order += [*(item for item in between if origin_of(item) is parent), parent]
        return order


def _metaclass(cls: type) -> type[_Derived]:
    """Return a metaclass for subclasses of `cls`."""
    meta = _Derived if type(cls) is type else type("Derived", (_Derived, type(cls)), {})
    copyreg.pickle(meta, lambda made: (derived, made._hullo_written))  # type: ignore[attr-defined]
    return meta


@functools.cache
def derived(cls: type, methods: tuple[NewMethod, ...]) -> type[nn.Module]:
    """Return a subclass of `cls` with the same name and rewritten methods.

    A method that a parent defines is rewritten in a class between `cls` and the parent, where super() finds it.
    """
    texts: dict[tuple[type, str], dict[int, str]] = defaultdict(dict)
    for method in methods:
        texts[method.home, method.name][method.index] = method.text
    spaces: dict[type, dict[str, Any]] = defaultdict(dict)
    for (home, name), changed in texts.items():
        value = vars(home)[name]
        functions = functions_in(value)
        function = _decorated(value, {functions[n]: _rewrite(functions[n], text) for n, text in changed.items()}, {})
        spaces[home] |= dict.fromkeys([key for key, other in vars(home).items() if other is value], function)
    parents = [home for home in spaces if home is not cls]
    between = [type(home)(home.__name__, (_Unregistered, home), spaces[home]) for home in parents]
    space = {"_hullo_written": (cls, methods), "__doc__": cls.__doc__} | spaces[cls]
    space |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    new_class: Any = _metaclass(cls)(cls.__name__, (cls, *between), space)
    return new_class  # type: ignore[no-any-return]


def origin_of(home: type) -> type:
    """Return the class that defines the methods which a derived class, or one between, has rewritten."""
    if isinstance(home, _Derived):
        return home.__bases__[0]
    return home.__bases__[1] if home.__bases__[0] is _Unregistered else home


def written(module: nn.Module) -> tuple[type, tuple[NewMethod, ...]]:
    """Return the original class of a module, and its rewritten methods."""
    current: type = type(module)
    return vars(current).get("_hullo_written", (current, ()))  # type: ignore[no-any-return]


def rewrite(module: nn.Module, methods: Iterable[NewMethod]) -> None:
    """Give a module a class with these rewritten methods, and those rewritten before."""
    cls, before = written(module)
    latest = {(method.home, method.name, method.index): method for method in (*before, *methods)}
    object.__setattr__(module, "__class__", derived(cls, tuple(latest.values())))  # a class may refuse assignments
