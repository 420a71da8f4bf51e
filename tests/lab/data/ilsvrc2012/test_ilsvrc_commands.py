import shutil

import pytest
from made_ilsvrc import lay_out, write
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.data import RELEASES
from hullo.lab.data.ilsvrc2012.pack import Pack
from hullo.lab.data.release import Copy
from hullo.lab.spec.run_spec import Spec


def invoke(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"HULLO_DATA": None})


def test_complete_data_are_checked_packed_and_listed(tmp_path):
    home = lay_out(tmp_path / "ilsvrc2012", "tars")
    result = invoke("check", "ilsvrc2012", "--data", tmp_path)
    assert result.exit_code == 1
    state, remedy = result.stdout.splitlines()
    assert state == f"ilsvrc2012 is not packed in {home}/packed"
    assert remedy.endswith(f"then run: hullo data pack ilsvrc2012 --data {tmp_path}")
    assert "not packed" in invoke("list", "--data", tmp_path).stdout
    packed = invoke("pack", "ilsvrc2012", "--data", tmp_path)
    assert (packed.exit_code, packed.stdout) == (
        0,
        f"ilsvrc2012 is packed in {home}/packed: 12 train and 6 val images\n",
    )
    for path in home.iterdir():  # the pack is all that is needed
        if path.name != "packed":
            path.unlink()
    again = invoke("check", "ilsvrc2012", "--data", tmp_path, "--quiet")
    ready = f"ilsvrc2012 is ready in {home}/packed: 12 of 12 train and 6 of 6 val images\n"
    assert (again.exit_code, again.stdout, again.stderr) == (0, ready, "")
    assert " packed " in " ".join(invoke("list", "--data", tmp_path).stdout.split())


def test_incomplete_data_are_counted_and_packed_if_partial(tmp_path):
    home = lay_out(tmp_path / "ilsvrc2012")
    shutil.rmtree(home / "train" / "n01000002")
    write(home, {"val/ILSVRC2012_val_00000003.JPEG": b""})
    refused = invoke("pack", "ilsvrc2012", "--data", tmp_path, "--quiet")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert (
        f"{home} has 9 of 12 train images and 6 of 6 val images; download the rest, or add --partial" in refused.stderr
    )
    packed = invoke("pack", "ilsvrc2012", "--data", tmp_path, "--partial")
    assert packed.stdout.endswith(": 9 train and 5 val images; 4 missing or broken\n")
    checked = invoke("check", "ilsvrc2012", "--data", tmp_path)
    assert checked.exit_code == 1
    assert "incomplete, but usable" in checked.stdout
    assert "packed in part" in invoke("list", "--data", tmp_path).stdout


def test_source_option_names_another_folder(tmp_path):
    source = lay_out(tmp_path / "my images")
    options = ("--data", tmp_path / "data", "--source", source)
    assert invoke("pack", "ilsvrc2012", *options).exit_code == 0
    assert invoke("check", "ilsvrc2012", "--data", tmp_path / "data").exit_code == 0


def test_altered_pack_is_reported_with_a_remedy(tmp_path):
    shard = lay_out(tmp_path / "ilsvrc2012") / "packed" / "train-000.npy"
    invoke("pack", "ilsvrc2012", "--data", tmp_path)
    content = bytearray(shard.read_bytes())
    content[5000] ^= 1
    shard.write_bytes(content)
    altered, remedy = invoke("check", "ilsvrc2012", "--data", tmp_path).stdout.splitlines()
    assert altered == f"{shard} is altered"
    assert remedy.endswith(f"hullo data pack ilsvrc2012 --data {tmp_path}")
    shard.unlink()
    assert invoke("pack", "ilsvrc2012", "--data", tmp_path).exit_code == 0
    assert invoke("check", "ilsvrc2012", "--data", tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "ILSVRC2012_img_train.tar"),
        (lambda home: (home / "ILSVRC2012_devkit_t12.tar.gz").unlink(), "ilsvrc2012 has no devkit"),
        (
            lambda home: (home / "ILSVRC2012_img_val.tar").write_bytes(b"x" * 2000),
            "img_val.tar is truncated or damaged",
        ),
        (lambda home: (home / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(b"x" * 2000), "t12.tar.gz is truncated or"),
    ],
)
def test_bad_input_is_a_clear_error_and_writes_nothing(tmp_path, change, message):
    home = lay_out(tmp_path / "ilsvrc2012", "tars")
    change(home)
    before = sorted(tmp_path.rglob("*"))
    result = invoke("pack", "ilsvrc2012", "--data", tmp_path / "data", "--source", home, "--quiet")
    assert result.exit_code == 1
    assert message in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_without_names_it_is_checked_only_if_files_exist_and_never_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(Copy, "flaws", lambda _: {})
    monkeypatch.setattr("hullo.lab.data.fetch.fetch", lambda *_, **__: None)
    fetched = invoke("fetch", "--data", tmp_path)
    assert (fetched.exit_code, fetched.stdout.count("is ready in"), fetched.stderr) == (0, len(RELEASES), "")
    checked = invoke("check", "--data", tmp_path)
    assert (checked.exit_code, "ilsvrc2012" in checked.stdout) == (0, False)
    write(tmp_path, {"ilsvrc2012/notes.txt": b""})
    checked = invoke("check", "--data", tmp_path)
    assert (checked.exit_code, "ilsvrc2012 is not packed" in checked.stdout) == (1, True)


def test_fetch_explains_the_manual_download(tmp_path):
    result = invoke("fetch", "ilsvrc2012", "--data", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    for part in ("https://image-net.org", "147,897.5 MB", "29b22e2961454d5413ddabcf34fc5622", f"--data {tmp_path}"):
        assert part in result.stderr


def test_imagewoof_has_a_pack_of_its_own(tmp_path):
    pack = Pack(tmp_path / "imagewoof" / "packed")
    assert "hullo data pack imagewoof" in pack.instructions
    assert pack.command.endswith("--partial")
    assert Spec.default("alexnet", "imagewoof", "relu").augment == Spec.default("alexnet", "ilsvrc2012", "relu").augment
