"""Find code that goes through the children or the parameters of modules, and would meet a hull that is new there."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from hullo.modules import Hull
from hullo.surgery.rewrite.source import place
from hullo.surgery.rewrite.values import Scope, UnknownError
from hullo.surgery.rewrite.write import Turns

Walk = tuple[nn.Module | None, str, str]  # the module, None for any; what is gone through; where

_CHILDREN = frozenset({"children", "named_children", "_modules"})
_DESCENDANTS = frozenset({"modules", "named_modules", "apply"})
_PARAMETERS = frozenset({"parameters", "named_parameters", "state_dict"})
_TRUSTED = (
    "torch", "transformers.utils", "transformers.modeling_utils", "transformers.configuration_utils",
    "diffusers.models.modeling_utils", "diffusers.configuration_utils", "diffusers.utils", "accelerate", "peft",
)  # fmt: skip  # they look at modules, and do not call them
_SAYING = frozenset({"print", "warn", "warning", "warning_once", "info", "debug", "error", "exception", "log"})
_HARMLESS = frozenset({"next", "any", "all"})


def walks_in(tree: ast.AST, function: types.FunctionType, scope: Scope) -> Iterator[Walk]:
    """Yield the modules whose children, descendants or parameters a function goes through."""
    if is_trusted(function):
        return
    harmless = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _HARMLESS
        for part in ast.walk(node)
    }
    said = {part for node in ast.walk(tree) if _only_says(node) for part in ast.walk(node)}
    keyed = {node.value for node in ast.walk(tree) if isinstance(node, ast.Subscript)}  # self._modules[name]
    single = dict(_single_attributes(tree))
    sorted_out = set(_loops_by_type(tree, scope))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr="__dict__"):
                kind, sure = "children", False
            case ast.Call(func=ast.Name(id="repr" | "str" | "format"), args=[value, *_]) | ast.FormattedValue(value):
                kind, sure = "text", False
            case ast.Attribute(value=value, attr=name):
                kind = "" if node in keyed or node in sorted_out else _kind(name)
                sure = name != "apply" and kind != "parameters"  # other things have these too
            case ast.Call(func=ast.Name(id="vars" | "dir"), args=[value]):
                kind, sure = "children", True
            case _:
                continue
        if not kind or (kind == "parameters" and node in harmless) or (kind == "text" and node in said):
            continue
        try:
            owner = scope.it(value)
        except UnknownError:
            owner = None
        if node in single and not (isinstance(owner, nn.Module) and callable(vars(owner).get(single[node]))):
            continue
        if isinstance(owner, nn.Module) or (owner is None and sure):
            yield owner, kind, place(function, node)


def _only_says(node: ast.AST) -> bool:
    """Return whether code only tells somebody something: by an error, a warning or a log."""
    match node:
        case ast.Raise() | ast.Assert():
            return True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _SAYING
    return False


def _loops_by_type(tree: ast.AST, scope: Scope) -> Iterator[ast.expr]:
    """Yield the ``x.modules`` of loops that do nothing but with modules of types that no hull has."""
    for node in ast.walk(tree):
        match node:
            case ast.For(target=target, iter=ast.Call(func=ast.Attribute() as walk), body=body, orelse=[]):
                tests = [part.test if isinstance(part, ast.If) and not part.orelse else None for part in body]
            case ast.comprehension(target=target, iter=ast.Call(func=ast.Attribute() as walk), ifs=[test, *_]):
                tests = [test]
            case _:
                continue
        name = target.elts[-1] if isinstance(target, ast.Tuple) else target
        if all(_asks_for_others(test, name, scope) for test in tests):
            yield walk


def _asks_for_others(test: ast.expr | None, name: ast.expr, scope: Scope) -> bool:
    """Return whether a test is true only for modules of types that neither a hull nor a dict of hulls has."""
    match test, name:
        case ast.BoolOp(op=ast.And(), values=[first, *_]), _:
            return _asks_for_others(first, name, scope)
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=asked), kinds]), ast.Name(id=own):
            try:
                found: Any = scope.it(kinds)
                classes = tuple(found) if isinstance(found, list) else found  # a tuple is evaluated to a list
                return asked == own and not any(issubclass(cls, classes) for cls in (Hull, Turns))
            except (UnknownError, TypeError):
                return False
    return False


def _single_attributes(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield the places where code asks ``x.__dict__`` for one attribute, each with its name."""
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
    found = {"children": _CHILDREN, "modules": _DESCENDANTS, "parameters": _PARAMETERS}
    return next((kind for kind, names in found.items() if name in names), "")


def is_trusted(function: types.FunctionType) -> bool:
    """Return whether a function comes from a package that looks at modules without a change of what they compute."""
    home = function.__module__ or ""
    if home.partition(".")[0] in sys.stdlib_module_names and home != "__main__":
        return True
    return any(home == name or home.startswith(f"{name}.") for name in _TRUSTED)
