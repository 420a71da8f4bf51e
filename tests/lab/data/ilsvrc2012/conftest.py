"""Pack in this process; use the real data set, or a part of it, if available."""

import errno
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from hullo.lab.data.ilsvrc2012 import packing
from hullo.lab.data.ilsvrc2012.source import Source
from hullo.lab.progress import Progress


@pytest.fixture
def progress():
    with Progress(Console(), quiet=True) as steps:
        yield steps


@pytest.fixture
def pack(progress, monkeypatch):
    """Pack a folder into another, five images a shard, in one thread."""
    monkeypatch.setattr(packing, "SHARD", 5)

    def pack(source, folder, partial=False):
        source = Source(source)
        chosen = packing.choose(source, progress, partial=partial)
        return packing.pack(source, chosen, folder, lambda: ThreadPoolExecutor(1), progress, partial=partial)

    return pack


@pytest.fixture
def forbid(monkeypatch):
    """Take away the right to read a file or a folder, even from root."""

    def forbid(path):
        def without(read):
            def refuse(asked, *arguments, **options):
                if os.fspath(asked) == os.fspath(path):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(asked))
                return read(asked, *arguments, **options)

            return refuse

        for module, name in ((os, "listdir"), (os, "scandir"), (io, "open")):
            monkeypatch.setattr(module, name, without(getattr(module, name)))

    return forbid


@pytest.fixture
def real_source():
    """Return ILSVRC-2012 in the directory HULLO_DATA, if only a few classes of it."""
    folder = Path(os.environ.get("HULLO_DATA", ""), "ilsvrc2012")
    if not os.environ.get("HULLO_DATA") or not folder.is_dir():
        pytest.skip("needs ilsvrc2012 in HULLO_DATA")
    return Source(folder)
