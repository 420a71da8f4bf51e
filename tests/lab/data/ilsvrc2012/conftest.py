"""Pack a few images; use the real data set, or a part of it, if available."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from hullo.lab.data.ilsvrc2012 import pack as packs
from hullo.lab.data.ilsvrc2012.source import Source
from hullo.lab.progress import Progress


@pytest.fixture
def progress():
    with Progress(Console(), quiet=True) as steps:
        yield steps


@pytest.fixture
def pack(progress, monkeypatch):
    """Pack a folder into another, five images a shard."""
    monkeypatch.setattr(packs, "SHARD", 5)
    return lambda source, folder, partial=False: packs.pack(Source(source), folder, progress, partial=partial)


@pytest.fixture
def real_source():
    """Return ILSVRC-2012 in the directory HULLO_DATA, if only a few classes of it."""
    folder = Path(os.environ.get("HULLO_DATA", ""), "ilsvrc2012")
    if not os.environ.get("HULLO_DATA") or not folder.is_dir():
        pytest.skip("needs ilsvrc2012 in HULLO_DATA")
    return Source(folder)
