"""Which activations the code of a forward calls, where, and how often.

The code is read, not run: names, attributes of `self`, loops over parts of the model and helper methods are followed
as far as they do not depend on the input. What depends on it is reported, not guessed.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from hullo.surgery.calls import Body, Call, Calls, Seen, Turns
from hullo.surgery.evaluate import Scope, UnknownError
from hullo.surgery.recognise import FUNCTIONS, NAMES, Reading, is_torch_function, read_function, read_module
from hullo.surgery.source import codes, method, methods, parse, place, position


def calls_of(owner: nn.Module) -> Calls:
    """The activations that a module's forward calls."""
    calls, seen = Calls(), Seen()
    forward = inspect.unwrap(method(type(owner).__mro__, "forward")[2])
    try:
        if "forward" in vars(owner):
            raise LookupError("it is set on the module itself, not in its class")
        if isinstance(owner, torch.fx.GraphModule):
            raise LookupError("it is made from a traced graph; replace before tracing")
        _Reader(calls, _body(owner, type(owner).__mro__, "forward"), {}, seen).read()
    except LookupError as error:
        calls.unread = f"the code of {type(owner).__qualname__}.forward cannot be changed: {error}"
        if not isinstance(forward, types.FunctionType) or mentions_activation(forward):
            calls.missed.append((f"{type(owner).__qualname__}.forward", "calls of functions", str(error)))
        return calls
    for name, function in methods(type(owner)):
        if inspect.unwrap(function) not in seen and mentions_activation(inspect.unwrap(function)):
            calls.missed += _aside(_body(owner, type(owner).__mro__, name))
    return calls


def _aside(body: Body) -> list[tuple[str, str, str]]:
    """The activations in a method that forward does not call."""
    aside = Calls()
    try:
        _Reader(aside, body, {}, Seen()).read()
    except LookupError as error:
        return [(body.function.__qualname__, "an activation", str(error))]
    return aside.functions_missed(f"forward does not call {body.name}")


@functools.cache
def mentions_activation(function: types.FunctionType) -> bool:
    """Whether a function's code names a function that may be an activation, itself or through functions it names."""
    seen, waiting = {function}, [function]
    while waiting:
        item = waiting.pop()
        names = {name for code in codes(item.__code__) for name in code.co_names}
        values = {_hashable(item.__globals__.get(name)) for name in names}
        if names & NAMES or values & FUNCTIONS:
            return True
        waiting += (helpers := {value for value in values - seen if _is_helper(value)})
        seen |= helpers
    return False


def times_named(function: types.FunctionType, name: str) -> int:
    """How often a function's code names an attribute, for code without source; a loop counts as once more."""
    instructions = [item for code in codes(function.__code__) for item in dis.get_instructions(code)]
    loops = any(item.opname in ("FOR_ITER", "JUMP_BACKWARD") for item in instructions)
    return len([item for item in instructions if item.argval == name]) + loops


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)) else None


def _is_helper(value: Any) -> bool:
    """Whether something is a function that somebody wrote, not PyTorch."""
    return isinstance(value, types.FunctionType) and not value.__module__.startswith("torch.")


