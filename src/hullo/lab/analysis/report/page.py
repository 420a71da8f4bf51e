"""One HTML file from the document: styles, scripts and data inside, and a policy that lets nothing else in."""

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

STYLES = ("page.css", "views.css")
SCRIPTS = (
    "functions.js",
    "store.js",
    "dom.js",
    "charts.js",
    "controls.js",
    "table.js",
    "curves.js",
    "paths.js",
    "training.js",
    "playground.js",
    "runs.js",
    "main.js",
)
"""In the order in which the page reads them; they share one scope, so each name is defined once."""


def write_page(document: dict[str, Any], path: Path) -> None:
    """Write the page; a file that is there is replaced by the whole page, or stays."""
    make_directory(path.parent)
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a directory; name a file")
    with atomic_write(path) as file:
        file.write(render(document).encode())


def render(document: dict[str, Any]) -> str:
    """The text of the page."""
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
    """What a policy calls a script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
