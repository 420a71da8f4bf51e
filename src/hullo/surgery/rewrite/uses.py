"""Find what code does with activations besides calling them: hand them on, ask for their type, read attributes."""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any

import torch
from torch import nn

from hullo.modules import Hull
from hullo.surgery.recognise import AMBIGUOUS, Reading, read_function, read_module
from hullo.surgery.rewrite.calls import Missed
from hullo.surgery.rewrite.flow import Flow
from hullo.surgery.rewrite.mentions import functions_named, is_from_torch, mentions_activation
from hullo.surgery.rewrite.source import place
from hullo.surgery.rewrite.values import Kept, UnknownError, Value

_HARMLESS = frozenset({
    "training", "forward", "__call__", "train", "eval", "to", "cpu", "cuda", "float", "double", "half", "bfloat16",
    "requires_grad_", "zero_grad", "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
})  # fmt: skip  # a hull has them too, and they do the same
_OF_CLASSES = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})  # that a derived class has too


def read_kept(kept: Kept) -> Reading | None:
    """Return what activation a module keeps under a name, as a child or as a function; None if it is none."""
    keeper, name = kept
    thing: Any = keeper._modules.get(name, vars(keeper).get(name))
    if isinstance(thing, nn.Module):
        return read_module(thing)
    return read_function(thing) if is_from_torch(thing) or mentions_activation(thing) else None


class Uses(Flow):
    """Follows a body and notes activations that are named without being called."""

    def it(self, node: ast.AST) -> Any:
        """Return what an expression stands for; None if that is not known."""
        try:
            return self.scope.evaluate(node).it
        except UnknownError:
            return None

    def is_known(self, node: ast.AST) -> bool:
        """Return whether it is known what an argument stands for."""
        return self.it(node.value if isinstance(node, ast.keyword) else node) is not None

    def miss(self, node: ast.expr, why: str, kept: Kept | None = None, what: str = "") -> None:
        """List an activation that is not replaced, or tie down one that a module keeps."""
        if kept is not None and read_kept(kept) is not None:
            self.findings.tied.append((kept, f"{why} ({place(self.body.function, node)})"))
        else:
            where = place(self.body.function, node)
            self.findings.missed.append(Missed(where, what or ast.unparse(node), why, self.path, 0, self.idle))

    def miss_function(self, node: ast.expr, value: Value, why: str) -> None:
        """List a function that somebody wrote by the activations that it calls."""
        named = sorted(functions_named(value.it))
        name = getattr(value.it, "__qualname__", type(value.it).__name__)
        only = named[0] if len(named) == 1 and named[0] in AMBIGUOUS else ""
        self.miss(node, f"{name} calls {', '.join(named) or 'an activation'}, and {why}", value.kept, only)

    def condition(self, test: ast.expr) -> None:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                self.condition(inner)
            case ast.Name() | ast.Attribute() | ast.Subscript() if self._kept_activation(test) is not None:
                return  # a hull is as true as what it replaces
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

    def asks_type(self, node: ast.Call) -> bool:
        """Note a call of isinstance on a module: a hull must give the same answer."""
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
            self.miss(node, "the code asks what type it has", kept)
        return True

    def note_classes(self, tree: ast.AST) -> None:
        """Note the modules whose classes code takes, but for attributes that a derived class shares."""
        attributes = {node.value: node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            owner = _owner_of_class(node)
            if owner is None or not isinstance(thing := self.it(owner), nn.Module):
                continue
            if (kept := self._kept_activation(owner)) is not None:
                self.miss(node, "the code asks what type it has", kept)  # type: ignore[arg-type]
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
        """Note an attribute of an activation that a hull does not share; return whether it is one of an activation."""
        kept = self._kept_activation(node.value)
        if kept is not None and node.attr not in _HARMLESS:
            self.miss(node, f"the code uses its attribute {node.attr}", kept)
        return kept is not None

    def _named(self, node: ast.expr) -> bool:
        """List an activation that is named and not called; return whether the name is known."""
        try:
            value = self.scope.evaluate(node)
        except UnknownError:
            return False
        if isinstance(value.it, types.MethodType) and isinstance(value.it.__self__, nn.Module):
            name = node.attr if isinstance(node, ast.Attribute) else value.it.__name__
            self.findings.entered.add((id(value.it.__self__), name))  # whoever gets the method may call it
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            return True
        if self._is_activation(value):
            self.miss(node, "it is handed on, not called here", value.kept)
        elif isinstance(value.it, types.FunctionType) and mentions_activation(value.it):
            self.miss_function(node, value, "is handed on, not called here")
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
