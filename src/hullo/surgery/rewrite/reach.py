"""Find the code that the forwards of a model may run, and what it does besides calling activations."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hullo.surgery.rewrite.names import changed_by
from hullo.surgery.rewrite.source import codes, parse
from hullo.surgery.rewrite.values import Assigned, Scope, Value
from hullo.surgery.rewrite.walks import Walk, is_trusted, walks_in

_ENTRIES = ("forward", "__call__", "__iter__", "__len__", "__getitem__", "__getattr__", "__contains__", "__bool__")
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_BY_NAME = frozenset({"getattr", "children", "named_children", "modules", "named_modules", "_modules", "get_submodule"})
_OF_MODULES = frozenset(vars(nn.Module()))
_MOST = 10_000  # more things inside one attribute are not looked at, such as those of a data set
_BUILTIN = ("builtins", "torch", "typing", "collections", "abc", "enum", "hullo")


class Reach:
    """The functions that the forwards of a model may run, as far as names tell; rather too many than too few.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        held = [type(item) for module in self._modules for item in vars(module).values()]
        classes = dict.fromkeys(cls for kind in (*map(type, self._modules), *held) for cls in kind.__mro__)
        self._classes = [cls for cls in classes if cls.__module__.partition(".")[0] not in _BUILTIN]
        self._names: set[str] = set()
        self.functions: dict[types.FunctionType, set[type]] = defaultdict(set)  # each with the classes it is in
        self._add([(hook, None) for module in self._modules for hook in hooks_of(module)])
        self._add([found for name in _ENTRIES for found in self._named(name)])
        self.assigned = self._assigned()

    def _named(self, name: str) -> list[tuple[Any, type | None]]:
        return [(vars(cls)[name], cls) for cls in self._classes if name in vars(cls)]

    def _add(self, things: list[tuple[Any, type | None]]) -> None:
        """Add functions, and what their code names."""
        while things:
            thing, cls = things.pop()
            for function in _functions(thing):
                if is_trusted(function):
                    continue
                new = function not in self.functions
                self.functions[function] |= {cls} if cls is not None else set()
                for code in codes(function.__code__) if new else ():
                    words = {*code.co_names, *(item for item in code.co_consts if isinstance(item, str))}
                    things += [(function.__globals__[name], None) for name in words if name in function.__globals__]
                    things += [found for name in words - self._names for found in self._named(name)]
                    self._names |= words

    def _assigned(self) -> Assigned:
        """Return the attributes that these functions assign."""
        found: dict[str, set[type]] = defaultdict(set)
        for function, classes in self.functions.items():
            for name, to_self in _assigned_in(function):
                found[name] |= classes if to_self and classes else {object}
        bound = {
            (id(thing.__self__), thing.__name__): name
            for module in self._modules
            for name, thing in held_by(module)
            if isinstance(thing, types.MethodType)
        }
        return Assigned({name: tuple(classes) for name, classes in found.items()}, bound)

    def used(self) -> set[int]:
        """Return the modules, by id, that code names or goes through, and those that they lead to in the same way."""
        used = {id(module) for module in self._modules[:1]}
        for module in self._modules:
            if id(module) in used:
                whole = self._goes_through(module)
                children = module._modules.items()
                used |= {id(child) for name, child in children if child is not None and (whole or name in self._names)}
        return used

    def _goes_through(self, module: nn.Module) -> bool:
        """Return whether the code of a module may call any child, by a name that the code does not hold."""
        if isinstance(module, _CONTAINERS) or type(module).__module__.partition(".")[0] == "torch":
            return True
        own = [function for function, classes in self.functions.items() if not classes.isdisjoint(type(module).__mro__)]
        names = {name for function in own for code in codes(function.__code__) for name in code.co_names}
        return not own or not _BY_NAME.isdisjoint(names) or "forward" in vars(module)

    def walks(
        self, read: Iterable[types.FunctionType], handed: Mapping[types.FunctionType, Sequence[nn.Module]]
    ) -> Iterator[Walk]:
        """Yield the children and descendants that functions go through which were not read with their module known.

        Args:
            read: the functions that were read.
            handed: the modules that helper functions are called with.
        """
        for function in self.functions.keys() - set(read):
            classes = self.functions[function]
            if classes and not any(issubclass(cls, nn.Module) for cls in classes):
                continue  # a method of a configuration, or the like
            try:
                tree = parse(function)
            except LookupError:
                continue
            parameters = list(inspect.signature(function).parameters)
            owners = [module for module in self._modules if isinstance(module, tuple(self.functions[function]))]
            for owner in owners if parameters and owners else [None]:
                bound = {} if owner is None else {parameters[0]: Value(owner)}
                for module, kind, where in walks_in(tree, function, Scope(function, bound, Assigned({}))):
                    if kind != "parameters":
                        found = handed.get(function) if module is None else None
                        modules: Sequence[nn.Module | None] = found or [module]
                        yield from ((item, kind, where) for item in modules)


def hooks_of(module: nn.Module) -> Iterator[Any]:
    """Yield the functions that run before and after a module's forward."""
    yield from module._forward_hooks.values()
    yield from module._forward_pre_hooks.values()


def held_by(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the modules and bound methods inside plain attributes of a module, each with the attribute's name."""
    for name, value in vars(module).items():
        if name in _OF_MODULES:
            continue
        waiting, seen = [value], set[int]()
        while waiting and len(seen) < _MOST:
            thing = waiting.pop()
            if id(thing) in seen or isinstance(thing, (type, types.ModuleType, types.FunctionType, torch.Tensor)):
                continue
            seen.add(id(thing))
            if isinstance(thing, (nn.Module, types.MethodType)):
                if thing is not value or isinstance(thing, types.MethodType):  # a module itself is like a child
                    yield name, thing
            elif isinstance(thing, dict):
                waiting += dict.values(thing)
            elif isinstance(thing, (list, tuple, set, frozenset, deque)):
                waiting += thing
            elif isinstance(thing, functools.partial):
                waiting += [thing.func, *thing.args, *thing.keywords.values()]
            else:
                kinds = [vars(cls) for cls in type(thing).__mro__]
                slots = [name for kind in kinds for name, item in kind.items() if inspect.ismemberdescriptor(item)]
                waiting += [getattr(thing, slot, None) for slot in slots]
                waiting += vars(thing).values() if type(getattr(thing, "__dict__", None)) is dict else ()


def _functions(thing: Any) -> Iterator[types.FunctionType]:
    """Yield the functions that are in something: a wrapped one and its wrapper, the getter of a property."""
    if isinstance(thing, property):
        thing = thing.fget
    if isinstance(thing, (staticmethod, classmethod, types.MethodType)):
        thing = thing.__func__
    while isinstance(thing, types.FunctionType):
        yield thing
        thing = getattr(thing, "__wrapped__", None)


def _assigned_in(function: types.FunctionType) -> Iterator[tuple[str, bool]]:
    """Yield the attributes that a function assigns, or whose parts it does, each with whether they are of `self`."""
    try:
        tree = parse(function)
    except LookupError:
        return
    first = tree.args.args[0].arg if tree.args.args else ""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()):
                pass
            case ast.AST() if isinstance(thing := changed_by(node), ast.Attribute):
                owner, name = thing.value, thing.attr
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, ast.Constant(value=str() as name), *_]):
                pass
            case _:
                continue
        yield name, isinstance(owner, ast.Name) and owner.id == first
