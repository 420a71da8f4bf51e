import errno
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace

import pytest
from rich.console import Console
from tiny_releases import as_file

from hullo.lab.data import fashion_mnist
from hullo.lab.data import fetch as fetching
from hullo.lab.data.fetch import fetch
from hullo.lab.data.release import Copy, DataError, Release
from hullo.lab.errors import RunError

CONTENTS = {name: random.Random(name).randbytes(100_000) for name in ("first.bin", "second.bin")}
FILES = tuple(as_file(*item) for item in CONTENTS.items())


def release(site, **options):
    return Release("pair", "two files", "pair", FILES, fashion_mnist.read, address=site.address, **options)


def pack(contents):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def copy(site, tmp_path):
    site.files.update(CONTENTS)
    return Copy(release(site), tmp_path / "data")


@pytest.fixture
def packed(site, tmp_path):
    archive = pack({"pair/unasked.txt": b"?", "../first.bin": b"!", **{f"pair/{k}": v for k, v in CONTENTS.items()}})
    site.files["pair.tar.gz"] = archive
    return Copy(release(site, archive=as_file("pair.tar.gz", archive, "md5")), tmp_path / "data")


def bring(copy):
    fetch(copy, Console(), quiet=True)


def names(copy):
    return sorted(str(path.relative_to(copy.root)) for path in copy.root.rglob("*") if path.suffix != ".lock")


def test_only_missing_files_are_downloaded(copy, site):
    bring(copy)
    assert {name: copy.read(name) for name in CONTENTS} == CONTENTS
    assert names(copy) == ["pair", "pair/first.bin", "pair/second.bin"]
    bring(copy)
    assert site.asked == ["first.bin", "second.bin"]


@pytest.mark.parametrize("damaged", [b"", CONTENTS["first.bin"][:-1], b"x" + CONTENTS["first.bin"][1:]])
def test_only_the_damaged_file_is_replaced(copy, site, damaged):
    bring(copy)
    (copy.folder / "first.bin").write_bytes(damaged)
    bring(copy)
    assert copy.flaws() == {}
    assert site.asked[2:] == ["first.bin"]


@pytest.mark.parametrize("tells_length", [True, False])
def test_interrupted_download_leaves_nothing_and_starts_again(copy, site, tells_length):
    site.tells_length = tells_length
    site.cuts += [30_000]
    again = f"fetch it again with: hullo data fetch pair --data {copy.root}"
    with pytest.raises(DataError, match=rf"{site.address}first.bin is truncated after 30,000 of 100,000.*; {again}"):
        bring(copy)
    assert names(copy) == ["pair"]
    bring(copy)
    assert copy.flaws() == {}


def test_altered_file_is_not_written(copy, site):
    site.files["second.bin"] = altered = bytes(100_000)
    with pytest.raises(DataError) as caught:
        bring(copy)
    assert str(caught.value) == (
        f"{site.address}second.bin is altered: expected sha256 {FILES[1].digest}, "
        f"found {as_file('', altered).digest}; fetch it again with: {copy.command}"
    )
    assert names(copy) == ["pair", "pair/first.bin"]


def test_endless_response_is_cut_off(copy, site):
    site.tells_length = False
    site.files["first.bin"] += bytes(20_000_000)
    with pytest.raises(DataError, match=r"first.bin is altered") as caught:
        bring(copy)
    assert as_file("", site.files["first.bin"]).digest not in str(caught.value)
    assert names(copy) == ["pair"]


def test_http_404_is_a_clear_error(copy, site):
    del site.files["second.bin"]
    with pytest.raises(DataError, match=r"second.bin: .*404"):
        bring(copy)
    assert names(copy) == ["pair", "pair/first.bin"]


def test_unreachable_server_is_a_clear_error(copy, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    away = replace(copy, release=replace(copy.release, address="http://127.0.0.1:1/"))
    with pytest.raises(DataError, match=r"cannot fetch http://127.0.0.1:1/first.bin: .*refused.*; fetch it again"):
        bring(away)


def test_silent_server_times_out(copy, site, monkeypatch):
    monkeypatch.setattr(fetching, "TIMEOUT", 0.2)
    site.gate = threading.Event()
    site.cuts += [30_000]
    try:
        with pytest.raises(DataError, match=r"first.bin: timed out"):
            bring(copy)
    finally:
        site.gate.set()


def test_only_required_files_are_extracted(packed):
    bring(packed)
    assert packed.flaws() == {}
    assert names(packed) == ["pair", "pair/first.bin", "pair/second.bin"]


def test_altered_archive_is_not_opened(packed, site, monkeypatch):
    monkeypatch.setattr(tarfile, "open", None)
    site.files["pair.tar.gz"] = bytes(len(site.files["pair.tar.gz"]))
    with pytest.raises(DataError, match=r"pair.tar.gz is altered: expected md5 .*, found .*; fetch it again"):
        bring(packed)
    assert names(packed) == ["pair"]


def test_packaged_data_cannot_be_fetched(copy):
    packaged = replace(copy, release=replace(copy.release, address=None))
    with pytest.raises(DataError, match=r"first.bin is missing.*pip install --force-reinstall"):
        bring(packaged)
    assert not copy.root.exists()


def test_unwritable_directory_is_a_clear_error(copy):
    copy.root.write_text("a file where the directory should be")
    with pytest.raises(ValueError, match=r"data.*: Not a directory"):
        bring(copy)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "free disk space, or choose"), (errno.EDQUOT, "free disk space, or"), (errno.EFBIG, "choose")],
)
def test_full_disk_is_a_clear_error(packed, monkeypatch, code, remedy):
    def full(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=rf"cannot write {packed.root}: {os.strerror(code)}; {remedy}"):
        bring(packed)


PROCESS = """
import sys
from pathlib import Path
from rich.console import Console
from hullo.lab.data import fashion_mnist
from hullo.lab.data.fetch import fetch
from hullo.lab.errors import RunError
from hullo.lab.data.release import Copy, File, Release
address, root, *files = sys.argv[1:]
files = tuple(File(name, 100_000, digest) for name, digest in (file.split("=") for file in files))
fetch(Copy(Release("pair", "two files", "pair", files, fashion_mnist.read, address=address), Path(root)), Console())
"""


def start_process(copy):
    files = [f"{file.name}={file.digest}" for file in FILES]
    command = [sys.executable, "-c", PROCESS, copy.release.address, str(copy.root), *files]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_second_process_waits_and_fetches_after_a_kill(copy, site):
    site.gate = threading.Event()
    site.cuts += [30_000]
    first = start_process(copy)
    wait_until(lambda: site.asked)
    second = start_process(copy)
    try:
        assert "[1/2] first.bin" in first.stderr.readline()
        assert second.stderr.readline() == "note: another process is fetching pair; waiting for it\n"
        first.send_signal(signal.SIGKILL)
        assert second.wait(60) == 0
    finally:
        site.gate.set()
        for process in (first, second):
            process.kill()
            process.communicate()
    assert copy.flaws() == {}
