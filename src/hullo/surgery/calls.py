"""What is known of the activations that a module's code calls."""

from __future__ import annotations

import ast
import inspect
import types
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hullo.surgery.recognise import Reading
from hullo.surgery.source import Position, place

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
    repeated: str = ""  # why it is not known to run once
    siblings: list[Body] = field(default_factory=list)  # all runs of this method in the forward, in their order

    @property
    def self_name(self) -> str:
        return next(iter(inspect.signature(self.function).parameters))


Seen = dict[types.FunctionType, list[Body]]  # the functions that were read, each with all its runs


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an activation in one run of forward."""

    body: Body
    node: ast.Call
    turns: Turns
    reading: Reading
    callee: Any
    kept: tuple[nn.Module, str] | None  # the module and the name that keep the callee, where one does
    repeated: str  # why it is not known to be made once

    @property
    def place(self) -> str:
        return place(self.body.function, self.node)

    @property
    def key(self) -> str:
        """Which turns of the loops around it these are; empty outside of loops."""
        return "_".join(str(turn) for _, turn in self.turns)


@dataclass
class Calls:
    """What was found in a module's code.

    Args:
        found: the calls of activations.
        missed: what else may be one, as (place, what, why it is not replaced).
        weightless: modules that are called and have no weights, each as often as it is called.
        unread: why forward could not be read.
    """

    found: list[Call] = field(default_factory=list)
    missed: list[tuple[str, str, str]] = field(default_factory=list)
    weightless: list[nn.Module] = field(default_factory=list)
    unread: str = ""

    def functions_missed(self, why: str) -> list[tuple[str, str, str]]:
        """What `missed` is where none of the functions found is to be replaced."""
        functions = [call for call in self.found if call.reading.known and not call.kept]
        return self.missed + [(call.place, call.reading.known.name, why) for call in functions if call.reading.known]
