"""Value numbering: give equal computations in different branches of a function the same number."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from hullo.surgery.rewrite.source import bindings
from hullo.surgery.rewrite.values import Scope, UnknownError

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class ValueNumbers:
    """Assign numbers to the values of expressions at one point of a function.

    Args:
        scope: the known names of the function.
        given: the numbers of its parameters.
    """

    def __init__(self, scope: Scope, given: Mapping[str, int]) -> None:
        self._scope, self._names = scope, dict(given)

    def of(self, node: ast.AST) -> int:
        """Return the number of the value of an expression; equal numbers mean equal computations."""
        if isinstance(node, (ast.Name, ast.Attribute)) and (text := ast.unparse(node)) in self._names:
            return self._names[text]
        if isinstance(node, ast.expr) and not isinstance(node, ast.Call):  # a call may make a new object each time
            try:
                thing = self._scope.thing(node)
            except UnknownError:
                pass
            else:
                return hash((type(thing).__name__, thing if isinstance(thing, _PLAIN) else id(thing)))
        return hash(
            (type(node).__name__, *(self._field(item) for name, item in ast.iter_fields(node) if name != "ctx"))
        )

    def _field(self, item: Any) -> Any:
        if isinstance(item, list):
            return tuple(self._field(part) for part in item)
        return self.of(item) if isinstance(item, ast.AST) else item

    def assign(self, target: ast.expr, number: int) -> None:
        """Set the number of an assignment target."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for n, part in enumerate(target.elts):
                self.assign(part, hash((number, n)))
        elif isinstance(target, ast.Starred):
            self.assign(target.value, number)
        elif isinstance(target, ast.Subscript):
            self.assign(target.value, hash((self.of(target.value), self.of(target.slice), number)))
        else:
            self._names[ast.unparse(target)] = number

    def forget(self, target: ast.expr) -> None:
        """Forget the numbers of a target: its known value determines them."""
        for name in bindings(target):
            self._names.pop(name, None)

    def snapshot(self) -> dict[str, int]:
        """Return the numbers of all names, for `restore`."""
        return dict(self._names)

    def restore(self, names: Mapping[str, int]) -> None:
        """Restore a snapshot."""
        self._names = dict(names)

    def join(self, other: Mapping[str, int]) -> None:
        """Merge with the numbers at the end of another branch."""
        for name in {*self._names, *other}:
            first, second = self._names.get(name), other.get(name)
            if first != second:
                self._names[name] = hash((first, second))
