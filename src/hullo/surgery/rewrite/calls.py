"""Describe the activations that a module's code calls."""

from __future__ import annotations

import ast
import inspect
import types
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hullo.surgery.recognise import Reading
from hullo.surgery.rewrite.branches import Key, Path
from hullo.surgery.rewrite.source import Position, place, position
from hullo.surgery.rewrite.values import Kept
from hullo.surgery.rewrite.walks import Walk

Turns = tuple[tuple[Position, int], ...]  # the loops around a call, each with the number of the turn


@dataclass(eq=False)
class Body:
    """A method as it runs once in a forward: `forward` itself, or one that another calls from one place."""

    owner: nn.Module
    name: str
    home: type
    origin: str  # its name in the class `home`
    function: types.FunctionType
    caller: tuple[Body, Position] | None = None
    by_super: bool = False
    fixed: str = ""  # why its code cannot be changed
    siblings: list[Body] = field(default_factory=list)  # all runs of this function, in their order
    callees: list[Body] = field(default_factory=list)  # the runs of methods that it calls

    @property
    def self_name(self) -> str:
        return next(iter(inspect.signature(self.function).parameters))

    def chain(self) -> Iterator[Body]:
        """Yield this run, the one that calls it, and so on up to the entry."""
        yield self
        if self.caller is not None:
            yield from self.caller[0].chain()

    def tree(self) -> Iterator[Body]:
        """Yield this run and all that it leads to."""
        yield self
        for body in self.callees:
            yield from body.tree()

    @property
    def pinned(self) -> str:
        """Why code that runs this method cannot be changed, where it would have to be; empty if it can."""
        waiting, seen = [self], {self}
        while waiting:
            body = waiting.pop()
            for run in body.siblings:
                if run.caller is None or (run is body.siblings[0] and not run.by_super):
                    continue
                if run.caller[0].fixed:
                    return run.caller[0].fixed
                waiting += {run.caller[0]} - seen
                seen.add(run.caller[0])
        return ""


Seen = dict[types.FunctionType, list[Body]]  # the functions of a module that were read, each with all its runs


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an activation, or of a module that may hold some, in one run of forward.

    Args:
        body: the method that makes the call.
        node: the call.
        callee_node: the part of it that names what is called.
        input_node: the tensor that it is given; None if that is not written out.
        turns: the loops around it.
        path: the branches it is on.
        number: the number of the tensor's value.
        idle: why nothing comes of it as the model is set up: the branch or the method it is in does not run.
        reading: what activation is called; None for a module around activations.
        callee: what is called.
        kept: the module and the name that keep the callee, where one does.
        trouble: why it cannot be given a hull.
        fixed: why its words cannot be changed.
        plain: whether a hull can be called in the same words.
    """

    body: Body
    node: ast.Call
    callee_node: ast.expr
    input_node: ast.expr | None
    turns: Turns
    path: Path
    number: int
    idle: str
    reading: Reading | None
    callee: Any
    kept: Kept | None
    trouble: str
    fixed: str
    plain: bool

    @property
    def place(self) -> str:
        return place(self.body.function, self.node)

    @property
    def key(self) -> str:
        """Which turns of the loops around it these are; empty outside of loops."""
        return "_".join(str(turn) for _, turn in self.turns)

    @property
    def at(self) -> tuple[int, Position]:
        """The piece of code that makes the call, the same in all turns."""
        return id(self.body), position(self.node)


@dataclass(frozen=True)
class Missed:
    """What may be an activation and is not replaced: where, what and why, and the branches it is on."""

    place: str
    what: str
    why: str
    path: Path = field(default_factory=dict)
    number: int = 0
    idle: str = ""


@dataclass
class Findings:
    """What was found in a module's code.

    Args:
        calls: the calls of activations, in the order of the code.
        missed: what else may be one.
        visits: how often each piece of code that calls something was met, in all turns of the loops around it.
        modes: the decisions that depend on whether the model trains.
        tied: what modules keep that must stay as it is, because code does more with it than to call it, and why.
        parts: the calls of modules that may hold activations.
        walked: the modules whose children or parameters code goes through.
        tested: the classes that code asks unknown modules for, and where.
        exact: the classes that code asks for by ``type(x) is``, which a derived class is not.
        entered: the methods that are called from elsewhere, as the id of the module and the name.
        handed: the modules that helper functions are called with.
        recursive: the functions that call themselves.
        unreadable: the names in code that could not be read.
        seen: the functions that were read, each with all its runs.
        unread: why forward could not be read.
    """

    calls: list[Call] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    visits: Counter[tuple[int, Position]] = field(default_factory=Counter)
    modes: set[Key] = field(default_factory=set)
    tied: list[tuple[Kept, str]] = field(default_factory=list)
    parts: list[Call] = field(default_factory=list)
    walked: list[Walk] = field(default_factory=list)
    tested: list[tuple[Any, str]] = field(default_factory=list)
    exact: set[type] = field(default_factory=set)
    entered: set[tuple[int, str]] = field(default_factory=set)
    handed: dict[types.FunctionType, list[nn.Module]] = field(default_factory=lambda: defaultdict(list))
    recursive: set[types.FunctionType] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)
    seen: Seen = field(default_factory=dict)
    unread: str = ""
