import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from made_ilsvrc import lay_out, write
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.data import RELEASES
from hullo.lab.data.ilsvrc2012 import Home, packing
from hullo.lab.data.ilsvrc2012 import workers as processes
from hullo.lab.data.ilsvrc2012.source import SPLITS, TARS
from hullo.lab.data.release import Copy


@pytest.fixture(autouse=True)
def _packing_stays_in_this_process(monkeypatch):
    monkeypatch.setattr(packing, "SHARD", 5)
    monkeypatch.setattr(processes, "worker_processes", lambda count: ThreadPoolExecutor(1))


def invoke(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"HULLO_DATA": None})


def squeezed(text):
    return " ".join(text.split())


@pytest.mark.parametrize("layout", ["tars", "sorted"])
def test_complete_data_are_checked_packed_and_listed(tmp_path, layout):
    home = lay_out(tmp_path / "ilsvrc2012", layout)
    result = invoke("check", "ilsvrc2012", "--data", tmp_path)
    train, val, devkit = {
        "tars": ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"),
        "sorted": ("train", "val", "devkit"),
    }[layout]
    assert result.stdout.splitlines() == [
        f"ilsvrc2012 is not packed in {home}/packed",
        f"devkit: {home}/{devkit}, 3 classes",
        f"train: {home}/{train}: 12 of 12 images",
        f"val: {home}/{val}: 6 of 6 images",
        f"pack it with: hullo data pack ilsvrc2012 --data {tmp_path}",
    ]
    assert result.exit_code == 1
    assert "not packed" in invoke("list", "--data", tmp_path).stdout
    packed = invoke("pack", "ilsvrc2012", "--data", tmp_path)
    assert (packed.exit_code, packed.stdout) == (
        0,
        f"ilsvrc2012 is packed in {home}/packed: 12 train and 6 val images\n",
    )
    ready = f"ilsvrc2012 is ready in {home}/packed: 12 of 12 train and 6 of 6 val images\n"
    again = invoke("check", "ilsvrc2012", "--data", tmp_path, "--quiet")
    assert (again.exit_code, again.stdout, again.stderr) == (0, ready, "")
    for path in home.iterdir():  # the pack is all that is needed
        if path.name != "packed":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert invoke("check", "ilsvrc2012", "--data", tmp_path).exit_code == 0
    assert " packed " in squeezed(invoke("list", "--data", tmp_path).stdout)


def test_incomplete_data_are_counted_per_class_and_packed_if_partial(tmp_path):
    home = lay_out(tmp_path / "ilsvrc2012")
    shutil.rmtree(home / "train" / "n01000002")
    (home / "train" / "n03000001" / "n03000001_7.JPEG").unlink()
    (home / "val" / "ILSVRC2012_val_00000003.JPEG").unlink()
    lines = invoke("check", "ilsvrc2012", "--data", tmp_path).stdout.splitlines()
    assert lines[2] == f"train: {home}/train: 8 of 12 images (n01000002 0 of 3, n03000001 3 of 4)"
    assert lines[3] == f"val: {home}/val: 5 of 6 images"
    assert lines[4].startswith(
        "download the rest (ILSVRC2012_img_train.tar (147.9 GB, md5 1d675b47d978889d74fa0da5fadf"
    )
    assert lines[4].endswith(
        f"or pack the available images with: hullo data pack ilsvrc2012 --data {tmp_path} --partial"
    )
    refused = invoke("pack", "ilsvrc2012", "--data", tmp_path, "--quiet")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"hullo: {home} has 8 of 12 train images and 5 of 6 val images; hullo data ch")
    assert refused.stderr.count("\n") == 1
    packed = invoke("pack", "ilsvrc2012", "--data", tmp_path, "--partial")
    assert packed.exit_code == 0
    assert packed.stdout.endswith(": 8 train and 5 val images; 5 missing or broken\n")
    checked = invoke("check", "ilsvrc2012", "--data", tmp_path)
    assert checked.exit_code == 1
    usable = f"ilsvrc2012 is incomplete, but usable in {home}/packed: 8 of 12 train and 5 of 6 val images\n"
    assert checked.stdout.startswith(usable)
    assert "packed in part" in invoke("list", "--data", tmp_path).stdout


