"""The table of `hullo data list`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from hullo.lab.data.release import Copy


def overview(copies: Iterable[Copy]) -> Table:
    """Return a table of data sets: content, size, state and location."""
    table = Table("data set", "content", "size", box=None, pad_edge=False)
    table.add_column("state", no_wrap=True)
    table.add_column("location", overflow="fold")
    for copy in copies:
        size = sum(file.size for file in copy.release.files)
        table.add_row(copy.release.name, copy.release.summary, f"{size / 1e6:.1f} MB", _state(copy), str(copy.folder))
    return table


def _state(copy: Copy) -> str:
    files = copy.release.files
    if not any((copy.folder / file.name).exists() for file in files):
        return "not fetched"
    flawed = len(copy.flaws())
    return f"{flawed} of {len(files)} files missing or damaged" if flawed else "ready"
