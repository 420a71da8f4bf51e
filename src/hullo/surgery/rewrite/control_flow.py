"""Visit the code of a function in execution order: branches, loops and assignments."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hullo.surgery.rewrite.branches import Key, Path, decide, depends_on_mode, exits, implied, variables_in
from hullo.surgery.rewrite.findings import Body, Findings, Iterations
from hullo.surgery.rewrite.source import position
from hullo.surgery.rewrite.value_numbers import ValueNumbers
from hullo.surgery.rewrite.values import MAX_ITERATIONS, Scope, UnknownError, Value

OF_FUNCTION, OF_LOOP, OF_ITERATION, OF_TRY = (
    frozenset({exit_kind}) for exit_kind in ("return", "break", "continue", "raise")
)
OF_FUNCTION |= OF_TRY
OFF = "this branch does not run in the model's configuration"
INNER = "it is called in a nested function"
_NO_ITERATIONS = "the loop around it has no iterations in the model's configuration"
_NO_GRADIENTS = "it is called without gradients, so it would not be trained"
_WITHOUT_GRADIENTS = frozenset({"no_grad", "inference_mode"})


@dataclass
class Rest:
    """Hold what is known about the rest of a function, loop, iteration or try after a branch that exits from it."""

    left_by: frozenset[str]
    path: dict[Key, Any] = field(default_factory=dict)
    idle: str = ""  # why nothing in it runs in the model's configuration
    dead: bool = False  # it does not run in this iteration of a loop


class Flow(ast.NodeVisitor):
    """Visit the code of a body in execution order: all branches, and each iteration of a loop of known length."""

    def __init__(
        self, findings: Findings, body: Body, scope: Scope, numbers: Mapping[str, int], path: Path, idle: str,
        blocker: str,
    ) -> None:  # fmt: skip
        self.findings, self.body, self.scope, self.numbers = findings, body, scope, ValueNumbers(scope, numbers)
        self.iterations: Iterations = ()
        self.length = 1  # the product of the numbers of iterations of the enclosing loops
        self.blocker = blocker
        self._branches = dict(path)
        self._idle = idle
        self.rest = [Rest(OF_FUNCTION)]  # of the function and the enclosing loops and tries, innermost last

    @property
    def path(self) -> Path:
        return {key: side for rest in self.rest for key, side in rest.path.items()} | self._branches

    @property
    def idle(self) -> str:
        return next((why for why in (self._idle, *(rest.idle for rest in self.rest)) if why), "")

    def block(self, nodes: Sequence[ast.AST]) -> None:
        """Visit statements up to the first that certainly exits from the block."""
        for node in nodes:
            if any(rest.dead for rest in self.rest):
                return
            self.visit(node)

    def key(self, node: Any, *more: Any) -> Key:
        return ("at", id(self.body), position(node), self.iterations, *more)

    # Branches

    @contextlib.contextmanager
    def on_branch(self, path: Mapping[Key, Any], idle: str = "", certain: bool = False) -> Iterator[None]:
        """Visit code on a branch; only a branch that certainly runs affects the code after it."""
        branches, was_idle = self._branches, self._idle
        before = [(rest.idle, rest.dead) for rest in self.rest]
        self._branches, self._idle = branches | dict(path), was_idle or idle
        yield
        self._branches, self._idle = branches, was_idle
        if not certain:
            for rest, state in zip(self.rest, before, strict=True):
                rest.idle, rest.dead = state

    def _choice(self, node: Any) -> None:
        """Visit both branches, or one if loop variables decide the test; flags of the model may change."""
        test: ast.expr = node.test
        sides = {True: node.body, False: node.orelse}
        sides = {side: block if isinstance(block, list) else [block] for side, block in sides.items()}
        for item in getattr(node, "conditions", [test]):  # the subject of a match statement is visited once
            self.condition(item)
        key, result = self.key(node), decide(test, self.scope)
        is_decided = result is not None and self.depends_on_loop(test)
        if depends_on_mode(test, self.scope):
            self.findings.modes.add(key)
        before = self.numbers.snapshot()
        continuing = []
        for side, block in sides.items():
            if is_decided and side is not result:
                continue
            self.numbers.restore(before)
            path = {key: side} | implied(test, side, self.scope)
            with self.on_branch(path, idle=OFF if result is (not side) else "", certain=result is side):
                self.block(block)
            if isinstance(node, ast.If) and (exit_kinds := exits(block)):
                self._leave(
                    exit_kinds, {key: not side} | implied(test, not side, self.scope), result is side, is_decided
                )
            else:
                continuing.append(self.numbers.snapshot())
        if continuing:
            self.numbers.restore(continuing[0])
        for end in continuing[1:]:
            self.numbers.join(end)

    visit_If = visit_IfExp = _choice  # noqa: N815

    def depends_on_loop(self, test: ast.expr) -> bool:
        """Return whether a test depends on loop variables but not on flags of the model."""
        uses_loop = not variables_in(test).isdisjoint(self.scope.loop_names)
        return bool(self.iterations) and uses_loop and not self.scope.has_flag(test)

    def _leave(self, exit_kinds: frozenset[str], path: Mapping[Key, Any], runs: bool, is_decided: bool) -> None:
        """Record what is known about the code after a branch that exits."""
        rest = next(rest for rest in reversed(self.rest) if rest.left_by & exit_kinds)
        rest.path |= path
        rest.idle = rest.idle or (OFF if runs else "")
        rest.dead |= runs and is_decided

    def condition(self, test: ast.expr) -> None:
        """Visit an expression of which only the truth value is used."""
        self.visit(test)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        continues = isinstance(node.op, ast.And)
        path: dict[Key, Any] = {}
        idle = ""
        for item in node.values:
            with self.on_branch(path, idle=idle):
                self.condition(item) if item is not node.values[-1] else self.visit(item)
            path = path | {self.key(item): continues} | implied(item, continues, self.scope)
            if isinstance(item, ast.BoolOp):  # in `a and b or c`, b and c exclude each other, as in `b if a else c`
                path[self.key(item.values[0])] = continues
            idle = idle or (OFF if decide(item, self.scope) is (not continues) else "")

    def visit_Match(self, node: ast.Match) -> None:
        """Visit a match statement as a chain of if statements."""
        self.visit(node.subject)
        chain: list[ast.stmt] = []
        for case in reversed(node.cases):
            test = _as_test(node.subject, case.pattern)
            if case.guard is not None:
                test = ast.BoolOp(ast.And(), [test, case.guard])
            test = ast.fix_missing_locations(ast.copy_location(test, case.pattern))
            choice = ast.copy_location(ast.If(test, case.body, chain), case.pattern)
            choice.conditions = [] if case.guard is None else [case.guard]  # type: ignore[attr-defined]
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
            self.numbers.restore(before)
            others = {self.key(node, other): False for other in range(number)}
            with self.on_branch({key: False, self.key(node, number): True} | others):
                self.block(handler.body)
            self.numbers.join(end)
        if exit_kinds := exits(node.orelse or node.body):
            self._leave(exit_kinds, {key: False}, False, False)
        self.block(node.finalbody)

    visit_TryStar = visit_Try  # noqa: N815

    @contextlib.contextmanager
    def _catching(self) -> Iterator[None]:
        """Visit code that an exception may leave without leaving the function."""
        self.rest.append(Rest(OF_TRY))
        yield
        self.rest.pop()

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item)
        names = {part.attr for item in node.items for part in ast.walk(item) if isinstance(part, ast.Attribute)}
        names |= {part.id for item in node.items for part in ast.walk(item) if isinstance(part, ast.Name)}
        with self.blocked(_NO_GRADIENTS if names & _WITHOUT_GRADIENTS else ""), self._catching():
            self.block(node.body)

    @contextlib.contextmanager
    def blocked(self, why: str) -> Iterator[None]:
        before, self.blocker = self.blocker, self.blocker or why
        yield
        self.blocker = before

    # Loops

    def visit_For(self, node: ast.For) -> None:
        self._loop(node.target, node.iter, lambda: self.block(node.body), lambda: self.block(node.orelse))

    def visit_While(self, node: ast.While) -> None:
        self.rest += [Rest(OF_LOOP), Rest(OF_ITERATION)]
        with self.on_branch({}):
            self.visit(node.test)
            self.block(node.body)
        del self.rest[-2:]
        self.block(node.orelse)

    def _loop(
        self, target: ast.expr, source: ast.expr, read: Callable[[], Any], finish: Callable[[], Any] = lambda: None
    ) -> None:
        before = self.iterations
        try:
            values: Sequence[Value] | None = self.scope.elements(source)
        except UnknownError:
            values = None
            self.visit(source)
        outer_length, length = self.length, self.length * len(values or ())
        if length > MAX_ITERATIONS:  # of all enclosing loops together
            values = None
        self.length = max(length, 1)
        self.rest += [Rest(OF_LOOP), Rest(OF_ITERATION)]
        if values is None:
            self.scope.forget(target)
            self.numbers.assign(target, hash(("loop", position(source))))
            with self.on_branch({}):  # all iterations share a hull
                read()
        elif not values:
            with self.on_branch({}, idle=_NO_ITERATIONS):
                read()
        for index, value in enumerate(values or ()):
            self.rest[-1] = Rest(OF_ITERATION)
            self.iterations = (*before, (position(target), index))
            self.numbers.assign(target, hash(("iteration", position(source), index)))
            if self.scope.bind(target, value):
                self.numbers.forget(target)
            read()
        self.iterations = before
        self.scope.forget(target)  # a break may have left an earlier value in it
        self.length = outer_length
        self.rest.pop()
        finish()
        self.rest.pop()

    def _comprehension(self, node: Any) -> None:
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]

        def read(generators: list[ast.comprehension]) -> None:
            if not generators:
                self.block(parts)
                return
            first, *rest = generators
            self._loop(first.target, first.iter, lambda: filtered(first.ifs, rest))

        def filtered(tests: list[ast.expr], rest: list[ast.comprehension]) -> None:
            path: dict[Key, Any] = {}
            idle = ""
            for test in tests:
                self.condition(test)
                result = decide(test, self.scope)
                if result is False and self.depends_on_loop(test):
                    return
                path |= {self.key(test): True} | implied(test, True, self.scope)
                idle = idle or (OFF if result is False else "")
            with self.on_branch(path, idle=idle):
                read(rest)

        read(node.generators)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    def visit_Assert(self, node: ast.Assert) -> None:
        with self.on_branch({}, idle="it is only used in an assertion"):
            self.condition(node.test)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        with self.blocked("it is called in a formatted string"):
            self.generic_visit(node)

    # Nested functions and names

    def _inner_function(self, node: Any) -> None:
        rest, self.rest = self.rest, [Rest(OF_FUNCTION, dict(self.path), self.idle)]
        with self.blocked(INNER):
            self.generic_visit(node)
        self.rest = rest

    visit_Lambda = visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _inner_function  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assign(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign([node.target], node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._assign([node.target], node.value)

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        number = self.numbers.of(value)
        try:
            evaluated = self.scope.evaluate(value)
            bound = [self.scope.bind(target, evaluated) for target in targets]
        except UnknownError:
            for target in targets:
                self.scope.forget(target)
            bound = [False]
        if not all(bound):
            self.visit(value)
        for target in targets:
            self.visit(target)
            self.numbers.assign(target, number)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name, target = alias.asname or alias.name, alias.name
            if isinstance(node, ast.ImportFrom):
                package = self.body.function.__globals__.get("__package__") or ""
                home = package.rsplit(".", node.level - 1)[0] if node.level else ""
                space = sys.modules.get(".".join(part for part in (home, node.module) if part))
                value = getattr(space, target, None)
            else:
                value = sys.modules.get(target if alias.asname else target.partition(".")[0])
            if value is not None:
                self.scope.bind(ast.Name(name.partition(".")[0], ast.Store()), Value(value))

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        number = hash((type(node.op).__name__, self.numbers.of(node.target), self.numbers.of(node.value)))
        self.scope.forget(node.target)
        self.numbers.assign(node.target, number)


def _as_test(subject: ast.expr, pattern: ast.pattern) -> ast.expr:
    """Return a pattern as a comparison, or an unknown name for patterns that have no such form."""
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
