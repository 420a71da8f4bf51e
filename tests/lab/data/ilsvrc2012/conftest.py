"""Packing within this process, and the real data set, or a part of it, where there is any."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from hullo.lab.data.ilsvrc2012 import packing
from hullo.lab.data.ilsvrc2012.pictures import Source
from hullo.lab.progress import Steps


@pytest.fixture
def progress():
    with Steps(Console(), quiet=True) as steps:
        yield steps


@pytest.fixture
def pack(progress, monkeypatch):
    """Pack a folder into another, five pictures a shard, in one thread."""
    monkeypatch.setattr(packing, "SHARD", 5)

    def pack(source, folder, partial=False):
        source = Source(source)
        chosen = packing.choose(source, progress, partial=partial)
        return packing.pack(source, chosen, folder, lambda: ThreadPoolExecutor(1), progress, partial=partial)

    return pack


@pytest.fixture
def real_source():
    """ILSVRC-2012 in the directory that HULLO_DATA names; a few classes will do."""
    folder = Path(os.environ.get("HULLO_DATA", ""), "ilsvrc2012")
    if not os.environ.get("HULLO_DATA") or not folder.is_dir():
        pytest.skip("needs ilsvrc2012 in HULLO_DATA")
    return Source(folder)
