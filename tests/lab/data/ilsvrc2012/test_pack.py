import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from made_ilsvrc import WNIDS, encode, lay_out, make_images, read_images, write
from PIL import Image

from hullo.lab.data.ilsvrc2012.pack import Pack, Shard, decode
from hullo.lab.data.release import DataError
from hullo.lab.errors import RunError

MADE = make_images()


def contents(folder):
    """Return everything in a pack; the zip files of NumPy contain the time."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".json", ".npy")}
    for path in folder.glob("*.npz"):
        with np.load(path) as arrays:
            files[path.name] = {name: arrays[name].tobytes() for name in arrays}
    return files


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.glob("*-*.npy")}


def test_tars_and_folders_give_the_same_pack(tmp_path, packed, pack):
    other = pack(lay_out(tmp_path / "other", "tars"), tmp_path / "second")
    assert contents(packed.folder) == contents(other.folder)
    assert other.is_complete
    assert Pack(other.folder).splits == other.splits == packed.splits


@pytest.mark.parametrize("split", ["train", "val"])
def test_images_are_indexed_in_the_order_of_their_names(packed, split):
    actual = packed.images(split)
    made = sorted((name, wnid, data) for wnid, files in MADE[split].items() for name, data in files.items())
    assert len(actual) == len(made) > 5  # more than a shard
    for number, (_, wnid, data) in enumerate(made):
        assert np.array_equal(read_images(actual, [number])[0], decode(data))
        assert actual.labels[number] == WNIDS.index(wnid)


def test_mean_is_computed_over_decoded_training_images(tmp_path, damaged, pack):
    made = pack(damaged, tmp_path / "packed", partial=True)
    files = {name: data for files in MADE["train"].values() for name, data in files.items()}
    pixels = [decode(data) for name, data in files.items() if name != "n01000002_7.JPEG"]
    np.testing.assert_allclose(made.load_mean().numpy(), np.mean(pixels, 0), rtol=1e-6)


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: os.truncate(path, 300)])
@pytest.mark.parametrize("lost", ["train-001.npy", "train-001.npz", "manifest.json", "mean.npy"])
def test_only_missing_or_truncated_files_are_rewritten(tmp_path, packed, pack, lost, lose):
    before, whole = inodes(packed.folder), contents(packed.folder)
    lose(packed.folder / lost)
    assert pack(tmp_path / "source", packed.folder) == packed
    assert contents(packed.folder) == whole
    kept = {name: inode for name, inode in inodes(packed.folder).items() if Path(name).stem != Path(lost).stem}
    assert kept.items() <= before.items()


def test_missing_images_are_an_error_before_writing_unless_partial(tmp_path, pack):
    source, packed = lay_out(tmp_path / "source"), tmp_path / "packed"
    taken = source / "val" / "ILSVRC2012_val_00000006.JPEG"
    content = taken.read_bytes()
    taken.unlink()
    with pytest.raises(DataError, match=r"5 of 6 val images; .* --partial"):
        pack(source, packed)
    assert not packed.exists()
    made = pack(source, packed, partial=True)
    assert (made.is_complete, made.splits["val"].num_images) == (False, 5)
    before = inodes(packed)
    taken.write_bytes(content)
    assert pack(source, packed).is_complete
    assert before.items() <= inodes(packed).items()  # the sixth val image has a shard of its own


def test_shard_with_as_many_other_images_is_rewritten(tmp_path, pack):
    source, packed = lay_out(tmp_path / "source"), tmp_path / "packed"
    third, fifth = (source / "val" / f"ILSVRC2012_val_0000000{number}.JPEG" for number in (3, 5))
    content = third.read_bytes()
    third.unlink()
    pack(source, packed, partial=True)
    third.write_bytes(content)
    fifth.unlink()
    again = pack(source, packed, partial=True)
    assert contents(packed) == contents(pack(source, tmp_path / "fresh", partial=True).folder)
    assert np.array_equal(read_images(again.images("val"), [2])[0], decode(content))


@pytest.mark.parametrize("number", [1, 5])  # the first and the last of a shard
def test_shard_without_an_image_that_was_broken_is_rewritten(tmp_path, pack, number):
    source, packed = lay_out(tmp_path / "source"), tmp_path / "packed"
    broken = source / "val" / f"ILSVRC2012_val_0000000{number}.JPEG"
    content = broken.read_bytes()
    broken.write_bytes(b"<html>")
    assert pack(source, packed, partial=True).splits["val"].num_images == 5
    broken.write_bytes(content)
    assert pack(source, packed).is_complete
    assert contents(packed) == contents(pack(source, tmp_path / "fresh").folder)


@pytest.fixture
def damaged(tmp_path):
    """Return a source with two files that are no images."""
    source = lay_out(tmp_path / "source")
    write(source, {"train/n01000002/n01000002_7.JPEG": b"<html>", "val/ILSVRC2012_val_00000002.JPEG": b""})
    return source


def test_broken_images_are_reported_and_left_out_only_if_partial(tmp_path, damaged, pack, capsys):
    packed = tmp_path / "packed"
    with pytest.raises(DataError, match="2 images are broken"):
        pack(damaged, packed)
    notes = capsys.readouterr().err
    assert "note: n01000002_7.JPEG is broken: cannot identify image file" in notes
    assert "note: ILSVRC2012_val_00000002.JPEG is broken: cannot identify image file" in notes
    with pytest.raises(DataError, match="no finished pack"):
        _ = Pack(packed).splits
    made = pack(damaged, packed, partial=True)
    assert [split.num_images for split in made.splits.values()] == [11, 5]
    names = sorted(name for files in MADE["train"].values() for name in files if name != "n01000002_7.JPEG")
    images = made.images("train")
    assert images.labels.tolist() == [WNIDS.index(name.split("_")[0]) for name in names]
    for number, name in enumerate(names):
        assert np.array_equal(read_images(images, [number])[0], decode(MADE["train"][name.split("_")[0]][name]))


@pytest.mark.parametrize("partial", [False, True])
def test_only_shards_with_repaired_images_are_rewritten(tmp_path, damaged, pack, partial):
    packed = tmp_path / "packed"
    assert not pack(damaged, packed, partial=True).is_complete
    before = inodes(packed)
    lay_out(damaged)
    assert pack(damaged, packed, partial=partial).is_complete
    assert contents(packed) == contents(pack(damaged, tmp_path / "fresh").folder)
    kept = {name for name, inode in inodes(packed).items() if before[name] == inode}
    assert kept == {"train-001.npy", "train-002.npy", "val-001.npy"}


@pytest.mark.parametrize("files", [0, 4, 10])
def test_full_disk_is_a_clear_error_and_keeps_finished_shards(tmp_path, packed, pack, monkeypatch, files):
    other, fsync = tmp_path / "other", os.fsync

    def fill_up(file):
        if len(list(other.glob("*.np?"))) == files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill_up)
        with pytest.raises(RunError, match=r"No space left .* free disk space"):
            pack(tmp_path / "source", other)
    before = inodes(other)
    assert len(before) == files // 2
    assert not list(other.glob("*.part"))
    pack(tmp_path / "source", other)
    assert contents(other) == contents(packed.folder)
    assert before.items() <= inodes(other).items()


def test_pack_under_repair_is_not_finished(tmp_path, packed, pack, monkeypatch):
    def fill_up(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (packed.folder / "train-001.npy").unlink()
    monkeypatch.setattr(os, "fsync", fill_up)
    with pytest.raises(RunError, match="No space left"):
        pack(tmp_path / "source", packed.folder)
    with pytest.raises(DataError, match="no finished pack"):
        _ = Pack(packed.folder).splits


def test_second_process_cannot_pack_into_the_same_folder(tmp_path, pack):
    (tmp_path / "packed").mkdir()
    with FileLock(tmp_path / "packed" / ".lock"), pytest.raises(DataError, match="another process is packing"):
        pack(lay_out(tmp_path / "source"), tmp_path / "packed")


def test_every_altered_or_missing_shard_is_reported(packed, progress):
    assert packed.check(progress)[0]
    path = packed.folder / "train-001.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    (packed.folder / "val-000.npz").unlink()
    ready, (train, val, _) = packed.check(progress)
    assert not ready
    assert train.startswith(f"{path} is altered")
    assert val.startswith(f"{packed.folder}/val-000.npy is missing or damaged")
    (packed.folder / "train-000.npy").replace(path)
    assert len(packed.check(progress)[1]) == 4


@pytest.mark.parametrize("length", [0, 100, 4096, -1])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_truncated_shard_is_rejected(packed, suffix, length):
    path = packed.folder / "train-000.npy"
    content = path.with_suffix(suffix).read_bytes()
    path.with_suffix(suffix).write_bytes(content[:length])
    with pytest.raises(DataError, match=r"train-000.npy is missing or damaged .*: hullo data pack"):
        Shard.open(path)


def test_shard_truncated_while_reading_is_a_clear_error(packed):
    images = packed.images("train")
    os.truncate(packed.folder / "train-001.npy", 300_000)
    read_images(images, [5])
    with pytest.raises(DataError, match=r"train-001.npy is truncated"):
        read_images(images, [6])


def test_pack_of_an_earlier_version_is_refused_then_replaced(tmp_path, packed, pack):
    manifest = packed.folder / "manifest.json"
    whole = contents(packed.folder)
    manifest.write_text(json.dumps({"version": 3, "classes": [], "parts": {}, "mean_sha256": ""}))
    with pytest.raises(DataError, match=r"format 3, .*: hullo data pack"):
        _ = Pack(packed.folder).splits
    pack(tmp_path / "source", packed.folder)
    assert contents(packed.folder) == whole


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: json.dumps(values)[:100],
        lambda values: "[]",
        lambda values: "{}",
        lambda values: json.dumps(values | {"splits": {}}),
        lambda values: json.dumps(values | {"splits": {"train": {}}}),
    ],
)
def test_damaged_manifest_is_a_clear_error(packed, damage):
    manifest = packed.folder / "manifest.json"
    manifest.write_text(damage(json.loads(manifest.read_text())))
    with pytest.raises(DataError, match=r"manifest.json cannot be used .*hullo data pack"):
        _ = Pack(packed.folder).splits


COMMAND = """
import sys
from hullo.lab.cli import app
from hullo.lab.data.ilsvrc2012 import pack
pack.SHARD, pack.NUM_RELEASED = 5, {"train": 12, "val": 6}
app(["data", "pack", "ilsvrc2012", "--data", *sys.argv[1:]])
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_packing_resumes(tmp_path, pack, how):
    slow = encode(Image.effect_noise((1500, 1500), 50))  # long enough to be stopped in between
    split = {part: {wnid: dict.fromkeys(files, slow) for wnid, files in MADE[part].items()} for part in MADE}
    source, packed = lay_out(tmp_path / "ilsvrc2012", split=split), tmp_path / "ilsvrc2012" / "packed"
    process = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and not list(packed.glob("*.npz")):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(how)
        _, message = process.communicate(timeout=60)
    finally:
        process.kill()
    before = inodes(packed)
    assert 1 <= len(before) < 5
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert f"hullo: stopped; progress is saved in {packed}; resume with: hullo " in message
        assert "Traceback" not in message
        assert not list(packed.glob(".*.part"))
    finished = set(before) & {path.with_suffix(".npy").name for path in packed.glob("*.npz")}
    assert pack(source, packed).is_complete
    assert {name: before[name] for name in finished}.items() <= inodes(packed).items()
    assert contents(packed) == contents(pack(source, tmp_path / "fresh").folder)
