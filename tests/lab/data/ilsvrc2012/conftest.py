"""Pack a few images; use the real data set, or a part of it, if available."""

import os
import shutil
from pathlib import Path

import pytest
from made_ilsvrc import lay_out
from rich.console import Console

from hullo.lab.data.ilsvrc2012 import pack as packs
from hullo.lab.data.ilsvrc2012.source import Source
from hullo.lab.progress import Progress


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """Skip what only a power failure would show."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def _small_release(monkeypatch):
    """Release as many images as `made_ilsvrc` makes."""
    monkeypatch.setattr(packs, "NUM_RELEASED", {"train": 12, "val": 6})


@pytest.fixture
def progress():
    with Progress(Console(), quiet=True) as steps:
        yield steps


@pytest.fixture
def pack(progress, monkeypatch):
    """Pack a folder into another, five images a shard."""
    monkeypatch.setattr(packs, "SHARD", 5)
    return lambda source, folder, partial=False: packs.make_pack(Source(source), folder, progress, partial=partial)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return a folder with a source and its pack, for tests to copy."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch, Progress(Console(), quiet=True) as steps:
        patch.setattr(packs, "SHARD", 5)
        patch.setattr(packs, "NUM_RELEASED", {"train": 12, "val": 6})
        packs.make_pack(Source(lay_out(folder / "source")), folder / "packed", steps)
    return folder


@pytest.fixture
def packed(made, tmp_path):
    """Return the pack of the folder "source", in the folder "packed"."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return packs.Pack(tmp_path / "packed")


@pytest.fixture
def real_source():
    """Return ILSVRC-2012 in the directory HULLO_DATA, if only a few classes of it."""
    folder = Path(os.environ.get("HULLO_DATA", ""), "ilsvrc2012")
    if not os.environ.get("HULLO_DATA") or not folder.is_dir():
        pytest.skip("needs ilsvrc2012 in HULLO_DATA")
    return Source(folder)
