"""Numbers in the attributes of a network that count its calls, and whether its code reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_READ: list[str] = []  # the comparisons and conversions of watched numbers, while they are watched
_COUNTING = ("__add__", "__radd__", "__sub__", "__rsub__")
_READING = (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__hash__", "__int__", "__float__"),
    *(
        "__mul__",
        "__rmul__",
        "__mod__",
        "__rmod__",
        "__floordiv__",
        "__truediv__",
        "__rtruediv__",
        "__pow__",
        "__rpow__",
    ),
)


@contextmanager
def watch_numbers() -> Iterator[list[str]]:
    """Yield a list of the ways in which watched numbers are read meanwhile, other than to count on."""
    _READ.clear()
    yield _READ


def watched(value: Any) -> Any:
    """Return an integer or a float that is watched, and so are its sums; anything else as it is."""
    kinds: dict[type, type] = {int: WatchedInt, float: WatchedFloat}
    return kinds[type(value)](value) if type(value) in kinds else value


class WatchedInt(int):
    """Hold an integer, and note when something other than a sum is computed of it."""


class WatchedFloat(float):
    """Hold a float, and note when something other than a sum is computed of it."""


def plain(value: Any) -> Any:
    """Return a watched number as an integer or a float; anything else as it is."""
    return value.real if isinstance(value, (WatchedInt, WatchedFloat)) else value


def _counting(kind: type, name: str) -> Any:
    original = getattr(kind, name)
    return lambda number, *others: watched(original(number, *others))


def _reading(kind: type, name: str) -> Any:
    original = getattr(kind, name)

    def call(number: Any, *others: Any) -> Any:
        _READ.append(name)
        return original(number, *others)

    return call


for _own, _kind in ((WatchedInt, int), (WatchedFloat, float)):
    for _name in _COUNTING:
        setattr(_own, _name, _counting(_kind, _name))
    for _name in _READING:
        setattr(_own, _name, _reading(_kind, _name))
