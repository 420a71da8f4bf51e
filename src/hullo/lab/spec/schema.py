"""Validation of JSON values: an error says where the value is, what was found and what is valid."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

MAX_FLOAT = 1.7976931348623157e308
"""The largest number in double precision."""
MAX_SHOWN = 60
"""The largest number of characters of a value in an error message."""


class Rule(Protocol):
    """A rule for the values of a field."""

    def check(self, value: Any, where: str) -> None:
        """Raise a ValueError that starts with `where` if the value is invalid."""


def fail(where: str, value: Any, valid: str) -> NoReturn:
    """Raise a ValueError that says where the value is, what it is, and what is valid."""
    raise ValueError(f"{where}: {shorten(value)}; {valid}")


def shorten(value: Any) -> str:
    """Return a value as text of limited length."""
    text = reprlib.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


@dataclass(frozen=True)
class Integer:
    """An integer; true and false are not integers."""

    least: int = 0
    most: int = 2**63 - 1

    def check(self, value: Any, where: str) -> None:
        if type(value) is not int or not self.least <= value <= self.most:
            fail(where, value, f"must be an integer from {self.least} to {self.most}")


@dataclass(frozen=True)
class Boolean:
    """True or false."""

    def check(self, value: Any, where: str) -> None:
        if type(value) is not bool:
            fail(where, value, "must be true or false")


@dataclass(frozen=True)
class Number:
    """A finite number, or null if allowed, for one that is not finite."""

    least: float = -MAX_FLOAT
    most: float = MAX_FLOAT
    null: bool = False

    def check(self, value: Any, where: str) -> None:
        if value is None and self.null:
            return
        if type(value) not in (int, float) or not self.least <= value <= self.most:
            fail(where, value, f"must be a number from {self.least:g} to {self.most:g}{' or null' * self.null}")


@dataclass(frozen=True)
class Text:
    """A line of printable characters."""

    most: int = 1000

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, str) or not value.isprintable() or len(value) > self.most:
            fail(where, value, f"must be a string of at most {self.most} printable characters")


@dataclass(frozen=True)
class Exactly:
    """Exactly one valid value."""

    expected: Any

    def check(self, value: Any, where: str) -> None:
        if value != self.expected:
            fail(where, value, f"must be {self.expected!r}")


@dataclass(frozen=True)
class List:
    """A list whose items obey a rule; items from index `from_index` on obey `after`, if given.

    Args:
        item: the rule.
        length: number of items; by default at least one, or any number with `empty`.
        unit: what each item stands for, for error messages.
        from_index: index of the first item for which `after` holds.
        after: the other rule.
    """

    item: Rule
    length: int | None = None
    unit: str = ""
    from_index: int = 0
    after: Rule | None = None
    empty: bool = False

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, list):
            fail(where, value, "must be a list")
        if len(value) != self.length and (self.length is not None or not (value or self.empty)):
            length = "at least one" if self.length is None else str(self.length)
            unit = f", one per {self.unit}," if self.unit else ""
            raise ValueError(f"{where}: a list of {len(value)}; must be a list of {length}{unit.rstrip(',')}")
        for index, item in enumerate(value):
            (self.after if self.after and index >= self.from_index else self.item).check(item, f"{where}[{index}]")


@dataclass(frozen=True)
class Object:
    """An object with exactly these fields."""

    fields: Mapping[str, Rule]

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            fail(where or "the line", value, "must be an object")
        inside = f"{where}." if where else ""
        for name in value:
            if name not in self.fields:
                raise ValueError(f"{inside}{shorten(name)[1:-1]}: unknown; fields are {', '.join(self.fields)}")
        for name, rule in self.fields.items():
            if name not in value:
                raise ValueError(f"{inside}{name}: missing")
            rule.check(value[name], f"{inside}{name}")


def read_json(content: bytes) -> Any:
    """Parse JSON strictly: no duplicate names, no NaN, no infinities.

    >>> read_json(b'{"a": [1, null]}')
    {'a': [1, None]}
    >>> read_json(b'{"a": NaN}')
    Traceback (most recent call last):
    ValueError: invalid JSON: NaN is not a number
    """

    def to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise ValueError(f"{shorten(name)} is given more than once")
        return values

    def constant(token: str) -> NoReturn:
        raise ValueError(f"{token} is not a number")

    try:
        return json.loads(content.decode(), object_pairs_hook=to_dict, parse_constant=constant)
    except RecursionError:
        raise ValueError("invalid JSON: lists or objects are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"invalid JSON: {error}") from None
