"""Evaluate expressions of a function without running it, as far as they do not depend on its arguments."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import itertools
import operator
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hullo.surgery.rewrite.source import bindings, names_of, parse
from hullo.surgery.rewrite.write import PerIteration

Attribute = tuple[nn.Module, str]  # a module and the name of its attribute

_ACTIVATIONS = nn.ReLU.__module__
_PURE = frozenset({
    range, len, min, max, abs, int, float, bool, str, isinstance, issubclass, callable, functools.partial,
    torch.jit.is_scripting,  # type: ignore[attr-defined]
    torch.jit.is_tracing,  # type: ignore[attr-defined]
    torch.onnx.is_in_onnx_export, torch.compiler.is_compiling,
})  # fmt: skip
MAX_ITERATIONS = 512  # a loop with more iterations is treated as one of unknown length
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.USub: operator.neg,
    ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


class UnknownError(Exception):
    """Raised for an expression that depends on arguments, on the mode, or on earlier runs."""


@dataclass(frozen=True, eq=False)
class Value:
    """Hold the value of an expression, the attribute of a module that it is, and the items of a sequence."""

    thing: Any
    attribute: Attribute | None = None
    items: tuple[Value, ...] | None = None


@dataclass(frozen=True)
class Assigned:
    """Hold the attributes that code of the model assigns: their values are unknown before it runs.

    Args:
        classes: the classes with such an attribute, by its name.
        bound: the attributes that refer to bound methods, by the id of the module of the method and its name.
    """

    classes: Mapping[str, tuple[type, ...]]
    bound: Mapping[tuple[int, str], str] = field(default_factory=dict)

    def has(self, owner: Any, name: str) -> bool:
        return name in self.classes and isinstance(owner, self.classes[name])


class Scope:
    """Hold the names of a function that are known without running it.

    A local name is known if it is assigned once, to something known; loop variables are known in each iteration.

    Args:
        function: the function.
        bound: the known arguments.
        assigned: attributes that code of the model assigns.
    """

    def __init__(self, function: types.FunctionType, bound: Mapping[str, Value], assigned: Assigned) -> None:
        self._function, self.assigned = function, assigned
        names = names_of(function)
        self.loop_names, self.local, self.definitions = names.loop_names, names.local, names.definitions
        self._bindable = names.bindable
        self._known = {name: value for name, value in bound.items() if name in self._bindable}

    def bind(self, target: ast.expr, value: Value) -> bool:
        """Assign a value to a target; return whether all its names are known now."""
        if isinstance(target, ast.Name) and target.id in self._bindable:
            self._known[target.id] = value
            return True
        parts = _unpack(value) if isinstance(target, (ast.Tuple, ast.List)) else None
        if parts is None or len(parts) != len(target.elts):  # type: ignore[attr-defined]
            self.forget(target)
            return False
        bound = [self.bind(part, item) for part, item in zip(target.elts, parts, strict=True)]  # type: ignore[attr-defined]
        return all(bound)

    def forget(self, target: ast.expr) -> None:
        """Make the names of a target unknown."""
        for name in [target.id] if isinstance(target, ast.Name) else bindings(target):
            self._known.pop(name, None)

    def thing(self, node: ast.expr) -> Any:
        """Return the Python value of an expression, without its attribute and items."""
        return self.evaluate(node).thing

    def elements(self, node: ast.expr) -> tuple[Value, ...]:
        """Return the items of an iterable expression."""
        return _elements(self.evaluate(node))

    def evaluate(self, node: ast.AST) -> Value:
        """Return the value of an expression; raise UnknownError if it is not known before the function runs."""
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None:
            raise UnknownError
        try:
            value: Value = handler(node)
        except UnknownError:
            raise
        except Exception as error:  # attributes and operators may raise anything
            raise UnknownError from error
        if isinstance(value.thing, Tensor):
            raise UnknownError
        return value

    # One method per type of node

    def _constant(self, node: ast.Constant) -> Value:
        return Value(node.value)

    def _name(self, node: ast.Name) -> Value:
        if node.id not in self.local:
            return Value(self._outside(node.id))
        if node.id not in self._known:
            raise UnknownError
        return self._known[node.id]

    def _outside(self, name: str) -> Any:
        """Return the value of a closure variable, a global or a built-in."""
        code, cells = self._function.__code__, self._function.__closure__ or ()
        if name in code.co_freevars:
            return cells[code.co_freevars.index(name)].cell_contents
        return self._function.__globals__[name] if name in self._function.__globals__ else vars(builtins)[name]

    def _attribute(self, node: ast.Attribute) -> Value:
        owner = self.thing(node.value)
        if isinstance(owner, types.ModuleType):
            return Value(getattr(owner, node.attr))
        if self.assigned.has(owner, node.attr) or (isinstance(owner, nn.Module) and node.attr == "training"):
            raise UnknownError
        if not isinstance(owner, nn.Module):
            return Value(getattr(owner, node.attr))
        if node.attr in vars(owner) or node.attr in owner._modules:
            return Value(getattr(owner, node.attr), (owner, node.attr))
        member = inspect.getattr_static(type(owner), node.attr, None)
        if isinstance(member, property):
            return self._getter(member, owner)
        if member is None and type(owner).__getattr__ is not nn.Module.__getattr__:
            raise UnknownError  # __getattr__ computes it
        return Value(getattr(owner, node.attr))

    def _getter(self, member: property, owner: nn.Module) -> Value:
        """Return the value of a property whose code only returns an expression."""
        function = member.fget
        if not isinstance(function, types.FunctionType):
            raise UnknownError
        body = parse(function).body
        match [item for item in body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))]:
            case [ast.Return(value=ast.expr() as result)]:
                name = next(iter(inspect.signature(function).parameters))
                return Scope(function, {name: Value(owner)}, self.assigned).evaluate(result)
        raise UnknownError

    def _subscript(self, node: ast.Subscript) -> Value:
        value = self.evaluate(node.value)
        if isinstance(node.slice, ast.Slice):
            bounds = (node.slice.lower, node.slice.upper, node.slice.step)
            lower, upper, step = (None if item is None else self.thing(item) for item in bounds)
            return _sequence(_elements(value)[lower:upper:step])
        index: Any = self.thing(node.slice)
        if value.items is not None:
            return value.items[index]  # type: ignore[no-any-return]
        if not isinstance(value.thing, nn.Module):
            return Value(value.thing[index])
        if isinstance(value.thing, _CONTAINERS) and type(value.thing).__getitem__ in _GETTERS:
            name = list(value.thing._modules)[index] if isinstance(index, int) else index
            return Value(value.thing._modules[name], (value.thing, name))
        raise UnknownError

    def _tuple(self, node: ast.Tuple | ast.List) -> Value:
        return _sequence(tuple(self.evaluate(item) for item in node.elts))

    _list = _tuple

    def _dict(self, node: ast.Dict) -> Value:
        if None in node.keys:
            raise UnknownError
        return Value({self.thing(key): self.thing(item) for key, item in zip(node.keys, node.values, strict=True)})  # type: ignore[arg-type]

    def _joinedstr(self, node: ast.JoinedStr) -> Value:
        return Value("".join(self.thing(item) for item in node.values))

    def _formattedvalue(self, node: ast.FormattedValue) -> Value:
        if node.conversion != -1 or node.format_spec is not None:
            raise UnknownError
        return Value(f"{self.thing(node.value)}")

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        return Value(_OPERATORS[type(node.op)](self.thing(node.operand)))

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        if isinstance(node.op, ast.Add) and all(_is_sequence(item) for item in (left, right)):
            return _sequence(_elements(left) + _elements(right))
        if isinstance(node.op, ast.Mult) and left.items is not None and isinstance(right.thing, int):
            return _sequence(left.items * right.thing)
        return Value(_OPERATORS[type(node.op)](left.thing, right.thing))

    def _boolop(self, node: ast.BoolOp) -> Value:
        for item in node.values:
            value = self.evaluate(item)
            if bool(value.thing) is isinstance(node.op, ast.Or):
                break
        return self._unless_flagged(value, node)

    def _compare(self, node: ast.Compare) -> Value:
        parts = [self.thing(item) for item in (node.left, *node.comparators)]
        pairs = zip(node.ops, parts, parts[1:], strict=False)
        return Value(all(_OPERATORS[type(op)](left, right) for op, left, right in pairs))

    def _ifexp(self, node: ast.IfExp) -> Value:
        return self._unless_flagged(self.evaluate(node.body if self.thing(node.test) else node.orelse), node.test)

    def _unless_flagged(self, value: Value, choice: ast.expr) -> Value:
        """Return a value, unless it is a callable that depends on a flag of the model, which may change."""
        if callable(value.thing) and self.has_flag(choice):
            raise UnknownError
        return value

    def has_flag(self, node: ast.expr) -> bool:
        """Return whether an expression reads a flag: an attribute that is True or False."""
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute):
                try:
                    if isinstance(self.thing(part), bool):
                        return True
                except UnknownError:
                    continue
        return False

    def _call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _PARTS and not node.args and not node.keywords:
            owner = self.evaluate(node.func.value)
            if isinstance(owner.thing, (dict, nn.Module)) or owner.items is not None:
                return _sequence(_PARTS[node.func.attr](owner))
        function = self.thing(node.func)
        if any(isinstance(item, ast.Starred) for item in node.args) or any(item.arg is None for item in node.keywords):
            raise UnknownError
        given = [self.evaluate(item) for item in node.args]
        named = {str(item.arg): self.thing(item.value) for item in node.keywords}
        if isinstance(function, type) and function in _LISTS:
            rest = (
                [item.thing for item in given[1:]] if function is enumerate else [_elements(item) for item in given[1:]]
            )
            return _sequence(_LISTS[function](*(_elements(item) for item in given[:1]), *rest, **named))
        if function in (getattr, hasattr):
            return self._getattr(function, node, given)
        if function in _PURE or (isinstance(function, type) and function.__module__ == _ACTIVATIONS):
            return Value(function(*(item.thing for item in given), **named))
        raise UnknownError

    def _getattr(self, function: Callable[..., Any], node: ast.Call, given: list[Value]) -> Value:
        owner, name = given[0].thing, given[1].thing
        if self.assigned.has(owner, name):
            raise UnknownError
        exists = hasattr(owner, name)
        if function is hasattr or (not exists and len(given) == 3):
            return Value(exists) if function is hasattr else given[2]
        return self._attribute(ast.Attribute(node.args[0], name, ast.Load()))


def _is_sequence(value: Value) -> bool:
    return value.items is not None or type(value.thing) is nn.ModuleList


def _sequence(items: tuple[Value, ...]) -> Value:
    return Value([item.thing for item in items], items=items)


def _elements(value: Value) -> tuple[Value, ...]:
    """Return the items of a sequence, each with the attribute that it is."""
    if value.items is not None:
        return value.items
    if isinstance(value.thing, _CONTAINERS) and type(value.thing).__iter__ in _ITERATORS:
        return _keys(value) if isinstance(value.thing, nn.ModuleDict) else _children(value)
    if isinstance(value.thing, (list, tuple, range, dict)) and len(value.thing) <= MAX_ITERATIONS:
        return tuple(Value(item) for item in value.thing)
    raise UnknownError


def _unpack(value: Value) -> tuple[Value, ...] | None:
    """Return the items of a value that is assigned to several names; None if they are unknown."""
    try:
        return _elements(value)
    except UnknownError:
        return None


def _children(owner: Value) -> tuple[Value, ...]:
    if not isinstance(owner.thing, nn.Module):
        raise UnknownError
    return tuple(Value(child, (owner.thing, name)) for name, child in owner.thing._modules.items() if child is not None)


def _keys(owner: Value) -> tuple[Value, ...]:
    return tuple(Value(key) for key in (owner.thing._modules if isinstance(owner.thing, nn.Module) else owner.thing))


def _values(owner: Value) -> tuple[Value, ...]:
    return _children(owner) if isinstance(owner.thing, nn.ModuleDict) else tuple(map(Value, owner.thing.values()))


def _items(owner: Value) -> tuple[Value, ...]:
    return tuple(_sequence(pair) for pair in zip(_keys(owner), _values(owner), strict=True))


def _named_children(owner: Value) -> tuple[Value, ...]:
    return tuple(_sequence((Value(child.attribute[1]), child)) for child in _children(owner) if child.attribute)


_PARTS: dict[str, Callable[[Value], tuple[Value, ...]]] = {
    "keys": _keys, "values": _values, "items": _items, "children": _children, "named_children": _named_children,
}  # fmt: skip
_LISTS: dict[Any, Callable[..., tuple[Value, ...]]] = {
    list: lambda items=(): items,
    tuple: lambda items=(): items,
    reversed: lambda items: items[::-1],
    enumerate: lambda items, start=0: tuple(_sequence((Value(n), item)) for n, item in enumerate(items, start)),
    itertools.chain: lambda *parts: sum(parts, ()),
    zip: lambda *parts, strict=False: tuple(_sequence(pair) for pair in zip(*parts, strict=strict)),
}
_GETTERS = [container.__getitem__ for container in (*_CONTAINERS, PerIteration)]
_ITERATORS = [container.__iter__ for container in _CONTAINERS]
