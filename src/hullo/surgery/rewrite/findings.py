"""Describe the calls of activations in the code of a module, and other findings there."""

from __future__ import annotations

import ast
import inspect
import types
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hullo.surgery.recognize import Reading
from hullo.surgery.rewrite.branches import Key, Path
from hullo.surgery.rewrite.reach import Walk
from hullo.surgery.rewrite.source import Position, place, position
from hullo.surgery.rewrite.values import Attribute

Iterations = tuple[tuple[Position, int], ...]  # the enclosing loops, each with the index of the iteration


@dataclass(eq=False)
class Body:
    """Describe a method as called from one call site: `forward`, or a method that it calls directly or indirectly."""

    owner: nn.Module
    name: str
    cls: type
    origin: str  # its name in that class
    function: types.FunctionType
    caller: tuple[Body, Position] | None = None
    by_super: bool = False
    fixed: str = ""  # why its code cannot be changed
    siblings: list[Body] = field(default_factory=list)  # all bodies of this function, in order
    callees: list[Body] = field(default_factory=list)  # the bodies of the methods that it calls

    @property
    def self_name(self) -> str:
        return next(iter(inspect.signature(self.function).parameters))

    def chain(self) -> Iterator[Body]:
        """Yield this body, its caller, and so on up to the entry point."""
        yield self
        if self.caller is not None:
            yield from self.caller[0].chain()

    def tree(self) -> Iterator[Body]:
        """Yield this body and all that it calls, directly or not."""
        yield self
        for body in self.callees:
            yield from body.tree()

    @property
    def pinned(self) -> str:
        """Return why a caller that must be rewritten with this method cannot be; empty if all can."""
        pending, seen = [self], {self}
        while pending:
            body = pending.pop()
            for run in body.siblings:
                if run.caller is None or (run is body.siblings[0] and not run.by_super):
                    continue
                if run.caller[0].fixed:
                    return run.caller[0].fixed
                pending += {run.caller[0]} - seen
                seen.add(run.caller[0])
        return ""


Seen = dict[types.FunctionType, list[Body]]  # the functions of a module that were read, each with all its bodies


@dataclass(frozen=True, eq=False)
class Call:
    """Describe one call of an activation, or of a module that may contain some.

    Args:
        body: the method that makes the call.
        node: the call expression.
        callee_node: the expression of the callee.
        input_node: the expression of the input; None if there is none, as for ``act(*args)``.
        iterations: the enclosing loops.
        path: the branches it is on.
        number: the value number of the input.
        idle: why the call does not run in the model's configuration; empty if it may.
        reading: which activation is called; None for a module that contains activations.
        callee: the callee.
        attribute: the module and its attribute that is the callee, if there is one.
        blocker: why a hull cannot replace the callee.
        fixed: why the call cannot be rewritten.
        plain: whether a hull can be called by the same expression.
    """

    body: Body
    node: ast.Call
    callee_node: ast.expr
    input_node: ast.expr | None
    iterations: Iterations
    path: Path
    number: int
    idle: str
    reading: Reading | None
    callee: Any
    attribute: Attribute | None
    blocker: str
    fixed: str
    plain: bool

    @property
    def place(self) -> str:
        return place(self.body.function, self.node)

    @property
    def key(self) -> str:
        """Return the indices of the enclosing iterations as a string; empty outside of loops."""
        return "_".join(str(index) for _, index in self.iterations)

    @property
    def at(self) -> tuple[int, Position]:
        """Return an identifier of the call expression, the same in all iterations."""
        return id(self.body), position(self.node)


@dataclass(frozen=True)
class Skipped:
    """Describe a possible activation that is not replaced: where, what and why, and the branches it is on."""

    place: str
    what: str
    why: str
    path: Path = field(default_factory=dict)
    number: int = 0
    idle: str = ""


@dataclass
class Findings:
    """Collect the findings in the code of a module.

    Args:
        calls: the calls of activations, in the order of the code.
        skipped: other possible activations.
        visits: how often each call expression was visited, over all iterations of the enclosing loops.
        modes: the decisions that depend on training or evaluation mode.
        tied: attributes that must not change because code does not only call them, with the reason.
        parts: the calls of modules that may contain activations.
        walked: the modules whose children or parameters code iterates over.
        tested: the classes in isinstance tests of unknown modules, with the place.
        exact: the classes that code compares with ``type(x)``, which a derived class is not.
        entered: the methods that are called from other modules, as id of the module and name.
        passed: the modules that helper functions are called with.
        recursive: the functions that call themselves.
        unreadable: the names in code that could not be read.
        seen: the functions that were read, each with all its bodies.
        unread: why forward could not be read.
    """

    calls: list[Call] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    visits: Counter[tuple[int, Position]] = field(default_factory=Counter)
    modes: set[Key] = field(default_factory=set)
    tied: list[tuple[Attribute, str]] = field(default_factory=list)
    parts: list[Call] = field(default_factory=list)
    walked: list[Walk] = field(default_factory=list)
    tested: list[tuple[Any, str]] = field(default_factory=list)
    exact: set[type] = field(default_factory=set)
    entered: set[tuple[int, str]] = field(default_factory=set)
    passed: dict[types.FunctionType, list[nn.Module]] = field(default_factory=lambda: defaultdict(list))
    recursive: set[types.FunctionType] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)
    seen: Seen = field(default_factory=dict)
    unread: str = ""