def test_broken_images_are_listed_and_finished_shards_kept(tmp_path):
    home = lay_out(tmp_path / "ilsvrc2012")
    write(home, {"val/ILSVRC2012_val_00000002.JPEG": b""})
    failed = invoke("pack", "ilsvrc2012", "--data", tmp_path)
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "note: ILSVRC2012_val_00000002.JPEG is broken: neither JPEG nor PNG: is empty\n" in failed.stderr
    assert "hullo: 1 images are broken; the others are packed in" in failed.stderr
    assert invoke("pack", "ilsvrc2012", "--data", tmp_path, "--partial").exit_code == 0
    checked = invoke("check", "ilsvrc2012", "--data", tmp_path)
    assert "ILSVRC2012_val_00000002.JPEG is broken: neither JPEG nor PNG: is empty" in checked.stdout


def test_damaged_images_are_packed_and_repacked_after_repair(tmp_path):
    home = lay_out(tmp_path / "ilsvrc2012")
    path = home / "val" / "ILSVRC2012_val_00000002.JPEG"
    whole = path.read_bytes()
    path.write_bytes(whole[:-60] + whole[-20:])  # from the middle of its compressed data
    reason = "too little compressed data"
    packed = invoke("pack", "ilsvrc2012", "--data", tmp_path)
    assert packed.exit_code == 0, packed.output
    assert f"note: {path.name} is damaged, but can be decoded: {reason}\n" in packed.stderr
    assert "12 train and 6 val images; 1 damaged: " in packed.stdout
    checked = invoke("check", "ilsvrc2012", "--data", tmp_path)
    assert checked.exit_code == 0
    assert checked.stdout.startswith(f"{path.name} is damaged, but packed: {reason}\nilsvrc2012 is ready in")
    again = invoke("pack", "ilsvrc2012", "--data", tmp_path)
    assert again.stderr.count("is damaged, but can be decoded") == 1
    path.write_bytes(whole)
    mended = invoke("pack", "ilsvrc2012", "--data", tmp_path)
    assert "is damaged" not in mended.output
    assert "is damaged" not in invoke("check", "ilsvrc2012", "--data", tmp_path).output


def test_source_option_names_another_folder(tmp_path):
    source = lay_out(tmp_path / "my images")
    options = ("--data", tmp_path / "data", "--source", source)
    result = invoke("check", "ilsvrc2012", *options).stdout
    command = f"hullo data pack ilsvrc2012 --data {tmp_path}/data --source '{source}'"
    assert result.endswith(f"pack it with: {command}\n")
    assert invoke("pack", "ilsvrc2012", *options).exit_code == 0
    assert invoke("check", "ilsvrc2012", "--data", tmp_path / "data").exit_code == 0
    refused = invoke("check", "cifar10", "--source", source)
    assert (refused.exit_code, refused.stderr) == (2, "hullo: --source is only for ilsvrc2012; got cifar10\n")


def test_altered_pack_is_reported_with_a_remedy(tmp_path):
    home = lay_out(tmp_path / "ilsvrc2012")
    invoke("pack", "ilsvrc2012", "--data", tmp_path)
    shard = home / "packed" / "train-000.safetensors"
    content = bytearray(shard.read_bytes())
    content[5000] ^= 1
    shard.write_bytes(content)
    lines = invoke("check", "ilsvrc2012", "--data", tmp_path).stdout.splitlines()
    assert lines[0].startswith(f"{shard} is altered: expected sha256 ")
    assert lines[1] == f"delete the altered files, then run: hullo data pack ilsvrc2012 --data {tmp_path}"
    shard.unlink()
    assert invoke("pack", "ilsvrc2012", "--data", tmp_path).exit_code == 0
    assert invoke("check", "ilsvrc2012", "--data", tmp_path).exit_code == 0


