"""The command line: `hullo`, or `python -m hullo`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from hullo.lab import signals


def main() -> None:
    """Run the laboratory's command line, or say in one line what it needs."""
    signals.install()
    try:
        from hullo.lab.cli import app
    except ModuleNotFoundError as error:
        package = (error.name or "hullo").partition(".")[0]
        if package == "hullo":
            raise
        sys.exit(f"hullo: the command line needs {package}; run pip install '.[lab]' in a clone of hullo")
    try:
        app(prog_name="hullo")
    except SystemExit as end:
        if signals.was_received():
            _exit_at_once(end.code)
        raise


def _exit_at_once(code: str | int | None) -> None:
    """Exit without the shutdown of PyTorch, which would take seconds."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
