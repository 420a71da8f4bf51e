"""Follow the control flow of a function: branches, loops turn by turn, and what names stand for on the way."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hullo.surgery.rewrite.branches import Key, decide, implied
from hullo.surgery.rewrite.paths import OF_FUNCTION, OF_LOOP, OF_TURN, OFF, Branches, Rest
from hullo.surgery.rewrite.source import position
from hullo.surgery.rewrite.values import LONGEST, UnknownError, Value

_NO_TURNS = "as the model is set up, the loop around it has no turns"
INNER = "it is called in a function inside a function"


class Flow(Branches):
    """Visits the code of one body in the order in which it runs, every turn of a known loop by itself."""

    # Loops

    def visit_For(self, node: ast.For) -> None:
        self._loop(node.target, node.iter, lambda: self.block(node.body), lambda: self.block(node.orelse))

    def visit_While(self, node: ast.While) -> None:
        self.rest += [Rest(OF_LOOP), Rest(OF_TURN)]
        with self.on_branch({}):
            self.visit(node.test)
            self.block(node.body)
        del self.rest[-2:]
        self.block(node.orelse)

    def _loop(
        self, target: ast.expr, source: ast.expr, read: Callable[[], Any], finish: Callable[[], Any] = lambda: None
    ) -> None:
        before = self.turns
        try:
            values: Sequence[Value] | None = self.scope.elements(source)
        except UnknownError:
            values = None
            self.visit(source)
        around, length = self.length, self.length * len(values or ())
        if length > LONGEST:  # of all turns of the loops around
            values = None
        self.length = max(length, 1)
        self.rest += [Rest(OF_LOOP), Rest(OF_TURN)]
        if values is None:
            self.scope.forget(target)
            self.numbers.assign(target, hash(("loop", position(source))))
            with self.on_branch({}):  # all turns share what is called
                read()
        elif not values:
            with self.on_branch({}, idle=_NO_TURNS):
                read()
        for turn, value in enumerate(values or ()):
            self.rest[-1] = Rest(OF_TURN)
            self.turns = (*before, (position(target), turn))
            self.numbers.assign(target, hash(("turn", position(source), turn)))
            if self.scope.bind(target, value):
                self.numbers.forget(target)
            read()
        self.turns = before
        self.scope.forget(target)  # a break may have left an earlier value in it
        self.length = around
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
                known = decide(test, self.scope)
                if known is False and self.is_settled(test):
                    return
                path |= {self.key(test): True} | implied(test, True, self.scope)
                idle = idle or (OFF if known is False else "")
            with self.on_branch(path, idle=idle):
                read(rest)

        read(node.generators)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    def visit_Assert(self, node: ast.Assert) -> None:
        with self.on_branch({}, idle="nothing comes of it but an assertion"):
            self.condition(node.test)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        with self.troubled("it is called in a formatted string"):
            self.generic_visit(node)

    # Functions inside, and names

    def _inner_function(self, node: Any) -> None:
        rest, self.rest = self.rest, [Rest(OF_FUNCTION, dict(self.path), self.idle)]
        with self.troubled(INNER):
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
            known = self.scope.evaluate(value)
            bound = [self.scope.bind(target, known) for target in targets]
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
                found = getattr(space, target, None)
            else:
                found = sys.modules.get(target if alias.asname else target.partition(".")[0])
            if found is not None:
                self.scope.bind(ast.Name(name.partition(".")[0], ast.Store()), Value(found))

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        number = hash((type(node.op).__name__, self.numbers.of(node.target), self.numbers.of(node.value)))
        self.scope.forget(node.target)
        self.numbers.assign(node.target, number)
