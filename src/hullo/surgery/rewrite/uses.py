"""Find uses of activations other than calls: passing them on, testing their type, reading attributes."""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any

import torch
from torch import nn

from hullo.modules import Hull
from hullo.surgery.recognise import AMBIGUOUS, Reading, read_function, read_module
from hullo.surgery.rewrite.bytecode import functions_named, is_from_torch, mentions_activation
from hullo.surgery.rewrite.control_flow import Flow
from hullo.surgery.rewrite.findings import Skipped
from hullo.surgery.rewrite.source import place
from hullo.surgery.rewrite.values import Kept, UnknownError, Value

_HARMLESS = frozenset({
    "training", "forward", "__call__", "train", "eval", "to", "cpu", "cuda", "float", "double", "half", "bfloat16",
    "requires_grad_", "zero_grad", "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
})  # fmt: skip  # a hull has them, too, and they do the same
_OF_CLASSES = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})  # a derived class shares them


def read_kept(kept: Kept) -> Reading | None:
    """Return which activation an attribute of a module is, a child or a function; None if it is not one."""
    keeper, name = kept
    thing: Any = keeper._modules.get(name, vars(keeper).get(name))
    if isinstance(thing, nn.Module):
        return read_module(thing)
    return read_function(thing) if is_from_torch(thing) or mentions_activation(thing) else None


class Uses(Flow):
    """Follow a body and record activations that it uses without calling them."""

    def it(self, node: ast.AST) -> Any:
        """Return the value of an expression; None if it is unknown."""
        try:
            return self.scope.evaluate(node).it
        except UnknownError:
            return None

    def is_known(self, node: ast.AST) -> bool:
        """Return whether the value of an argument is known."""
        return self.it(node.value if isinstance(node, ast.keyword) else node) is not None

    def skip(self, node: ast.expr, why: str, kept: Kept | None = None, what: str = "") -> None:
        """Record an activation that is not replaced; an attribute is tied, so that none of its calls are."""
        if kept is not None and read_kept(kept) is not None:
            self.findings.tied.append((kept, f"{why} ({place(self.body.function, node)})"))
        else:
            where = place(self.body.function, node)
            self.findings.skipped.append(Skipped(where, what or ast.unparse(node), why, self.path, 0, self.idle))

    def skip_function(self, node: ast.expr, value: Value, why: str) -> None:
        """Record a Python function that is not replaced, with the activations that it calls."""
        named = sorted(functions_named(value.it))
        name = getattr(value.it, "__qualname__", type(value.it).__name__)
        only = named[0] if len(named) == 1 and named[0] in AMBIGUOUS else ""
        self.skip(node, f"{name} calls {', '.join(named) or 'an activation'}, and {why}", value.kept, only)

    def condition(self, test: ast.expr) -> None:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                self.condition(inner)
            case ast.Name() | ast.Attribute() | ast.Subscript() if self._kept_activation(test) is not None:
                return  # a hull has the same truth value
            case _:
                self.visit(test)

    def visit_Compare(self, node: ast.Compare) -> None:
        parts = [node.left, *node.comparators]
        if any(_owner_of_class(item) is not None for item in parts):
            kinds = [self.it(item) for item in parts]
            flat = [kind for item in kinds for kind in (item if isinstance(item, (list, tuple, set)) else [item])]
            self.findings.exact |= {kind for kind in flat if isinstance(kind, type)}
        by_none = any(isinstance(item, ast.Constant) and item.value is None for item in parts)
        for part in parts:
            self.condition(part) if by_none else self.visit(part)

    def tests_type(self, node: ast.Call) -> bool:
        """Record a call of isinstance: a hull must give the same answer. Return whether it is such a call."""
        if self.it(node.func) is not isinstance or len(node.args) != 2:
            return False
        kinds = self.it(node.args[1])
        kept = self._kept_activation(node.args[0])
        if kept is None:
            self.visit(node.args[0])
        if kinds is None:
            return True
        if kept is None and self.it(node.args[0]) is None:
            self.findings.tested.append((kinds, place(self.body.function, node)))
        elif kept is not None and isinstance(self.it(node.args[0]), kinds) != issubclass(Hull, kinds):
            self.skip(node, "the code tests its type", kept)
        return True

    def record_classes(self, tree: ast.AST) -> None:
        """Record the modules whose classes code uses, except for attributes that a derived class shares."""
        attributes = {node.value: node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            owner = _owner_of_class(node)
            if owner is None or not isinstance(thing := self.it(owner), nn.Module):
                continue
            if (kept := self._kept_activation(owner)) is not None:
                self.skip(node, "the code tests its type", kept)  # type: ignore[arg-type]
            name = attributes.get(node, "__class__")  # type: ignore[call-overload]
            is_method = isinstance(inspect.getattr_static(type(thing), name, None), types.FunctionType)
            if name not in _OF_CLASSES and (name.startswith("__") or is_method):
                self.findings.exact.add(type(thing))

    def _kept_activation(self, node: ast.expr) -> Kept | None:
        try:
            kept = self.scope.evaluate(node).kept
        except UnknownError:
            return None
        return kept if kept is not None and read_kept(kept) is not None else None

    def visit_Name(self, node: ast.Name) -> None:
        self._named(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not self._named(node):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self.uses_attribute(node) and not self._named(node):
            self.visit(node.value)

    def uses_attribute(self, node: ast.Attribute) -> bool:
        """Record an attribute of an activation that a hull does not have; return whether it is of an activation."""
        kept = self._kept_activation(node.value)
        if kept is not None and node.attr not in _HARMLESS:
            self.skip(node, f"the code uses its attribute {node.attr}", kept)
        return kept is not None

    def _named(self, node: ast.expr) -> bool:
        """Record an activation that is used without being called; return whether the expression is known."""
        try:
            value = self.scope.evaluate(node)
        except UnknownError:
            return False
        if isinstance(value.it, types.MethodType) and isinstance(value.it.__self__, nn.Module):
            name = node.attr if isinstance(node, ast.Attribute) else value.it.__name__
            self.findings.entered.add((id(value.it.__self__), name))  # the receiver may call the method
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            return True
        if self._is_activation(value):
            self.skip(node, "it is passed on, not called here", value.kept)
        elif isinstance(value.it, types.FunctionType) and mentions_activation(value.it):
            self.skip_function(node, value, "is passed on, not called here")
        return True

    def _is_activation(self, value: Value) -> bool:
        if value.kept is not None:
            return read_kept(value.kept) is not None
        if isinstance(value.it, nn.Module):
            return read_module(value.it) is not None
        return (is_from_torch(value.it) or isinstance(value.it, torch.jit.ScriptFunction)) and (
            read_function(value.it) is not None
        )


def _owner_of_class(node: ast.AST) -> ast.expr | None:
    """Return the x of ``type(x)`` or ``x.__class__``."""
    match node:
        case ast.Call(func=ast.Name(id="type"), args=[owner]) | ast.Attribute(value=owner, attr="__class__"):
            return owner
    return None
