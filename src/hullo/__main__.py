"""The command line: `hullo`, or `python -m hullo`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the laboratory's command line, or say in one line what it needs."""
    try:
        from hullo.lab.cli import app
    except ModuleNotFoundError as error:
        package = (error.name or "hullo").partition(".")[0]
        if package == "hullo":
            raise
        sys.exit(f"hullo: the command line needs {package}; get it with: pip install 'hullo[lab]'")
    app(prog_name="hullo")


if __name__ == "__main__":
    main()
