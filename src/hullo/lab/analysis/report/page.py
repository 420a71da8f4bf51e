"""Write the document as one HTML file with inline styles, scripts and data, and a strict content security policy."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from hullo.lab.analysis.report.functions import known_bases, quote, write_bases
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


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    """Return the hash source of a script or style for the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
