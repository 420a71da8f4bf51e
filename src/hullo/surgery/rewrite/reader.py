"""Find the calls of activations in a method, without running it.

Names, attributes of `self`, loops over submodules and helper methods are followed as far as they do not depend on the
input. What depends on the input is reported.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hullo.surgery.recognize import NAMES, Reading, read_function, read_module
from hullo.surgery.rewrite.branches import Path
from hullo.surgery.rewrite.bytecode import contains_activation, is_torch_activation, mentions_activation
from hullo.surgery.rewrite.control_flow import INNER
from hullo.surgery.rewrite.findings import Body, Call, Findings, Seen, Skipped
from hullo.surgery.rewrite.reach import walks_in
from hullo.surgery.rewrite.source import input_of, is_written_out, method, parse, position
from hullo.surgery.rewrite.uses import Uses
from hullo.surgery.rewrite.values import Assigned, Attribute, Scope, UnknownError, Value
from hullo.surgery.rewrite.write import can_be_decorated_again, leads_to

_SPACES = (torch, torch.nn.functional, nn)
_COLLECTIONS = (list, tuple, Mapping, nn.ModuleList, nn.ModuleDict)
_UNKNOWN_CHOICE = "which activation is called is not known before the code runs"
_CALLS = frozenset({"forward", "__call__", "_wrapped_call_impl", "_call_impl"})
_NOT_FLOATING = frozenset({
    "long", "int", "short", "byte", "bool", "argmax", "argmin", "argsort", "bincount", "count_nonzero", "complex",
    "polar", "view_as_complex", "fft", "fft2", "fftn", "rfft", "rfft2", "rfftn", "to_sparse", "to_sparse_csr",
})  # fmt: skip  # methods and functions whose results are not dense floating-point tensors
_SAME_DTYPE = frozenset(
    {"abs", "neg", "clamp", "clone", "contiguous", "view", "reshape", "unsqueeze", "squeeze", "flatten"}
)
_OF_CHECKPOINT = frozenset(inspect.signature(checkpoint).parameters) | {"preserve_rng_state"}


class Reader(Uses):
    """Read a body and those that it calls.

    Args:
        findings: extended by the reader.
        body: the method to read.
        seen: the methods that were read before.
        assigned: attributes that code of the model assigns.
        path: the branches that lead to the body.
        idle: why it does not run in the model's configuration.
        bound: the known arguments.
        numbers: the value numbers of the arguments.
        blocker: why nothing in it can be replaced by a hull.
    """

    def __init__(
        self,
        findings: Findings,
        body: Body,
        seen: Seen,
        assigned: Assigned,
        path: Path,
        idle: str = "",
        bound: Mapping[str, Value] | None = None,
        numbers: Mapping[str, int] | None = None,
        blocker: str = "",
    ) -> None:
        scope = Scope(body.function, {**(bound or {}), body.self_name: Value(body.owner)}, assigned)
        names = list(inspect.signature(body.function).parameters)[1:]
        given = {name: hash(("parameter", n)) for n, name in enumerate(names)} if numbers is None else numbers
        super().__init__(findings, body, scope, given, path, idle, blocker)
        self.seen, self.owner = seen, body.owner

    def read(self) -> None:
        """Read the body; raise LookupError if its source code is unavailable."""
        tree = parse(self.body.function)
        self.body.siblings = self.seen.setdefault(self.body.function, [])
        self.body.siblings.append(self.body)
        self.findings.walked += walks_in(tree, self.body.function, self.scope)
        self.record_classes(tree)
        wrapper: Any = vars(self.body.cls)[self.body.origin]
        while isinstance(wrapper, types.FunctionType) and hasattr(wrapper, "__wrapped__"):
            for name in sorted(NAMES.intersection(wrapper.__code__.co_names)):
                why = f"a decorator of {self.body.name} calls it"
                self.findings.skipped.append(Skipped(wrapper.__code__.co_qualname, name, why, self.path, 0, self.idle))
            wrapper = wrapper.__wrapped__
        self.block(tree.body)

    # Calls

    def visit_Call(self, node: ast.Call) -> None:
        if self.tests_type(node) or self._follows_super(node):
            return
        wrapped = bool(node.args) and self.thing(node.func) is checkpoint
        callee_node, given = node.func, node
        if wrapped:
            named = [item for item in node.keywords if item.arg not in _OF_CHECKPOINT]
            callee_node, given = node.args[0], ast.Call(node.args[0], node.args[1:], named)
        own = self.thing(callee_node)
        is_followed = isinstance(own, types.MethodType) and own.__self__ is self.owner
        is_followed = is_followed and not hasattr(nn.Module, own.__name__)
        for part in (*given.args, *given.keywords):
            if not (is_followed and self.is_known(part)):  # known arguments are followed into the method
                self.visit(part)
        self.findings.visits[id(self.body), position(node)] += 1
        try:
            callee = self.scope.evaluate(callee_node)
        except UnknownError:
            self._skip_unknown(given)
            return
        if isinstance(callee.thing, types.MethodType) and isinstance(callee.thing.__self__, nn.Module):
            if not isinstance(callee_node, ast.Attribute) or not {callee_node.attr, callee.thing.__name__} <= _CALLS:
                self._method(given, callee.thing)
                return
            callee_node = callee_node.value  # self.act.forward(x)
            callee = self.scope.evaluate(callee_node)
            if callee.thing is self.owner:
                self._method(given, getattr(self.owner, "forward"))  # noqa: B009
                return
        self._record_call(node, callee_node, given, callee)

    def _record_call(self, node: ast.Call, callee_node: ast.expr, given: ast.Call, callee: Value) -> None:
        """Record a call of a known callee."""
        thing = callee.thing
        if isinstance(thing, types.FunctionType):
            arguments = [self.thing(item) for item in (*given.args, *(item.value for item in given.keywords))]
            flat = [part for item in arguments for part in (item if isinstance(item, (list, tuple)) else [item])]
            self.findings.passed[thing] += [part for part in flat if isinstance(part, nn.Module)]
        if thing is self.owner:
            self.findings.recursive.add(self.body.function)
        elif isinstance(thing, nn.Module):
            reading = read_module(thing)
            self._record(
                node, callee_node, given, callee, reading, _why_not_single(given) if reading is not None else ""
            )
        elif callee.items is not None:  # a slice of a Sequential, called as a whole
            for part in callee.items:
                if isinstance(part.thing, nn.Module) and (reading := read_module(part.thing)) is not None:
                    self._record(node, callee_node, given, part, reading, fixed="it is called in a slice")
        elif is_torch_activation(thing):
            self._function(node, callee_node, given, callee)
        elif isinstance(thing, type):
            if contains_activation(thing):
                self.skip(callee_node, "the code makes a new one in every run")
        elif isinstance(thing, torch.jit.ScriptFunction) or mentions_activation(thing) or _is_autograd(thing):
            self._callable(node, callee_node, given, callee)

    def _function(self, node: ast.Call, callee_node: ast.expr, given: ast.Call, callee: Value) -> None:
        """Record a call of one of PyTorch's functions, whose other arguments must not depend on the input."""
        try:
            if input_of(given) is None or (given is not node and _why_not_single(given)):
                raise UnknownError
            rest = [self.scope.thing(item) for item in given.args[1:]]
            named = {str(item.arg): self.scope.thing(item.value) for item in given.keywords if item.arg != "input"}
        except UnknownError:
            self.skip(callee_node, "its other arguments depend on the input, or are tensors", callee.attribute)
            return
        reading = read_function(lambda x: callee.thing(x, *rest, **named))
        if reading is not None:
            self._record(node, callee_node, given, Value(callee.thing) if rest or named else callee, reading)

    def _callable(self, node: ast.Call, callee_node: ast.expr, given: ast.Call, callee: Value) -> None:
        """Record a call of a Python function or of a callable object."""
        reading = None if _why_not_single(given) else read_function(callee.thing)
        if reading is not None and not _is_autograd(callee.thing):
            self._record(node, callee_node, given, callee, reading)
        elif reading is not None:
            name = getattr(callee.thing, "__qualname__", type(callee.thing).__name__)
            self.skip(callee_node, f"{name} defines its own backward", callee.attribute)
        elif not _is_autograd(callee.thing):
            self.skip_function(callee_node, callee, "is not a method that can be rewritten")

    def _skip_unknown(self, given: ast.Call) -> None:
        """Skip a call of an unknown callee that may be an activation."""
        callee_node = given.func
        match callee_node:
            case ast.Attribute(value=value, attr=name):
                self.visit(value)
                if name in NAMES:
                    self._method_of_value(given, callee_node)
                elif mentions_activation(getattr(type(self.thing(value)), name, None)):
                    self.skip(callee_node, f"{name} is a property with an activation")
            case ast.Name(id=name):
                default = inspect.signature(self.body.function).parameters.get(name)
                if default is not None and contains_activation(default.default):
                    self.skip(callee_node, f"it is an argument of {self.body.name}; its default is an activation")
                elif name in self.scope.definitions and self._is_from_activations(self.scope.definitions[name]):
                    self.skip(callee_node, _UNKNOWN_CHOICE)
            case ast.Call(func=ast.Attribute()) if self._is_from_activations(callee_node):
                self.visit(callee_node)
                self.skip(callee_node, _UNKNOWN_CHOICE)
            case ast.Subscript(value=value) | ast.Call(func=ast.Name(id="getattr"), args=[value, *_]):
                self.visit(callee_node)
                space = self.thing(value)
                if contains_activation(space) or any(space is item for item in _SPACES):
                    self.skip(callee_node, _UNKNOWN_CHOICE)
            case _:
                self.visit(callee_node)
        texts = [part.value for part in ast.walk(callee_node) if isinstance(part, ast.Constant)]
        words = {word for text in texts if isinstance(text, str) for word in re.findall(r"\w+", text)}
        if isinstance(callee_node, ast.Call) and not NAMES.isdisjoint(words):
            self.skip(callee_node, "its value is not known before the code runs")

    def _is_from_activations(self, node: ast.expr) -> bool:
        """Return whether an expression selects something from a collection that contains an activation."""
        things = [self.thing(part) for part in ast.walk(node) if isinstance(part, ast.Attribute)]
        return any(isinstance(thing, _COLLECTIONS) and contains_activation(thing) for thing in things)

    def _method_of_value(self, given: ast.Call, callee_node: ast.Attribute) -> None:
        """Record x.relu() for an unknown x."""
        method = getattr(torch.Tensor, callee_node.attr, None)
        if given.args or given.keywords or method is None:
            self.skip(callee_node, f"{ast.unparse(callee_node.value)} is not known before the code runs")
        elif (reading := read_function(method)) is not None:
            self._record(given, callee_node, given, Value(method), reading)

    def _record(
        self, node: ast.Call, callee_node: ast.expr, given: ast.Call, callee: Value, reading: Reading | None,
        blocker: str = "", fixed: str = "",
    ) -> None:  # fmt: skip
        argument = input_of(given)
        if reading is not None and argument is not None and self._is_not_floating(argument):
            blocker = blocker or "its input is not a dense floating-point tensor"
        call = Call(
            body=self.body,
            node=node,
            callee_node=callee_node,
            input_node=argument if given is node else None,
            iterations=self.iterations,
            path=self.path,
            number=0 if argument is None else self.numbers.of(argument),
            idle=self.idle,
            reading=reading,
            callee=callee.thing,
            attribute=callee.attribute or self._attribute_of(callee.thing),
            blocker=self.blocker or blocker,
            fixed=fixed or self.body.fixed,
            plain=given is not node or (len(given.args) == 1 and not given.keywords),
        )
        (self.findings.parts if reading is None else self.findings.calls).append(call)

    def _is_not_floating(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether an expression obviously gives an integer, complex or sparse tensor."""
        match node:
            case ast.Compare():
                return True
            case ast.Name(id=name) if name in self.scope.definitions and name not in seen:
                return self._is_not_floating(self.scope.definitions[name], seen | {name})
            case ast.BinOp(left=left, right=ast.Constant(value=int())) | ast.UnaryOp(operand=left):
                return not isinstance(getattr(node, "op", None), (ast.Div, ast.Not)) and self._is_not_floating(
                    left, seen
                )
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=given, keywords=named):
                numbers = all(isinstance(item, ast.Constant) and isinstance(item.value, int) for item in given)
                own = name in _NOT_FLOATING or (name == "arange" and numbers and not named)
                return own or (name in _SAME_DTYPE and self._is_not_floating(owner, seen))
        return False

    def _attribute_of(self, thing: Any) -> Attribute | None:
        """Return the attribute of a module that is called by another name, and record it as tied."""
        places = [(m, name) for m in self.owner.modules() for name, child in m._modules.items() if child is thing]
        self.findings.tied += [
            (place, "it is also called by another name, which would still refer to it") for place in places
        ]
        return places[0] if places else None

    # Methods

    def _method(self, given: ast.Call, bound: types.MethodType) -> None:
        """Follow a method of the module itself, and record one of another module."""
        owner: Any = bound.__self__
        name = given.func.attr if isinstance(given.func, ast.Attribute) else bound.__name__
        if isinstance(given.func, ast.Attribute) and self.uses_attribute(given.func):
            return
        if owner is not self.owner and read_module(owner) is not None:
            self.skip(given.func, f"it is a bound method of {type(owner).__name__}")
        elif name in vars(owner) or inspect.getattr_static(type(owner), name, None) is not bound.__func__:
            if mentions_activation(bound):
                self.skip(given.func, f"{name} is set on the module itself, not in its class")
            self.findings.unreadable |= set(bound.__func__.__code__.co_names)
        elif owner is self.owner and self.blocker != INNER:
            self._follow(given, type(owner).__mro__, name)
        else:
            self.findings.entered.add((id(owner), name))

    def _follows_super(self, node: ast.Call) -> bool:
        match node.func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"), args=given), attr=name):
                for part in (*node.args, *node.keywords):
                    self.visit(part)
                mro = type(self.owner).__mro__
                home = self.thing(given[0]) if given else self._home()
                if home in mro:
                    self._follow(node, mro[mro.index(home) + 1 :], name, by_super=True)
                return True
        return False

    def _home(self) -> Any:
        cells = zip(self.body.function.__code__.co_freevars, self.body.function.__closure__ or (), strict=True)
        return next((cell.cell_contents for name, cell in cells if name == "__class__"), None)

    def _follow(self, given: ast.Call, mro: Sequence[type], name: str, by_super: bool = False) -> None:
        home, _, function = method(mro, name)
        if home is nn.Module or not isinstance(function, types.FunctionType):
            if name in _CALLS:
                self.findings.entered.add((id(self.owner), "forward"))
            return
        plain = inspect.unwrap(function)
        if any(plain is above.function for above in self.body.chain()):
            self.findings.recursive.add(plain)
            return
        blocker = self.blocker or (f"{name} is called in a loop" if self.iterations else "")
        try:
            body = body_of(self.owner, mro, name, self.scope.assigned)
            body.caller, body.by_super = (self.body, position(given.func)), by_super
            bound, numbers = self._arguments(plain, given)
            options = (self.scope.assigned, self.path, self.idle, bound, numbers, blocker)
            Reader(self.findings, body, self.seen, *options).read()
            self.body.callees.append(body)
        except LookupError as error:
            self.findings.unreadable |= set(plain.__code__.co_names)
            if mentions_activation(plain) or mentions_activation(function):
                self.skip(given.func, f"the code of {name} cannot be read: {error}")

    def _arguments(self, function: types.FunctionType, given: ast.Call) -> tuple[dict[str, Value], dict[str, int]]:
        """Return the known arguments of a method, and the value numbers of all arguments."""
        parameters = list(inspect.signature(function).parameters.values())[1:]
        numbers = {item.name: hash(("default", function, item.name)) for item in parameters}
        if not is_written_out(given):
            return {}, {name: hash((number, self.numbers.of(given))) for name, number in numbers.items()}
        bound = {item.name: Value(item.default) for item in parameters if item.default is not item.empty}
        places = [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
        named = [(str(item.arg), item.value) for item in given.keywords]
        for name, node in [*zip(places, given.args, strict=False), *named]:
            bound.pop(name, None)
            numbers[name] = self.numbers.of(node)
            try:
                bound[name] = self.scope.evaluate(node)
            except UnknownError:
                continue
        return bound, numbers


def _why_not_single(given: ast.Call) -> str:
    """Return why a call does not have exactly one argument; empty if it has."""
    if not is_written_out(given):
        return "it is called with *args or **kwargs"
    return "" if len(given.args) + len(given.keywords) == 1 else "it is not called with exactly one argument"


def _is_autograd(thing: Any) -> bool:
    owner = getattr(thing, "__self__", None)
    return isinstance(owner, type) and issubclass(owner, torch.autograd.Function)


def body_of(owner: nn.Module, mro: Sequence[type], name: str, assigned: Assigned) -> Body:
    """Return the body of a method; raise LookupError if it is not a plain function, or has an unknown decorator."""
    home, origin, function = method(mro, name)
    plain = inspect.unwrap(function)
    if not isinstance(plain, types.FunctionType):
        raise LookupError("it is not a plain function")
    first = next(iter(inspect.signature(plain).parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise LookupError("it has no parameter for self")
    fixed = "" if can_be_decorated_again(function) else f"{name} is decorated"
    if not leads_to(function, plain):
        raise LookupError("its decorator does not call it")
    if holder := assigned.bound.get((id(owner), name)):
        fixed = fixed or f"the attribute {holder} refers to {name}"
    return Body(owner, name, home, origin, plain, fixed=fixed)
