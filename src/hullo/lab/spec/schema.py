"""Rules for values that are read from JSON: each says where a value breaks it, what was found and what is wanted."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

LARGEST = 1.7976931348623157e308
"""The largest number in double precision."""
SHOWN = 60
"""Characters of a value that are shown."""


class Rule(Protocol):
    """Something that values of one field have to obey."""

    def check(self, value: Any, where: str) -> None:
        """Raise a ValueError that begins with `where` if the value does not obey."""


def refuse(where: str, value: Any, wanted: str) -> NoReturn:
    """Raise a ValueError that says what is wrong where."""
    raise ValueError(f"{where}: {shorten(value)}, but {wanted}")


def shorten(value: Any) -> str:
    """Return a value in a few characters."""
    text = reprlib.repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclass(frozen=True)
class Whole:
    """A whole number, of which true and false are none."""

    least: int = 0
    most: int = 2**63 - 1

    def check(self, value: Any, where: str) -> None:
        if type(value) is not int or not self.least <= value <= self.most:
            refuse(where, value, f"a whole number from {self.least} to {self.most} is wanted")


@dataclass(frozen=True)
class Number:
    """A finite number; null stands for one that was not, where that may be."""

    least: float = -LARGEST
    most: float = LARGEST
    null: bool = False

    def check(self, value: Any, where: str) -> None:
        if value is None and self.null:
            return
        if type(value) not in (int, float) or not self.least <= value <= self.most:
            refuse(where, value, f"a number from {self.least:g} to {self.most:g}{' or null' * self.null} is wanted")


@dataclass(frozen=True)
class Text:
    """A line of printable characters."""

    most: int = 1000

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, str) or not value.isprintable() or len(value) > self.most:
            refuse(where, value, f"a line of at most {self.most} printable characters is wanted")


@dataclass(frozen=True)
class Exactly:
    """One value and no other."""

    wanted: Any

    def check(self, value: Any, where: str) -> None:
        if value != self.wanted:
            refuse(where, value, f"{self.wanted!r} is wanted")


@dataclass(frozen=True)
class List:
    """A list whose items obey a rule; from `turn` on they obey `after`, if that is given.

    Args:
        item: the rule.
        length: how many items there are; by default at least one, or any number if it may be `empty`.
        unit: what there is one item for, in words.
        turn: the first item for which `after` holds.
        after: the other rule.
    """

    item: Rule
    length: int | None = None
    unit: str = ""
    turn: int = 0
    after: Rule | None = None
    empty: bool = False

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, list):
            refuse(where, value, "a list is wanted")
        if len(value) != self.length and (self.length is not None or not (value or self.empty)):
            wanted = "at least one" if self.length is None else str(self.length)
            unit = f", one per {self.unit}," if self.unit else ""
            raise ValueError(f"{where}: a list of {len(value)}, but a list of {wanted}{unit} is wanted")
        for place, item in enumerate(value):
            (self.after if self.after and place >= self.turn else self.item).check(item, f"{where}[{place}]")


@dataclass(frozen=True)
class Object:
    """An object that has these fields and no others."""

    fields: Mapping[str, Rule]

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            refuse(where or "the line", value, "an object is wanted")
        inside = f"{where}." if where else ""
        for name in value:
            if name not in self.fields:
                raise ValueError(f"{inside}{shorten(name)[1:-1]}: unknown; fields are {', '.join(self.fields)}")
        for name, rule in self.fields.items():
            if name not in value:
                raise ValueError(f"{inside}{name}: missing")
            rule.check(value[name], f"{inside}{name}")


def read_json(content: bytes) -> Any:
    """Return the value of a JSON text, in which no name is given twice and every number is one.

    >>> read_json(b'{"a": [1, null]}')
    {'a': [1, None]}
    >>> read_json(b'{"a": NaN}')
    Traceback (most recent call last):
    ValueError: no JSON: NaN is no number
    """

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(found)
        if len(values) < len(found):
            ((name, _),) = Counter(name for name, _ in found).most_common(1)
            raise ValueError(f"{shorten(name)} is given more than once")
        return values

    def constant(token: str) -> NoReturn:
        raise ValueError(f"{token} is no number")

    try:
        return json.loads(content.decode(), object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError:
        raise ValueError("no JSON: lists or objects are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
