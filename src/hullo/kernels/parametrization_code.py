"""Generate the statements of a Triton kernel for parametrizations, on named numbers: scalars, or rows of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Names = Sequence[str]


def _each(statement: str, *rows: Names) -> list[str]:
    """Return a statement for each number of a row, with the names of the numbers in place of {0}, {1}, ..."""
    return [statement.format(*names) for names in zip(*rows, strict=True)]


def _sum(names: Names) -> str:
    return f"({' + '.join(names)})" if names else "0.0"


def _largest(names: Names) -> list[str]:
    return [f"largest = {names[0]}", *_each("largest = tl.maximum(largest, {})", names[1:])]


def _projection(r: Names, c: Names) -> list[str]:
    """The threshold is the maximum over i of (sum of the raw parameters from r_i up - 1) / how many they are."""
    lines = [*_largest(r), *_each("{} -= tl.floor(largest)", r)]  # without that, large numbers swallow the 1
    for i, own in enumerate(r):
        above = _sum([f"tl.where({other} >= {own}, {other}, 0.0)" for other in r])
        count = _sum([f"tl.where({other} >= {own}, 1.0, 0.0)" for other in r])
        candidate = f"({above} - 1.0) / {count}"
        lines.append(f"threshold = tl.maximum(threshold, {candidate})" if i else f"threshold = {candidate}")
    return [*lines, *_each("{} = tl.maximum({} - threshold, 0.0)", c, r)]


TRANSFORMS: dict[str, Callable[[Names, Names], list[str]]] = {
    "given": lambda r, c: _each("{} = {}", c, r),
    "recentred": lambda r, c: [f"shift = ({_sum(r)} - 1.0) / {len(c)}.0", *_each("{} = {} - shift", c, r)],
    "free": lambda r, c: [*_each("{} = {}", c[:-1], r), f"{c[-1]} = 1.0 - {_sum(r)}"],
    "softmax": lambda r, c: [
        *_largest(r),
        *_each("{} = tl.exp({} - largest)", c, r),
        f"whole = {_sum(c)}",
        *_each("{0} = {0} / whole", c),
    ],
    "projection": _projection,
    "clamped": lambda r, c: _each("{} = positive_part({})", c, r),
    "softplus": lambda r, c: _each("{0} = positive_part({1}) + log1p(tl.exp(-tl.abs({1})))", c, r),
}
"""Map raw parameters (r) to coefficients (c)."""


def _centre(c: Names, g: Names, d: Names) -> list[str]:
    return [f"mean = {_sum(g)} / {len(g)}.0", *_each("{} = {} - mean", d, g)]


PULLBACKS: dict[str, Callable[[Names, Names, Names], list[str]]] = {
    "given": lambda c, g, d: _each("{} = {}", d, g),
    "recentred": _centre,
    "free": lambda c, g, d: [f"{di} = {gi} - {g[-1]}" for di, gi in zip(d[:-1], g, strict=False)],
    "softmax": lambda c, g, d: [
        f"mean = {_sum(_each('{} * {}', c, g))}",
        *_each("{} = {} * ({} - mean)", d, c, g),
    ],
    "projection": _centre,
    "clamped": lambda c, g, d: _each("{} = {}", d, g),
    "softplus": lambda c, g, d: _each("{} = {} * -expm1(-{})", d, g, c),
}
"""Map gradients of coefficients (g) to gradients of raw parameters (d)."""