class _Reader(ast.NodeVisitor):
    """Reads one body, and those it calls."""

    def __init__(self, calls: Calls, body: Body, bound: dict[str, Any], seen: Seen) -> None:
        self.calls, self.body, self.seen = calls, body, seen
        self.owner, self.modules = body.owner, list(body.owner.modules())
        self.scope = Scope(body.function, bound | {body.self_name: body.owner})
        self.turns: Turns = ()
        self.repeated = body.repeated

    def read(self) -> None:
        self.body.siblings = self.seen.setdefault(self.body.function, [])
        self.body.siblings.append(self.body)
        for statement in parse(self.body.function).body:
            self.visit(statement)

    # What is called

    def visit_Call(self, node: ast.Call) -> None:
        for part in (node.func.value if isinstance(node.func, ast.Attribute) else None, *node.args, *node.keywords):
            if part is not None:
                self.visit(part)
        if self._follows_super(node):
            return
        try:
            callee = self.scope.evaluate(node.func)
        except UnknownError:
            if not isinstance(node.func, (ast.Name, ast.Attribute)):
                self.visit(node.func)
            self._method_of_value(node)
            return
        if isinstance(callee, nn.Module):
            reading = read_module(callee)
            if reading is not None:
                self._found(node, reading, callee)
            elif not any(True for _ in callee.parameters()):
                self.calls.weightless += [callee, callee] if self.repeated else [callee]
        elif isinstance(callee, types.MethodType) and callee.__self__ is self.owner:
            self._follow(node, type(self.owner).__mro__, callee.__name__)
        elif is_torch_function(callee):
            self._function(node, callee)
        elif isinstance(callee, torch.jit.ScriptFunction) or (_is_helper(callee) and mentions_activation(callee)):
            reading = read_function(callee) if len(node.args) == 1 and not node.keywords else None
            if reading is not None:
                self._found(node, reading, callee)
            elif _is_helper(callee):
                self._miss(node, f"{callee.__name__} calls an activation, and is not a method that can be changed")

    def _function(self, node: ast.Call, callee: Callable[..., Any]) -> None:
        """A call of one of PyTorch's functions; what is not the input must not depend on it."""
        try:
            if any(item.arg is None for item in node.keywords):
                raise UnknownError
            rest = [self.scope.evaluate(item) for item in node.args[1:]]
            named = {str(item.arg): self.scope.evaluate(item.value) for item in node.keywords if item.arg != "input"}
        except UnknownError:
            self._miss(node, "its parameters depend on the input, or are tensors")
            return
        reading = read_function(lambda x: callee(x, *rest, **named))
        if reading is not None:
            self._found(node, reading, callee)

    def _method_of_value(self, node: ast.Call) -> None:
        """x.relu() on something that is only there when the code runs."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in NAMES:
            return
        method = getattr(torch.Tensor, node.func.attr, None)
        if node.args or node.keywords or method is None:
            self._miss(node, f"the code does not tell what {ast.unparse(node.func.value)} is")
        elif (reading := read_function(method)) is not None:
            self._found(node, reading, method)

    def _found(self, node: ast.Call, reading: Reading, callee: Any) -> None:
        kept = self._kept_in(node.func, callee)
        self.calls.found.append(Call(self.body, node, self.turns, reading, callee, kept, self.repeated))

    def _kept_in(self, node: ast.expr, callee: Any) -> tuple[nn.Module, str] | None:
        """The module and the name under which a callee is kept."""
        try:
            if isinstance(node, ast.Attribute):
                keeper, name = self.scope.evaluate(node.value), node.attr
            elif isinstance(node, ast.Subscript):
                keeper, index = self.scope.evaluate(node.value), self.scope.evaluate(node.slice)
                name = list(keeper._modules)[index] if isinstance(index, int) and keeper in self.modules else index
            else:
                places = [(m, name) for m in self.modules for name, child in m._modules.items() if child is callee]
                return places[0] if len(places) == 1 else None
        except UnknownError:
            return None
        if isinstance(keeper, nn.Module) and (name in keeper._modules or name in vars(keeper)):
            return keeper, name
        return None

    def _miss(self, node: ast.expr, why: str) -> None:
        what = ast.unparse(node.func if isinstance(node, ast.Call) else node)
        self.calls.missed.append((place(self.body.function, node), what, why))

    # Methods that are called

    def _follows_super(self, node: ast.Call) -> bool:
        match node.func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"), args=[]), attr=name):
                mro = type(self.owner).__mro__
                self._follow(node, mro[mro.index(self.body.home) + 1 :], name, by_super=True)
                return True
        return False

    def _follow(self, node: ast.Call, mro: Sequence[type], name: str, by_super: bool = False) -> None:
        home, _, function = method(mro, name)
        if home is nn.Module or not isinstance(function, types.FunctionType) or function in self._chain():
            return
        body = _body(self.owner, mro, name)
        body.caller, body.by_super = (self.body, position(node)), by_super
        body.repeated = self.repeated or (f"{name} is called in a loop" if self.turns else "")
        names = list(inspect.signature(body.function).parameters)[1:]
        bound = {}
        for parameter, item in [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]:
            try:
                bound[str(parameter)] = self.scope.evaluate(item)
            except UnknownError:
                continue
        try:
            _Reader(self.calls, body, bound, self.seen).read()
        except LookupError as error:
            if mentions_activation(body.function):
                self._miss(node, f"the code of {name} cannot be read: {error}")

    def _chain(self) -> Iterator[types.FunctionType]:
        body: Body | None = self.body
        while body:
            yield body.function
            body = body.caller[0] if body.caller else None

    # What is repeated, and what is not run

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._repeat(node.target, node.iter, lambda: [self.visit(item) for item in node.body])
        for statement in node.orelse:
            self.visit(statement)

    def visit_While(self, node: ast.While) -> None:
        self._unclear("it is called in a loop whose length depends on the input", lambda: self.generic_visit(node))

    def _repeat(self, target: ast.expr, source: ast.expr, read: Callable[[], Any]) -> None:
        before = self.turns
        try:
            values = self.scope.elements(source)
        except UnknownError:
            self.scope.forget(target)
            self._unclear("it is called in a loop whose length depends on the input", read)
            return
        for turn, value in enumerate(values):
            self.turns = (*before, (position(target), turn))
            self.scope.bind(target, value)
            read()
        self.turns = before

    def _comprehension(self, node: Any) -> None:
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]

        def read(generators: list[ast.comprehension]) -> None:
            if not generators:
                for part in parts:
                    self.visit(part)
                return
            first, *rest = generators
            self.visit(first.iter)
            self._repeat(first.target, first.iter, lambda: read(rest))

        read(node.generators)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    def _unclear(self, why: str, read: Callable[[], Any]) -> None:
        before, self.repeated = self.repeated, self.repeated or why
        read()
        self.repeated = before

    def _inner_function(self, node: Any) -> None:
        self._unclear("it is called in a function inside a function", lambda: self.generic_visit(node))

    visit_Lambda = visit_FunctionDef = visit_AsyncFunctionDef = _inner_function  # noqa: N815

    def _choice(self, node: Any) -> None:
        """Both branches may run, unless the turn of a loop or a flag of the model tells which one does."""
        self.visit(node.test)
        branches = [item if isinstance(item, list) else [item] for item in (node.body, node.orelse)]
        by_turn = bool(self.turns) and self.scope.mentions_turn(node.test)
        idle: list[ast.AST] = []
        with contextlib.suppress(UnknownError):
            if by_turn or self.scope.is_flag(node.test):
                live = 0 if self.scope.evaluate(node.test) else 1
                branches, idle = [branches[live]], [] if by_turn else branches[1 - live]
        for statement in (statement for branch in branches for statement in branch):
            self.visit(statement)
        before, self.calls = self.calls, Calls()
        for statement in idle:
            self.visit(statement)
        before.missed += self.calls.functions_missed("as the model is set up, this branch does not run")
        self.calls = before

    visit_If = visit_IfExp = _choice  # noqa: N815

    # What names stand for

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        try:
            if len(node.targets) > 1 or not isinstance(target, ast.Name):
                raise UnknownError
            self.scope.bind(target, self.scope.evaluate(node.value))
        except UnknownError:
            self.scope.forget(target)
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        self._handed_on(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        if node.attr in NAMES:
            self._handed_on(node)

    def _handed_on(self, node: ast.expr) -> None:
        try:
            value = self.scope.evaluate(node)
        except UnknownError:
            return
        if is_torch_function(value):
            self._miss(node, "it is handed on, not called here")


def _body(owner: nn.Module, mro: Sequence[type], name: str) -> Body:
    home, origin, function = method(mro, name)
    plain = inspect.unwrap(function)
    if not isinstance(plain, types.FunctionType):
        raise LookupError("it is not an ordinary function")
    return Body(owner, name, home, origin, plain, fixed="" if plain is function else f"{name} is decorated")
