"""Determine which branches of a function exclude each other, and which depend on training or evaluation mode.

Every call has a path: the decisions it depends on, each with the branch it is on. Two calls are exclusive if they are
on different branches of one decision. Treating too many calls as exclusive is safe: they share a hull.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from hullo.surgery.rewrite.source import codes
from hullo.surgery.rewrite.values import Scope, UnknownError

Key = tuple[Any, ...]
Path = Mapping[Key, Any]

MODE: Key = ("mode",)  # the decision between training (True) and evaluation (False)
_MODES = frozenset({"training", "is_grad_enabled", "is_inference_mode_enabled", "requires_grad", "is_inference"})
_TRAINS = re.compile("(?<![a-z])train(ing)?(?![a-z])|requires_grad|grad_enabled")
_EVALUATES = re.compile("(?<![a-z])(eval(uate|uating)?|infer(ence)?|deterministic)(?![a-z])")
_EXITS = {ast.Return: "return", ast.Raise: "raise", ast.Break: "break", ast.Continue: "continue"}
_OPPOSITES = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In, ast.GtE: ast.Lt, ast.LtE: ast.Gt}


def exclusive(a: Path, b: Path) -> bool:
    """Return whether no run of the code takes both paths."""
    return any(key in b and b[key] != branch for key, branch in a.items())


def decide(test: ast.expr, scope: Scope) -> bool | None:
    """Return the result of a test in the model's configuration; None if it depends on the input or the mode."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            result = decide(inner, scope)
            return None if result is None else not result
        case ast.BoolOp(op=op, values=values):
            decisive = isinstance(op, ast.Or)  # a part with this value determines the result
            results = [decide(item, scope) for item in values]
            return decisive if decisive in results else None if None in results else not decisive
    try:
        return bool(scope.thing(test))
    except UnknownError:
        return None
    except Exception:  # __bool__ of an unknown object may raise anything
        return None


def implied(test: ast.expr, branch: bool, scope: Scope) -> dict[Key, bool]:
    """Return the decisions that the result of a test implies: the mode, and tests with the same text."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return implied(inner, not branch, scope)
        case ast.BoolOp(op=op, values=values) if branch is isinstance(op, ast.And):
            return {key: side for item in values for key, side in implied(item, branch, scope).items()}
        case ast.Name(id=name) if name in scope.definitions and name not in variables_in(scope.definitions[name]):
            return implied(scope.definitions[name], branch, scope)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[ast.Constant(value=bool() as side)]):
            return implied(left, branch is side, scope)
        case ast.Compare(left=left, ops=[ast.NotEq() | ast.IsNot()], comparators=[ast.Constant(value=bool() as side)]):
            return implied(left, branch is not side, scope)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPPOSITES:
            return implied(ast.Compare(left, [_OPPOSITES[type(op)]()], [right]), not branch, scope)
    name = _last_name(test)
    if _TRAINS.search(name):
        return {MODE: branch}
    if _EVALUATES.search(name):
        return {MODE: not branch}
    return {("test", ast.unparse(test)): branch}


def depends_on_mode(test: ast.expr, scope: Scope, seen: frozenset[str] = frozenset()) -> bool:
    """Return whether the result of a test may differ between training and evaluation, judging by its names."""
    for part in ast.walk(test):
        defined = scope.definitions.get(part.id) if isinstance(part, ast.Name) and part.id not in seen else None
        if defined is not None and depends_on_mode(defined, scope, seen | {part.id}):  # type: ignore[attr-defined]
            return True
        if isinstance(part, (ast.Name, ast.Attribute)):
            name = _last_name(part)
            if _TRAINS.search(name) or _EVALUATES.search(name) or _reads_mode(part, scope):
                return True
    return False


def _reads_mode(node: ast.expr, scope: Scope) -> bool:
    """Return whether a name is a function, or a property of a module, whose code reads the mode."""
    try:
        if isinstance(node, ast.Attribute) and isinstance(owner := scope.thing(node.value), nn.Module):
            member = getattr(type(owner), node.attr, None)
            function = member.fget if isinstance(member, property) else member
        else:
            function = scope.thing(node)
    except UnknownError:
        return False
    return isinstance(function, types.FunctionType) and any(
        not _MODES.isdisjoint(code.co_names) for code in codes(function.__code__)
    )


def variables_in(node: ast.AST) -> set[str]:
    """Return the names of variables in an expression."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Call(func=inner):
            return _last_name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def exits(block: Sequence[ast.stmt]) -> frozenset[str]:
    """Return how a block always ends: by return, raise, break or continue; empty if execution may continue after it."""
    if not block:
        return frozenset()
    if type(block[-1]) in _EXITS:
        return frozenset({_EXITS[type(block[-1])]})
    match block[-1]:
        case ast.If(body=body, orelse=orelse):
            sides = exits(body), exits(orelse)
            return sides[0] | sides[1] if all(sides) else frozenset()
        case ast.With(body=body):
            return exits(body)
    return frozenset()
