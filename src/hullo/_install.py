"""How to install what is missing, for error messages."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """Return the command that installs hullo with an extra; it is not on a package index yet."""
    return f"pip install '.[{extra}]' in a clone of hullo"
