"""Write the document as one HTML file with inline styles, scripts and data, and a strict content security policy."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from hullo.bases import Base, get_base, list_bases
from hullo.lab.files import atomic_write, make_directory

STYLES = ("page.css", "charts.css", "views.css")
SCRIPTS = (
    "functions.js",
    "store.js",
    "dom.js",
    "export.js",
    "hover.js",
    "charts.js",
    "controls.js",
    "dots.js",
    "pair.js",
    "table.js",
    "curves.js",
    "paths.js",
    "training.js",
    "playground.js",
    "runs.js",
    "main.js",
)
"""The scripts in the order of the page; they share one scope, so each name is defined once."""


def write_page(document: dict[str, Any], path: Path) -> None:
    """Write the page, replacing an existing file atomically."""
    make_directory(path.parent)
    with atomic_write(path) as file:
        file.write(render(document).encode())


def render(document: dict[str, Any]) -> str:
    """Return the HTML of the page."""
    spelled = [name for column in document["columns"] for run in column["runs"] for name in run["bases"]]
    style = "\n".join(map(_asset, STYLES))
    scripts = [write_bases(known_bases(spelled)), *map(_asset, SCRIPTS)]
    policy = "; ".join(
        [
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {' '.join(map(_hash, scripts))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    parts = {
        "POLICY": html.escape(policy),
        "STYLE": f"<style>{style}</style>",
        "DATA": f'<script type="application/json" id="data">{quote(document)}</script>',
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("template.html"))


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
    """Return the script that defines BASES: by name, the value and slope of each base, its kinks and properties.

    A formula consists of numbers, + - * /, comparisons and calls of words, which Python and JavaScript write alike;
    what the words mean in JavaScript is in words.js.
    """
    words = _asset("words.js")
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


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    """Return the hash source of a script or style for the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
