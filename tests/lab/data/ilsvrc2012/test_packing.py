import errno
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from made_ilsvrc import LAYOUTS, TRAIN, WNIDS, encode, lay_out, make_images, write
from PIL import Image

from hullo.lab.data.ilsvrc2012.decoding import decode
from hullo.lab.data.ilsvrc2012.packed import Pack
from hullo.lab.data.release import DataError

MADE = make_images()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.glob("*-*.safetensors")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_source_layout_gives_the_same_pack(tmp_path, pack, layout):
    pack(lay_out(tmp_path / "flat"), tmp_path / "first")
    made = pack(lay_out(tmp_path / "other", layout), tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert made.is_complete
    assert [wnid for wnid, _ in made.classes] == WNIDS


def test_mean_is_computed_over_training_images(tmp_path, pack):
    made = pack(lay_out(tmp_path / "source"), tmp_path / "packed")
    pixels = [decode(data) for files in MADE["train"].values() for data in files.values()]
    np.testing.assert_allclose(made.mean.numpy(), np.mean(pixels, 0), rtol=1e-6)


def test_finished_pack_is_not_rewritten(tmp_path, pack):
    first = pack(lay_out(tmp_path / "source"), tmp_path / "packed")
    before = inodes(tmp_path / "packed")
    assert pack(tmp_path / "source", tmp_path / "packed") == first
    assert inodes(tmp_path / "packed") == before


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: os.truncate(path, 300)])
@pytest.mark.parametrize("lost", ["train-001.safetensors", "manifest.json", "mean.safetensors"])
def test_only_missing_or_truncated_shards_are_rewritten(tmp_path, pack, lost, lose):
    packed = tmp_path / "packed"
    pack(lay_out(tmp_path / "source"), packed)
    before, whole = inodes(packed), contents(packed)
    lose(packed / lost)
    pack(tmp_path / "source", packed)
    assert contents(packed) == whole
    assert {name: inode for name, inode in inodes(packed).items() if name != lost}.items() <= before.items()


def test_missing_images_are_an_error_before_writing_unless_partial(tmp_path, pack):
    source = lay_out(tmp_path / "source")
    (source / "train" / "n02000003" / "n02000003_0.JPEG").unlink()
    with pytest.raises(DataError, match=rf"{source} has 11 of 12 train images; .* add --partial$"):
        pack(source, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()
    made = pack(source, tmp_path / "packed", partial=True)
    assert not made.is_complete
    assert (made.parts["train"].num_images, made.parts["train"].num_released) == (11, 12)
    assert len(made.classes) == 3


def test_partial_pack_can_be_completed(tmp_path, pack):
    source = lay_out(tmp_path / "source")
    taken = source / "val" / "ILSVRC2012_val_00000006.JPEG"
    content = taken.read_bytes()
    taken.unlink()
    pack(source, tmp_path / "packed", partial=True)
    before = inodes(tmp_path / "packed")
    taken.write_bytes(content)
    assert pack(source, tmp_path / "packed").is_complete
    pack(source, tmp_path / "fresh")
    assert contents(tmp_path / "packed") == contents(tmp_path / "fresh")
    assert before.items() <= inodes(tmp_path / "packed").items()  # the sixth val image has a shard of its own
    taken.unlink()
    pack(source, tmp_path / "packed", partial=True)
    assert inodes(tmp_path / "packed") == before


@pytest.fixture
def damaged(tmp_path):
    source = lay_out(tmp_path / "source")
    write(source, {"train/n01000002/n01000002_7.JPEG": b"<html>", "val/ILSVRC2012_val_00000002.JPEG": b""})
    return source


def test_broken_images_are_reported_and_skipped_only_if_partial(tmp_path, damaged, pack, capsys):
    packed = tmp_path / "packed"
    with pytest.raises(DataError) as caught:
        pack(damaged, packed)
    assert str(caught.value) == (
        f"2 images are broken; the others are packed in {packed}; replace the broken ones in {damaged} and "
        "pack again, or leave them out with --partial"
    )
    notes = capsys.readouterr().err
    assert "note: n01000002_7.JPEG is broken: neither JPEG nor PNG: starts with '3c 68 74 6d 6c 3e'\n" in notes
    assert "note: ILSVRC2012_val_00000002.JPEG is broken: neither JPEG nor PNG: is empty\n" in notes
    with pytest.raises(DataError, match="contains no finished pack"):
        Pack.open(packed)
    before = inodes(packed)
    made = pack(damaged, packed, partial=True)
    assert inodes(packed) == before
    assert [len(part.broken) for part in made.parts.values()] == [1, 1]
    assert [part.num_images for part in made.parts.values()] == [11, 5]
    assert not made.is_complete


@pytest.mark.parametrize("partial", [False, True])
def test_only_shards_with_repaired_images_are_rewritten(tmp_path, damaged, pack, partial):
    packed = tmp_path / "packed"
    assert not pack(damaged, packed, partial=True).is_complete
    before = inodes(packed)
    lay_out(damaged)
    assert pack(damaged, packed, partial=partial).is_complete
    pack(damaged, tmp_path / "fresh")
    assert contents(packed) == contents(tmp_path / "fresh")
    kept = {name for name, inode in inodes(packed).items() if before[name] == inode}
    assert kept == {"train-001.safetensors", "train-002.safetensors", "val-001.safetensors"}


@pytest.mark.parametrize("partial", [False, True])
def test_images_still_broken_are_reported_again_without_repacking(tmp_path, damaged, pack, capsys, partial):
    packed = tmp_path / "packed"
    usable = pack(damaged, packed, partial=True)
    before = inodes(packed)
    capsys.readouterr()
    with nullcontext() if partial else pytest.raises(DataError, match="2 images are broken"):
        pack(damaged, packed, partial=partial)
    assert inodes(packed) == before
    assert capsys.readouterr().err.count("is broken: neither JPEG nor PNG") == 2
    assert Pack.open(packed) == usable


def test_partial_packing_prints_a_note(tmp_path, pack, capsys):
    source = lay_out(tmp_path / "source", "tars")
    path = source / "ILSVRC2012_img_train.tar"
    with tarfile.open(path) as tar:
        end = tar.getmembers()[2].offset
    path.write_bytes(path.read_bytes()[:end])
    message = (
        f"{source} has 7 of 12 train images (ILSVRC2012_img_train.tar has {end:,} of the released 147,897,477,120 "
        "bytes: truncated, unless you repacked it)"
    )
    with pytest.raises(DataError) as caught:
        pack(source, tmp_path / "packed")
    assert str(caught.value).startswith(f"{message}; hullo data check ilsvrc2012 lists missing ones")
    pack(source, tmp_path / "packed", partial=True)
    assert capsys.readouterr().err == f"note: {message}; only these are packed\n"


def test_too_little_disk_space_is_an_error_before_writing(tmp_path, pack, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(2e6))
    with pytest.raises(DataError) as caught:
        pack(lay_out(tmp_path / "source"), tmp_path / "packed")
    assert str(caught.value) == (
        f"{tmp_path / 'packed'} has 0.0 GB free, but 18 images of 256 x 256 pixels need 0.0 GB; free disk space, or "
        "choose another directory with --data"
    )
    assert contents(tmp_path / "packed") == {}


@pytest.mark.parametrize("shards", [0, 2, 5])
def test_full_disk_is_a_clear_error_and_keeps_complete_shards(tmp_path, pack, monkeypatch, shards):
    pack(lay_out(tmp_path / "source"), tmp_path / "fresh")
    packed, fsync = tmp_path / "packed", os.fsync

    def fill_up(file):
        if len(list(packed.glob("*.safetensors"))) == shards:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill_up)
        with pytest.raises(DataError) as caught:
            pack(tmp_path / "source", packed)
    assert str(caught.value) == (
        f"cannot write {packed}: No space left on device; finished shards are kept; free disk space, or choose another "
        "directory with --data"
    )
    before = inodes(packed)
    assert sorted(contents(packed)) == sorted(before)
    assert len(before) == shards
    pack(tmp_path / "source", packed)
    assert contents(packed) == contents(tmp_path / "fresh")
    assert before.items() <= inodes(packed).items()


