"""Validation of JSON values: an error says where the value is, what was found and what is valid."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

MAX_FLOAT = 1.7976931348623157e308
"""The largest number in double precision."""
MAX_SHOWN = 60
"""The largest number of characters of a value in an error message."""

Rule = Callable[[Any, str], None]
"""Takes a value and where it is; raises a ValueError that starts with that if the value is invalid."""


def fail(where: str, value: Any, valid: str) -> NoReturn:
    """Raise a ValueError that says where the value is, what it is, and what is valid."""
    raise ValueError(f"{where}: {shorten(value)}; {valid}")


def shorten(value: Any) -> str:
    """Return a value as text of limited length."""
    text = reprlib.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def rule(is_valid: Callable[[Any], bool], valid: str) -> Rule:
    """Return a rule from a predicate and a description of valid values."""

    def check(value: Any, where: str) -> None:
        if not is_valid(value):
            fail(where, value, valid)

    return check


def integer(least: int = 0, most: int = 2**63 - 1) -> Rule:
    """An integer; true and false are not integers."""
    return rule(lambda value: type(value) is int and least <= value <= most, f"must be an integer, {least} to {most}")


def number(least: float = -MAX_FLOAT, most: float = MAX_FLOAT, *, null: bool = False) -> Rule:
    """A finite number, or null if allowed, for one that is not finite."""
    return rule(
        lambda value: (value is None and null) or (type(value) in (int, float) and least <= value <= most),
        f"must be a number from {least:g} to {most:g}{' or null' * null}",
    )


def text(most: int = 1000) -> Rule:
    """A line of printable characters."""
    return rule(
        lambda value: isinstance(value, str) and value.isprintable() and len(value) <= most,
        f"must be a string of at most {most} printable characters",
    )


def items(
    of: Rule, count: int | None = None, unit: str = "items", *, later: Rule | None = None, since: int = 0
) -> Rule:
    """A list of `count` items, at least one by default, that obey a rule; those from index `since` on obey `later`."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) != (max(1, len(value)) if count is None else count):
            found = f"a list of {len(value)}" if isinstance(value, list) else shorten(value)
            raise ValueError(f"{where}: {found}; must be a list of {'at least one' if count is None else count} {unit}")
        for index, item in enumerate(value):
            (later if later and index >= since else of)(item, f"{where}[{index}]")

    return check


def fields(rules: Mapping[str, Rule]) -> Rule:
    """An object with exactly these fields."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            fail(where or "the line", value, "must be an object")
        inside = f"{where}." if where else ""
        for name in value:
            if name not in rules:
                raise ValueError(f"{inside}{shorten(name)[1:-1]}: unknown; fields are {', '.join(rules)}")
        for name, of in rules.items():
            if name not in value:
                raise ValueError(f"{inside}{name}: missing")
            of(value[name], f"{inside}{name}")

    return check


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
