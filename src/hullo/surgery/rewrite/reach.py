"""Find the code that the forwards of a model may run, and where it iterates over children or parameters."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hullo.modules import Hull
from hullo.surgery.rewrite.source import changed_by, codes, parse, place
from hullo.surgery.rewrite.values import Assigned, Scope, UnknownError, Value
from hullo.surgery.rewrite.write import PerIteration

Walk = tuple[nn.Module | None, str, str]  # the module, None if unknown; what code iterates over; the place

_CHILDREN = frozenset({"children", "named_children", "_modules"})
_DESCENDANTS = frozenset({"modules", "named_modules", "apply"})
_PARAMETERS = frozenset({"parameters", "named_parameters", "state_dict"})
_INSPECTING = (
    "torch", "transformers.utils", "transformers.modeling_utils", "transformers.configuration_utils",
    "diffusers.models.modeling_utils", "diffusers.configuration_utils", "diffusers.utils", "accelerate", "peft",
)  # fmt: skip  # they inspect modules without calling them
_LOGGING = frozenset({"print", "warn", "warning", "warning_once", "info", "debug", "error", "exception", "log"})
_HARMLESS = frozenset({"next", "any", "all"})


def walks_in(tree: ast.AST, function: types.FunctionType, scope: Scope) -> Iterator[Walk]:
    """Yield the modules whose children, descendants or parameters a function iterates over."""
    if only_inspects(function):
        return
    harmless = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _HARMLESS
        for part in ast.walk(node)
    }
    logged = {part for node in ast.walk(tree) if _only_logs(node) for part in ast.walk(node)}
    keyed = {node.value for node in ast.walk(tree) if isinstance(node, ast.Subscript)}  # self._modules[name]
    single = dict(_single_attributes(tree))
    unaffected = set(_loops_by_type(tree, scope))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr="__dict__"):
                kind, sure = "children", False
            case ast.Call(func=ast.Name(id="repr" | "str" | "format"), args=[value, *_]) | ast.FormattedValue(value):
                kind, sure = "text", False
            case ast.Attribute(value=value, attr=name):
                kind = "" if node in keyed or node in unaffected else _kind(name)
                sure = name != "apply" and kind != "parameters"  # other objects have these, too
            case ast.Call(func=ast.Name(id="vars" | "dir"), args=[value]):
                kind, sure = "children", True
            case _:
                continue
        if not kind or (kind == "parameters" and node in harmless) or (kind == "text" and node in logged):
            continue
        try:
            owner = scope.thing(value)
        except UnknownError:
            owner = None
        if node in single and not (isinstance(owner, nn.Module) and callable(vars(owner).get(single[node]))):
            continue
        if isinstance(owner, nn.Module) or (owner is None and sure):
            yield owner, kind, place(function, node)


def _only_logs(node: ast.AST) -> bool:
    """Return whether code only raises an error, warns or logs."""
    match node:
        case ast.Raise() | ast.Assert():
            return True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _LOGGING
    return False


def _loops_by_type(tree: ast.AST, scope: Scope) -> Iterator[ast.expr]:
    """Yield the ``x.modules`` of loops that skip hulls because they test for other types."""
    for node in ast.walk(tree):
        match node:
            case ast.For(target=target, iter=ast.Call(func=ast.Attribute() as walk), body=body, orelse=[]):
                tests = [part.test if isinstance(part, ast.If) and not part.orelse else None for part in body]
            case ast.comprehension(target=target, iter=ast.Call(func=ast.Attribute() as walk), ifs=[test, *_]):
                tests = [test]
            case _:
                continue
        name = target.elts[-1] if isinstance(target, ast.Tuple) else target
        if all(_excludes_hulls(test, name, scope) for test in tests):
            yield walk


def _excludes_hulls(test: ast.expr | None, name: ast.expr, scope: Scope) -> bool:
    """Return whether a test is false for hulls and containers of hulls."""
    match test, name:
        case ast.BoolOp(op=ast.And(), values=[first, *_]), _:
            return _excludes_hulls(first, name, scope)
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=asked), kinds]), ast.Name(id=own):
            try:
                value: Any = scope.thing(kinds)
                classes = tuple(value) if isinstance(value, list) else value  # a tuple is evaluated to a list
                return asked == own and not any(issubclass(cls, classes) for cls in (Hull, PerIteration))
            except (UnknownError, TypeError):
                return False
    return False


def _single_attributes(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield the ``x.__dict__`` of which code reads a single attribute, each with its name."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Attribute(attr="__dict__") as where, slice=ast.Constant(value=str() as name)):
                yield where, name
            case ast.Compare(
                left=ast.Constant(value=str() as name),
                ops=[ast.In() | ast.NotIn()],
                comparators=[ast.Attribute(attr="__dict__") as where],
            ):
                yield where, name


def _kind(name: str) -> str:
    kinds = {"children": _CHILDREN, "modules": _DESCENDANTS, "parameters": _PARAMETERS}
    return next((kind for kind, names in kinds.items() if name in names), "")


def only_inspects(function: types.FunctionType) -> bool:
    """Return whether a function is from a package that only inspects modules."""
    home = function.__module__ or ""
    if home.partition(".")[0] in sys.stdlib_module_names and home != "__main__":
        return True
    return any(home == name or home.startswith(f"{name}.") for name in _INSPECTING)


_ENTRIES = (
    *("forward", "__call__", "__iter__", "__len__", "__getitem__", "__getattr__", "__contains__", "__bool__"),
    *("train", "eval"),
)
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_BY_NAME = frozenset({"getattr", "children", "named_children", "modules", "named_modules", "_modules", "get_submodule"})
_OF_MODULES = frozenset(vars(nn.Module()))
_MAX_OBJECTS = 10_000  # further objects in an attribute are ignored, such as those of a data set
_BUILTIN = ("builtins", "torch", "typing", "collections", "abc", "enum", "hullo")


class Reach:
    """Collect the functions that the forwards of a model may run, judging by names; a superset of those that run."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        attribute_types = [type(item) for module in self._modules for item in vars(module).values()]
        classes = dict.fromkeys(cls for kind in (*map(type, self._modules), *attribute_types) for cls in kind.__mro__)
        self._classes = [cls for cls in classes if cls.__module__.partition(".")[0] not in _BUILTIN]
        self._names: set[str] = set()
        self.functions: dict[types.FunctionType, set[type]] = defaultdict(set)  # each with the classes it is in
        self._add([(hook, None) for module in self._modules for hook in hooks_of(module)])
        self._add([found for name in _ENTRIES for found in self._named(name)])
        self.assigned = self._assigned()

    def _named(self, name: str) -> list[tuple[Any, type | None]]:
        return [(vars(cls)[name], cls) for cls in self._classes if name in vars(cls)]

    def _add(self, things: list[tuple[Any, type | None]]) -> None:
        """Add functions, and the functions that their code names."""
        while things:
            thing, cls = things.pop()
            for function in _functions(thing):
                if only_inspects(function):
                    continue
                new = function not in self.functions
                self.functions[function] |= {cls} if cls is not None else set()
                for code in codes(function.__code__) if new else ():
                    mentioned = {*code.co_names, *(item for item in code.co_consts if isinstance(item, str))}
                    things += [(function.__globals__[name], None) for name in mentioned if name in function.__globals__]
                    things += [found for name in mentioned - self._names for found in self._named(name)]
                    self._names |= mentioned

    def _assigned(self) -> Assigned:
        """Return the attributes that these functions assign."""
        assigned: dict[str, set[type]] = defaultdict(set)
        for function, classes in self.functions.items():
            for name, to_self in _assigned_in(function):
                assigned[name] |= classes if to_self and classes else {object}
        bound = {
            (id(thing.__self__), thing.__name__): name
            for module in self._modules
            for name, thing in held_by(module)
            if isinstance(thing, types.MethodType)
        }
        return Assigned({name: tuple(classes) for name, classes in assigned.items()}, bound)

    def used(self) -> set[int]:
        """Return the ids of the modules that code names or iterates over, starting from the model."""
        used = {id(module) for module in self._modules[:1]}
        for module in self._modules:
            if id(module) in used:
                may_call_any = self._may_call_any_child(module)
                children = module._modules.items()
                named = [child for name, child in children if may_call_any or name in self._names]
                used |= {id(child) for child in named if child is not None}
        return used

    def _may_call_any_child(self, module: nn.Module) -> bool:
        """Return whether the code of a module may call children without naming them."""
        if isinstance(module, _CONTAINERS) or type(module).__module__.partition(".")[0] == "torch":
            return True
        own = [function for function, classes in self.functions.items() if not classes.isdisjoint(type(module).__mro__)]
        names = {name for function in own for code in codes(function.__code__) for name in code.co_names}
        return not own or not _BY_NAME.isdisjoint(names) or "forward" in vars(module)

    def walks(
        self, read: Iterable[types.FunctionType], passed: Mapping[types.FunctionType, Sequence[nn.Module]]
    ) -> Iterator[Walk]:
        """Yield the modules that functions iterate over, other than the functions in `read`.

        Args:
            read: the functions that were read together with their module.
            passed: the modules that helper functions are called with.
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
                        callers = passed.get(function) if module is None else None
                        modules: Sequence[nn.Module | None] = callers or [module]
                        yield from ((item, kind, where) for item in modules)


def hooks_of(module: nn.Module) -> Iterator[Any]:
    """Yield the forward hooks and forward pre-hooks of a module."""
    yield from module._forward_hooks.values()
    yield from module._forward_pre_hooks.values()


def held_by(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the modules and bound methods inside attributes of a module that are not children, each with the name."""
    for name, value in vars(module).items():
        if name in _OF_MODULES:
            continue
        pending, seen = [value], set[int]()
        while pending and len(seen) < _MAX_OBJECTS:
            thing = pending.pop()
            if id(thing) in seen or isinstance(thing, (type, types.ModuleType, types.FunctionType, torch.Tensor)):
                continue
            seen.add(id(thing))
            if isinstance(thing, (nn.Module, types.MethodType)):
                if thing is not value or isinstance(thing, types.MethodType):  # a module as attribute is like a child
                    yield name, thing
            elif isinstance(thing, dict):
                pending += dict.values(thing)
            elif isinstance(thing, (list, tuple, set, frozenset, deque)):
                pending += thing
            elif isinstance(thing, functools.partial):
                pending += [thing.func, *thing.args, *thing.keywords.values()]
            else:
                kinds = [vars(cls) for cls in type(thing).__mro__]
                slots = [name for kind in kinds for name, item in kind.items() if inspect.ismemberdescriptor(item)]
                pending += [getattr(thing, slot, None) for slot in slots]
                pending += vars(thing).values() if type(getattr(thing, "__dict__", None)) is dict else ()


def _functions(thing: Any) -> Iterator[types.FunctionType]:
    """Yield the functions in a value: a wrapper and what it wraps, the getter of a property."""
    if isinstance(thing, property):
        thing = thing.fget
    if isinstance(thing, (staticmethod, classmethod, types.MethodType)):
        thing = thing.__func__
    while isinstance(thing, types.FunctionType):
        yield thing
        thing = getattr(thing, "__wrapped__", None)


def _assigned_in(function: types.FunctionType) -> Iterator[tuple[str, bool]]:
    """Yield the attributes that a function assigns or modifies, each with whether they are attributes of `self`."""
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
