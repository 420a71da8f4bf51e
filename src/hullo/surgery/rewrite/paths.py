"""Follow the branches of a function, and what is known after one of them has left it."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hullo.surgery.rewrite.branches import Key, Path, decide, depends_on_mode, implied, leaves
from hullo.surgery.rewrite.calls import Body, Findings, Turns
from hullo.surgery.rewrite.numbering import Numbers
from hullo.surgery.rewrite.source import position
from hullo.surgery.rewrite.values import Scope

OF_FUNCTION, OF_LOOP, OF_TURN, OF_TRY = (frozenset({way}) for way in ("return", "break", "continue", "raise"))
OF_FUNCTION |= OF_TRY
OFF = "as the model is set up, this branch does not run"
_NO_GRADIENTS = "it is called without gradients, so that nothing would train it"
_WITHOUT_GRADIENTS = frozenset({"no_grad", "inference_mode"})


@dataclass
class Rest:
    """What holds for the rest of a function, of a loop, of a turn or of a try, because some branch has left it."""

    left_by: frozenset[str]
    path: dict[Key, Any] = field(default_factory=dict)
    idle: str = ""  # why nothing in it runs, as the model is set up
    dead: bool = False  # in this turn of a loop it does not run


class Branches(ast.NodeVisitor):
    """Visits the code of one body in the order in which it runs, branch by branch."""

    def __init__(
        self, findings: Findings, body: Body, scope: Scope, numbers: Mapping[str, int], path: Path, idle: str,
        trouble: str,
    ) -> None:  # fmt: skip
        self.findings, self.body, self.scope, self.numbers = findings, body, scope, Numbers(scope, numbers)
        self.turns: Turns = ()
        self.length = 1  # how many turns the loops around have, all together
        self.trouble = trouble
        self._branches = dict(path)
        self._idle = idle
        self.rest = [Rest(OF_FUNCTION)]  # of the function, then of what is around, the innermost last

    @property
    def path(self) -> Path:
        return {key: side for rest in self.rest for key, side in rest.path.items()} | self._branches

    @property
    def idle(self) -> str:
        return next((why for why in (self._idle, *(rest.idle for rest in self.rest)) if why), "")

    def block(self, nodes: Sequence[ast.AST]) -> None:
        """Visit statements, up to one that is known to leave."""
        for node in nodes:
            if any(rest.dead for rest in self.rest):
                return
            self.visit(node)

    def key(self, node: Any, *more: Any) -> Key:
        return ("at", id(self.body), position(node), self.turns, *more)

    # Branches

    @contextlib.contextmanager
    def on_branch(self, path: Mapping[Key, Any], idle: str = "", certain: bool = False) -> Iterator[None]:
        """Visit what is on a branch; one that is certain to run may end the function for what follows."""
        branches, was_idle = self._branches, self._idle
        before = [(rest.idle, rest.dead) for rest in self.rest]
        self._branches, self._idle = branches | dict(path), was_idle or idle
        yield
        self._branches, self._idle = branches, was_idle
        if not certain:
            for rest, state in zip(self.rest, before, strict=True):
                rest.idle, rest.dead = state

    def _choice(self, node: Any) -> None:
        """Visit both branches, unless the turn of a loop tells which one runs; a model's flags may be turned later."""
        test: ast.expr = node.test
        sides = {True: node.body, False: node.orelse}
        sides = {side: block if isinstance(block, list) else [block] for side, block in sides.items()}
        for item in getattr(node, "asked", [test]):
            self.condition(item)
        key, known = self.key(node), decide(test, self.scope)
        settled = known is not None and self.is_settled(test)
        if depends_on_mode(test, self.scope):
            self.findings.modes.add(key)
        before = self.numbers.snapshot()
        goes_on = []
        for side, block in sides.items():
            if settled and side is not known:
                continue
            self.numbers.go_back(before)
            path = {key: side} | implied(test, side, self.scope)
            with self.on_branch(path, idle=OFF if known is (not side) else "", certain=known is side):
                self.block(block)
            if isinstance(node, ast.If) and (ways := leaves(block)):
                self._leave(ways, {key: not side} | implied(test, not side, self.scope), known is side, settled)
            else:
                goes_on.append(self.numbers.snapshot())
        if goes_on:
            self.numbers.go_back(goes_on[0])
        for end in goes_on[1:]:
            self.numbers.join(end)

    visit_If = visit_IfExp = _choice  # noqa: N815

    def is_settled(self, test: ast.expr) -> bool:
        """Return whether a test that is known asks for nothing but the turn of a loop."""
        names = {part.id for part in ast.walk(test) if isinstance(part, ast.Name)}
        return bool(self.turns) and not names.isdisjoint(self.scope.turns) and not self.scope.has_switch(test)

    def _leave(self, ways: frozenset[str], path: Mapping[Key, Any], runs: bool, settled: bool) -> None:
        """Note what is known of the code after a branch that leaves."""
        rest = next(rest for rest in reversed(self.rest) if rest.left_by & ways)
        rest.path |= path
        rest.idle = rest.idle or (OFF if runs else "")
        rest.dead |= runs and settled

    def condition(self, test: ast.expr) -> None:
        """Visit an expression of which only the truth is asked."""
        self.visit(test)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        wanted = isinstance(node.op, ast.And)
        path: dict[Key, Any] = {}
        idle = ""
        for item in node.values:
            with self.on_branch(path, idle=idle):
                self.condition(item) if item is not node.values[-1] else self.visit(item)
            path = path | {self.key(item): wanted} | implied(item, wanted, self.scope)
            if isinstance(item, ast.BoolOp):  # in `a and b or c`, b and c exclude each other, as in `b if a else c`
                path[self.key(item.values[0])] = wanted
            idle = idle or (OFF if decide(item, self.scope) is (not wanted) else "")

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        chain: list[ast.stmt] = []
        for case in reversed(node.cases):
            test = _as_test(node.subject, case.pattern)
            if case.guard is not None:
                test = ast.BoolOp(ast.And(), [test, case.guard])
            test = ast.fix_missing_locations(ast.copy_location(test, case.pattern))
            choice = ast.copy_location(ast.If(test, case.body, chain), case.pattern)
            choice.asked = [] if case.guard is None else [case.guard]  # type: ignore[attr-defined]
            chain = [choice]
        self.block(chain)

    def visit_Try(self, node: Any) -> None:
        key = self.key(node)
        before = self.numbers.snapshot()
        with self.on_branch({key: True}), self._catching():
            self.block(node.body)
            self.block(node.orelse)
        for number, handler in enumerate(node.handlers):
            end = self.numbers.snapshot()
            self.numbers.go_back(before)
            others = {self.key(node, other): False for other in range(number)}
            with self.on_branch({key: False, self.key(node, number): True} | others):
                self.block(handler.body)
            self.numbers.join(end)
        if ways := leaves(node.orelse or node.body):
            self._leave(ways, {key: False}, False, False)
        self.block(node.finalbody)

    visit_TryStar = visit_Try  # noqa: N815

    @contextlib.contextmanager
    def _catching(self) -> Iterator[None]:
        """Visit what may be left by an exception without leaving the function."""
        self.rest.append(Rest(OF_TRY))
        yield
        self.rest.pop()

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item)
        words = {part.attr for item in node.items for part in ast.walk(item) if isinstance(part, ast.Attribute)}
        words |= {part.id for item in node.items for part in ast.walk(item) if isinstance(part, ast.Name)}
        with self.troubled(_NO_GRADIENTS if words & _WITHOUT_GRADIENTS else ""), self._catching():
            self.block(node.body)

    @contextlib.contextmanager
    def troubled(self, why: str) -> Iterator[None]:
        before, self.trouble = self.trouble, self.trouble or why
        yield
        self.trouble = before


def _as_test(subject: ast.expr, pattern: ast.pattern) -> ast.expr:
    """Return a pattern as a comparison; one that cannot be written as such becomes a name that nothing is known of."""
    match pattern:
        case ast.MatchValue(value=value):
            return ast.Compare(subject, [ast.Eq()], [value])
        case ast.MatchSingleton(value=value):
            return ast.Compare(subject, [ast.Is()], [ast.Constant(value)])
        case ast.MatchOr(patterns=patterns):
            return ast.BoolOp(ast.Or(), [_as_test(subject, item) for item in patterns])
        case ast.MatchAs(pattern=None):
            return ast.Constant(True)
        case ast.MatchAs(pattern=ast.pattern() as inner):
            return _as_test(subject, inner)
    return ast.Name(f"pattern {position(pattern)}", ast.Load())  # type: ignore[arg-type]
