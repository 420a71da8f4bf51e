"""What an expression in a function stands for, if that does not depend on what the function is given."""

from __future__ import annotations

import ast
import builtins
import types
from collections import Counter
from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView
from typing import Any

from torch import Tensor, nn

from hullo.surgery.source import parse

_PLAIN = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.UnaryOp, ast.BinOp,
    ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
    ast.expr_context,
)  # fmt: skip
_CALLED = (range, len, enumerate, zip, reversed, list, tuple, getattr, min, max)
_MAKERS = nn.ReLU.__module__
_PARTS = {"values", "items", "keys", "children", "named_children"}
_LOOPS = (ast.For, ast.comprehension)
_SEQUENCES = (list, tuple, range, dict, nn.ModuleList, nn.Sequential, nn.ModuleDict)


class UnknownError(Exception):
    """The expression depends on what is given to the function, or on its mode."""


class Scope:
    """The names of a function, as far as they are known without running it.

    A local name is known if it is bound in one place only, to something known; a loop's names are known turn by turn.
    """

    def __init__(self, function: types.FunctionType, bound: dict[str, Any]) -> None:
        self._outside = dict(vars(builtins)) | function.__globals__
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._outside[name] = cell.cell_contents
            except ValueError:  # not filled yet
                self._outside.pop(name, None)
        tree = parse(function)
        turns = [name for node in ast.walk(tree) if isinstance(node, _LOOPS) for name in _bindings(node.target)]
        every = _bindings(tree)
        self._turns, self._local = set(turns), set(every)
        plain = Counter(every) - Counter(turns)
        self._bindable = {name for name in every if plain[name] + (name in self._turns) == 1}
        self._known = {name: value for name, value in bound.items() if name in self._bindable}

    def bind(self, target: ast.expr, value: Any) -> None:
        """Give a name, or several, their values."""
        if isinstance(target, ast.Name):
            if target.id in self._bindable:
                self._known[target.id] = value
        elif (
            isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, Sequence) and len(value) == len(target.elts)
        ):
            for part, item in zip(target.elts, value, strict=True):
                self.bind(part, item)
        else:
            self.forget(target)

    def forget(self, target: ast.expr) -> None:
        for name in _bindings(target):
            self._known.pop(name, None)

    def mentions_turn(self, node: ast.expr) -> bool:
        """Whether an expression names something that changes from turn to turn of a loop."""
        return any(isinstance(part, ast.Name) and part.id in self._turns for part in ast.walk(node))

    def is_flag(self, node: ast.expr) -> bool:
        """Whether an expression depends on flags and choices of modules alone: attributes that are bool or str."""
        parts = [self.evaluate(part) for part in ast.walk(node) if isinstance(part, ast.Attribute)]
        return bool(parts) and all(isinstance(part, (bool, str, nn.Module)) for part in parts)

    def elements(self, node: ast.expr) -> list[Any]:
        """What a loop over an expression goes through."""
        value = self.evaluate(node)
        if not isinstance(value, _SEQUENCES):
            raise UnknownError
        return list(value)

    def evaluate(self, node: ast.expr) -> Any:
        for part in ast.walk(node):
            if not isinstance(part, _PLAIN) or (isinstance(part, ast.Call) and not self._is_harmless(part)):
                raise UnknownError
            if isinstance(part, ast.Attribute) and part.attr == "training":
                raise UnknownError
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        spaces = {name: self._known if name in self._local else self._outside for name in names}
        if any(name not in space for name, space in spaces.items()):
            raise UnknownError
        try:
            code = compile(ast.fix_missing_locations(ast.Expression(node)), "<expression>", "eval")
            value = eval(code, {"__builtins__": {}}, {name: space[name] for name, space in spaces.items()})  # noqa: S307  (no calls but the harmless ones)
        except Exception as error:  # a property may raise anything
            raise UnknownError from error
        if isinstance(value, Tensor):
            raise UnknownError
        return list(value) if isinstance(value, (Iterator, KeysView, ValuesView, ItemsView)) else value

    def _is_harmless(self, call: ast.Call) -> bool:
        """Whether a call only looks at things, or makes an activation, as in ``nn.ReLU()(x)``."""
        match call.func:
            case ast.Attribute(attr=name) if name in _PARTS:
                return not call.args and not call.keywords
            case ast.Name() | ast.Attribute():
                called = self.evaluate(call.func)
                return called in _CALLED or getattr(called, "__module__", "") == _MAKERS
        return False


def _bindings(tree: ast.AST) -> list[str]:
    """The names that are given a value in a tree, once for each place."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.append(name)
            case ast.alias(name=name, asname=other):
                found.append(other or name.partition(".")[0])
            case ast.FunctionDef(name=name) if node is not tree:
                found.append(name)
    return found
