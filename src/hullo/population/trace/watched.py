"""Numbers in the attributes of a network that count its calls, and whether its code reads them."""

from __future__ import annotations

from typing import Any

_COUNTING = ("__add__", "__radd__", "__sub__", "__rsub__")
_COMPARING = "eq ne lt le gt ge bool hash int float"
_COMPUTING = "mul rmul mod rmod floordiv truediv rtruediv pow rpow"
_READING = [f"__{name}__" for name in f"{_COMPARING} {_COMPUTING}".split()]


class WatchedInt(int):
    """Hold an integer, and note in `read` when something other than a sum is computed of it."""

    read: list[str]


class WatchedFloat(float):
    """Hold a float, and note in `read` when something other than a sum is computed of it."""

    read: list[str]


def watched(value: Any, read: list[str]) -> Any:
    """Return an integer or a float that notes in a list how it is read, as do its sums; anything else as it is."""
    kinds: dict[type, Any] = {int: WatchedInt, float: WatchedFloat}
    if type(value) not in kinds:
        return value
    number = kinds[type(value)](value)
    number.read = read
    return number


def plain(value: Any) -> Any:
    """Return a watched number as an integer or a float; anything else as it is."""
    return value.real if isinstance(value, (WatchedInt, WatchedFloat)) else value


def _counting(kind: type, name: str) -> Any:
    original = getattr(kind, name)
    return lambda number, *others: watched(original(number, *others), number.read)


def _reading(kind: type, name: str) -> Any:
    original = getattr(kind, name)

    def call(number: Any, *others: Any) -> Any:
        number.read.append(name)
        return original(number, *others)

    return call


for _own, _kind in ((WatchedInt, int), (WatchedFloat, float)):
    for _name in _COUNTING:
        setattr(_own, _name, _counting(_kind, _name))
    for _name in _READING:
        setattr(_own, _name, _reading(_kind, _name))
