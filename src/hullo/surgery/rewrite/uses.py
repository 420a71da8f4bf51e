"""Find uses of activations other than calls: passing them on, testing their type, reading attributes."""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any

import torch
from torch import nn

from hullo.modules import Hull
from hullo.surgery.recognize import AMBIGUOUS, Reading, read_function, read_module
from hullo.surgery.rewrite.bytecode import activation_names, is_torch_activation, mentions_activation
from hullo.surgery.rewrite.control_flow import Flow
from hullo.surgery.rewrite.findings import Skipped
from hullo.surgery.rewrite.source import place
from hullo.surgery.rewrite.values import Attribute, UnknownError, Value

_HARMLESS = frozenset({
    "training", "forward", "__call__", "train", "eval", "to", "cpu", "cuda", "float", "double", "half", "bfloat16",
    "requires_grad_", "zero_grad", "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
})  # fmt: skip  # a hull has them, too, and they do the same
_OF_CLASSES = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})  # a derived class shares them


def read_attribute(attribute: Attribute) -> Reading | None:
    """Return which activation an attribute of a module is, a child or a function; None if it is not one."""
    parent, name = attribute
    thing: Any = parent._modules.get(name, vars(parent).get(name))
    if isinstance(thing, nn.Module):
        return read_module(thing)
    return read_function(thing) if is_torch_activation(thing) or mentions_activation(thing) else None


class Uses(Flow):
    """Follow a body and record activations that it uses without calling them."""

    def thing(self, node: ast.AST) -> Any:
        """Return the value of an expression; None if it is unknown."""
        try:
            return self.scope.evaluate(node).thing
        except UnknownError:
            return None

    def is_known(self, node: ast.AST) -> bool:
        """Return whether the value of an argument is known."""
        return self.thing(node.value if isinstance(node, ast.keyword) else node) is not None

    def skip(self, node: ast.expr, why: str, attribute: Attribute | None = None, what: str = "") -> None:
        """Record an activation that is not replaced; an attribute is tied, so that none of its calls are."""
        if attribute is not None and read_attribute(attribute) is not None:
            self.findings.tied.append((attribute, f"{why} ({place(self.body.function, node)})"))
        else:
            where = place(self.body.function, node)
            self.findings.skipped.append(Skipped(where, what or ast.unparse(node), why, self.path, 0, self.idle))

    def skip_function(self, node: ast.expr, value: Value, why: str) -> None:
        """Record a Python function that is not replaced, with the activations that it calls."""
        activations = activation_names(value.thing)
        name = getattr(value.thing, "__qualname__", type(value.thing).__name__)
        only = activations[0] if len(activations) == 1 and activations[0] in AMBIGUOUS else ""
        self.skip(node, f"{name} calls {', '.join(activations) or 'an activation'}, and {why}", value.attribute, only)

    def condition(self, test: ast.expr) -> None:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                self.condition(inner)
            case ast.Name() | ast.Attribute() | ast.Subscript() if self._activation_attribute(test) is not None:
                return  # a hull has the same truth value
            case _:
                self.visit(test)

    def visit_Compare(self, node: ast.Compare) -> None:
        parts = [node.left, *node.comparators]
        if any(_owner_of_class(item) is not None for item in parts):
            kinds = [self.thing(item) for item in parts]
            flat = [kind for item in kinds for kind in (item if isinstance(item, (list, tuple, set)) else [item])]
            self.findings.exact |= {kind for kind in flat if isinstance(kind, type)}
        by_none = any(isinstance(item, ast.Constant) and item.value is None for item in parts)
        for part in parts:
            self.condition(part) if by_none else self.visit(part)

    def tests_type(self, node: ast.Call) -> bool:
        """Record a call of isinstance: a hull must give the same answer. Return whether it is such a call."""
        if self.thing(node.func) is not isinstance or len(node.args) != 2:
            return False
        kinds = self.thing(node.args[1])
        attribute = self._activation_attribute(node.args[0])
        if attribute is None:
            self.visit(node.args[0])
        if kinds is None:
            return True
        if attribute is None and self.thing(node.args[0]) is None:
            self.findings.tested.append((kinds, place(self.body.function, node)))
        elif attribute is not None and isinstance(self.thing(node.args[0]), kinds) != issubclass(Hull, kinds):
            self.skip(node, "the code tests its type", attribute)
        return True

    def record_classes(self, tree: ast.AST) -> None:
        """Record the modules whose classes code uses, except for attributes that a derived class shares."""
        attributes = {node.value: node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            owner = _owner_of_class(node)
            if owner is None or not isinstance(thing := self.thing(owner), nn.Module):
                continue
            if (attribute := self._activation_attribute(owner)) is not None:
                self.skip(node, "the code tests its type", attribute)  # type: ignore[arg-type]
            name = attributes.get(node, "__class__")  # type: ignore[call-overload]
            is_method = isinstance(inspect.getattr_static(type(thing), name, None), types.FunctionType)
            if name not in _OF_CLASSES and (name.startswith("__") or is_method):
                self.findings.exact.add(type(thing))

    def _activation_attribute(self, node: ast.expr) -> Attribute | None:
        try:
            attribute = self.scope.evaluate(node).attribute
        except UnknownError:
            return None
        return attribute if attribute is not None and read_attribute(attribute) is not None else None

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
        attribute = self._activation_attribute(node.value)
        if attribute is not None and node.attr not in _HARMLESS:
            self.skip(node, f"the code uses its attribute {node.attr}", attribute)
        return attribute is not None

    def _named(self, node: ast.expr) -> bool:
        """Record an activation that is used without being called; return whether the expression is known."""
        try:
            value = self.scope.evaluate(node)
        except UnknownError:
            return False
        if isinstance(value.thing, types.MethodType) and isinstance(value.thing.__self__, nn.Module):
            name = node.attr if isinstance(node, ast.Attribute) else value.thing.__name__
            self.findings.entered.add((id(value.thing.__self__), name))  # the receiver may call the method
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            return True
        if self._is_activation(value):
            self.skip(node, "it is passed on, not called here", value.attribute)
        elif isinstance(value.thing, types.FunctionType) and mentions_activation(value.thing):
            self.skip_function(node, value, "is passed on, not called here")
        return True

    def _is_activation(self, value: Value) -> bool:
        if value.attribute is not None:
            return read_attribute(value.attribute) is not None
        if isinstance(value.thing, nn.Module):
            return read_module(value.thing) is not None
        return (is_torch_activation(value.thing) or isinstance(value.thing, torch.jit.ScriptFunction)) and (
            read_function(value.thing) is not None
        )


def _owner_of_class(node: ast.AST) -> ast.expr | None:
    """Return the x of ``type(x)`` or ``x.__class__``."""
    match node:
        case ast.Call(func=ast.Name(id="type"), args=[owner]) | ast.Attribute(value=owner, attr="__class__"):
            return owner
    return None