def test_uncreatable_folder_is_a_clear_error(tmp_path, pack):
    (tmp_path / "packed").write_text("a file where the folder should be")
    with pytest.raises(ValueError, match=rf"cannot write to {tmp_path}/packed: a file of that name exists"):
        pack(lay_out(tmp_path / "source"), tmp_path / "packed")


def test_second_process_cannot_pack_into_the_same_folder(tmp_path, pack):
    (tmp_path / "packed").mkdir()
    with FileLock(tmp_path / "packed" / ".lock"), pytest.raises(DataError, match="another process is packing into"):
        pack(lay_out(tmp_path / "source"), tmp_path / "packed")


def test_folder_without_images_is_rejected(tmp_path, pack):
    source = lay_out(tmp_path / "source")
    shutil.rmtree(source / "val")
    (source / "val").mkdir()
    with pytest.raises(DataError, match=r"val contains no images"):
        pack(source, tmp_path / "packed", partial=True)


COMMAND = """
import sys
from hullo.lab.cli import app
from hullo.lab.data.ilsvrc2012 import packing
if __name__ == "__main__":  # workers import this file, too
    packing.SHARD = 5
    app(["data", "pack", "ilsvrc2012", "--workers", "2", "--data", *sys.argv[1:]])
"""


def wait_until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_packing_leaves_no_worker_and_resumes(tmp_path, pack, how):
    (tmp_path / "command.py").write_text(COMMAND)
    slow = encode(Image.effect_noise((1500, 1500), 50))  # long enough to be stopped in between
    split = {part: {wnid: dict.fromkeys(files, slow) for wnid, files in MADE[part].items()} for part in MADE}
    source, packed = lay_out(tmp_path / "ilsvrc2012", split=split), tmp_path / "ilsvrc2012" / "packed"
    command = [sys.executable, str(tmp_path / "command.py"), str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_until(lambda: process.poll() is not None or (inodes(packed) and list(packed.glob("*.part"))))
        os.kill(process.pid, how) if how == signal.SIGKILL else os.killpg(process.pid, how)
        _, message = process.communicate(timeout=60)
    finally:
        process.kill()
    wait_until(lambda: not is_alive(-process.pid))  # with all processes of its group
    before = inodes(packed)
    assert 1 <= len(before) < 5
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert f"hullo: stopped; the state is saved in {packed}; resume with: hullo " in message
        assert "Traceback" not in message
        assert not list(packed.glob("*.part"))
    assert pack(source, packed).is_complete
    assert before.items() <= inodes(packed).items()
    pack(source, tmp_path / "fresh")
    assert contents(packed) == contents(tmp_path / "fresh")
    assert sum(TRAIN.values()) == Pack.open(packed).parts["train"].num_images