def test_tar_of_the_right_size_is_verified_by_checksum(tmp_path, monkeypatch):
    path = lay_out(tmp_path / "ilsvrc2012", "tars") / "ILSVRC2012_img_train.tar"
    content = path.read_bytes()
    right = replace(TARS["train"], size=len(content), digest=hashlib.md5(content).hexdigest())
    monkeypatch.setitem(TARS, "train", right)
    (line,) = [
        line for line in invoke("check", "ilsvrc2012", "--data", tmp_path).stdout.splitlines() if "train:" in line
    ]
    assert line == f"train: {path} is as released: expected md5 {right.digest}, found {right.digest}"
    path.write_bytes(content[:-1] + b"x")
    checked = invoke("check", "ilsvrc2012", "--data", tmp_path).stdout
    assert f"train: {path} is altered: expected md5 {right.digest}, found " in checked
    assert checked.endswith("--partial\n")


def test_shorter_tar_is_reported_with_both_sizes(tmp_path):
    path = lay_out(tmp_path / "ilsvrc2012", "tars") / "ILSVRC2012_img_val.tar"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 // 512 * 512].ljust(len(content), b"\0"))
    checked = invoke("check", "ilsvrc2012", "--data", tmp_path).stdout
    assert (
        f"of 6 images (ILSVRC2012_img_val.tar has {len(content):,} of the released 6,744,924,160 bytes: truncated, "
        "unless you repacked it)\n"
    ) in checked
    assert f"{path.parent}/ILSVRC2012_img_train.tar: 12 of 12 images\n" in checked


def test_unreadable_splits_are_reported_beside_readable_ones(tmp_path, forbid):
    home = lay_out(tmp_path / "ilsvrc2012")
    forbid(home / "train")
    lines = invoke("check", "ilsvrc2012", "--data", tmp_path).stdout.splitlines()
    assert lines[2] == f"train: {home}/train cannot be read (Permission denied); make it readable, then try again"
    assert lines[3] == f"val: {home}/val: 6 of 6 images"


def test_unreadable_tar_is_a_clear_error(tmp_path, forbid, monkeypatch):
    path = lay_out(tmp_path / "ilsvrc2012", "tars") / "ILSVRC2012_img_train.tar"
    monkeypatch.setitem(TARS, "train", replace(TARS["train"], size=path.stat().st_size))
    forbid(path)
    assert (
        f"train: {path} cannot be read (Permission denied)" in invoke("check", "ilsvrc2012", "--data", tmp_path).stdout
    )


def test_dangling_link_to_a_tar_is_a_clear_error(tmp_path):
    path = lay_out(tmp_path / "ilsvrc2012", "tars") / "ILSVRC2012_img_train.tar"
    path.unlink()
    path.symlink_to(tmp_path / "gone")
    message = f"{path} cannot be read (No such file or directory); make it readable, then try again\n"
    assert f"train: {message}" in invoke("check", "ilsvrc2012", "--data", tmp_path).stdout
    assert invoke("pack", "ilsvrc2012", "--data", tmp_path, "--quiet").stderr == f"hullo: {message}"


