"""Base functions in JavaScript: the catalogue's formulas, whose text JavaScript reads as it stands.

Formulas consist of numbers, + - * /, comparisons and calls of words, which Python and JavaScript write alike; what the
words mean in JavaScript is in words.js.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files

from hullo.bases import Base, get_base, list_bases


def known_bases(spelled: Iterable[str]) -> tuple[Base, ...]:
    """Return the catalogue's bases, then those of the records that have a formula, such as leaky_relu(0.2)."""
    found = dict.fromkeys(get_base(name) for name in list_bases())
    for name in spelled:
        try:
            found[get_base(name)] = None
        except ValueError:  # a base that somebody added, in another process
            continue
    return tuple(item for item in found if item.formula)


def write_bases(bases: Iterable[Base]) -> str:
    """Return the script that defines BASES: by name, the value and slope of each base, its kinks and properties."""
    words = (files(__package__) / "assets" / "words.js").read_text("utf-8")
    entries = "\n".join(f"  {quote(item.name)}: {_entry(item)}," for item in bases)
    return f"const BASES = (() => {{\n{words}\nreturn {{\n{entries}\n}};\n}})();\n"


def quote(value: object) -> str:
    """Return a value as JSON that is safe inside a script of an HTML file."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _entry(item: Base) -> str:
    formula = item.formula
    assert formula is not None  # noqa: S101  (known_bases lets none through)
    facts = {
        "kinks": item.kinks,
        "atZero": [item.value_at_zero, *item.slopes_at_zero],
        "admissible": item.is_admissible,
    }
    return f"{{value: (x) => {formula.value}, slope: (x, y) => {formula.slope}, ...{quote(facts)}}}"