@pytest.mark.parametrize("command", [("check", "ilsvrc2012"), ("list",)])
def test_unreadable_pack_is_a_clear_error(tmp_path, forbid, command):
    manifest = lay_out(tmp_path / "ilsvrc2012") / "packed" / "manifest.json"
    assert invoke("pack", "ilsvrc2012", "--data", tmp_path).exit_code == 0
    forbid(manifest)
    result = invoke(*command, "--data", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"hullo: {manifest} cannot be read (Permission denied); make it readable, then try again\n"


@pytest.mark.parametrize("command", ["check", "pack"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "ilsvrc2012 is not a directory; put there ILSVRC2012_img_train.tar and ILSVRC2012_img_val"),
        (lambda home: (home / "ILSVRC2012_devkit_t12.tar.gz").unlink(), "ilsvrc2012 has no devkit"),
        (
            lambda home: (home / "ILSVRC2012_img_val.tar").write_bytes(b"x" * 2000),
            "img_val.tar is truncated or damaged (",
        ),
        (
            lambda home: (home / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(b"x" * 2000),
            "t12.tar.gz is an incomplete or damaged devkit",
        ),
    ],
)
def test_bad_input_is_a_clear_error_and_writes_nothing(tmp_path, command, change, message):
    home = lay_out(tmp_path / "ilsvrc2012", "tars")
    change(home)
    before = sorted(tmp_path.rglob("*"))
    result = invoke(command, "ilsvrc2012", "--data", tmp_path / "data", "--source", home, "--quiet")
    assert result.exit_code == 1
    assert message in (result.stderr if command == "pack" else result.stdout)
    assert "Traceback" not in result.output
    if command == "pack":
        assert result.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_without_names_it_is_checked_only_if_files_exist(tmp_path, monkeypatch):
    monkeypatch.setattr(Copy, "flaws", lambda _: {})
    assert "ilsvrc2012" in invoke("check", "--data", tmp_path, "--source", tmp_path).stdout
    (tmp_path / "ilsvrc2012").mkdir()
    checked = invoke("check", "--data", tmp_path)
    assert (checked.exit_code, checked.stdout.count("is ready in")) == (0, len(RELEASES))
    assert "ilsvrc2012" not in checked.stdout
    (tmp_path / "ilsvrc2012" / "notes.txt").write_text("of something")
    checked = invoke("check", "--data", tmp_path)
    assert checked.exit_code == 1
    *_, state, remedy = checked.stdout.splitlines()
    assert state == f"ilsvrc2012 is not packed in {tmp_path}/ilsvrc2012/packed"
    assert remedy == Home(tmp_path).explain_fetch()


def test_without_names_it_is_not_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr("hullo.lab.data.fetch.fetch", lambda *_, **__: None)
    fetched = invoke("fetch", "--data", tmp_path)
    assert (fetched.exit_code, fetched.stdout.count("is ready in"), fetched.stderr) == (0, len(RELEASES), "")


def test_fetch_explains_the_manual_download(tmp_path):
    result = invoke("fetch", "ilsvrc2012", "--data", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "hullo: ilsvrc2012 can only be downloaded with an account at https://image-net.org; download "
        "ILSVRC2012_img_train.tar (147.9 GB, md5 1d675b47d978889d74fa0da5fadfb00e), "
        "ILSVRC2012_img_val.tar (6.7 GB, md5 29b22e2961454d5413ddabcf34fc5622), "
        "ILSVRC2012_devkit_t12.tar.gz (md5 fa75699e90414af021442c21a62c3abf) "
        f"to {tmp_path}/ilsvrc2012, then run: hullo data pack ilsvrc2012 --data {tmp_path}\n"
    )


def test_list_works_before_anything_is_downloaded(tmp_path):
    row = squeezed(invoke("list", "--data", tmp_path).stdout).split("ilsvrc2012", 1)[1]
    assert "1,281,167 + 50,000 color images" in row
    assert "not fetched" in row
    assert Home(tmp_path).overview_row()[2] == f"{1_331_167 * 196_608 / 1e6:,.1f} MB"


def test_real_images_are_counted_against_the_release(real_source, tmp_path, progress):
    lines = list(Home(tmp_path, real_source.folder)._check_source(progress))
    counts = {split: len(real_source.images(split)) for split in SPLITS}
    assert f"train: {real_source.folder}/train: {counts['train']:,} of 1,281,167 images" in lines[1]
    assert lines[2].endswith(f"{counts['val']:,} of 50,000 images")
