"""Test that files are written atomically."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hullo.lab.cli import app
from hullo.lab.files import atomic_write, make_directory, read_tensors, write_tensors
from hullo.lab.spec.records import Records
from hullo.lab.spec.run_spec import Spec
from made_records import make_record


def test_file_is_replaced_only_after_a_complete_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError("wrong")])
def test_failed_write_leaves_the_old_file_only(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_failed_fsync_leaves_the_old_file_only(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(OSError, match="full"), atomic_write(path) as file:
            file.write(b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


KILLED = """
import os, signal
from pathlib import Path
from hullo.lab.files import atomic_write

with atomic_write(Path("file")) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    assert os.listdir(tmp_path) == [".file.part"]
    with atomic_write(tmp_path / "file") as file:
        file.write(b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_tensors_of_one_memory_are_written_under_all_their_names(tmp_path: Path) -> None:
    weight = torch.arange(6.0).view(2, 3)
    given = {"encoder": weight, "decoder": weight, "transposed": weight.T}
    write_tensors(tmp_path / "tied", given, {"epoch": "3"})
    tensors, texts = read_tensors(tmp_path / "tied")
    assert texts == {"epoch": "3"}
    assert tensors.keys() == given.keys()
    assert all(tensors[name].equal(given[name]) for name in given)


def test_link_leads_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(Path("there", name))
    (tmp_path / "there" / "old").write_bytes(b"old")
    for name in ("old", "new"):
        with atomic_write(tmp_path / name) as file:
            file.write(b"abc")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / name).read_bytes() == b"abc"
    assert sorted(os.listdir(tmp_path / "there")) == ["new", "old"]


def test_record_is_overwritten_in_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("records.jsonl")
    recorded = replace(make_record("relu", [80.0]), spec=Spec("net", "data", "relu", epochs=1, settings="lr=1"))
    Records(tmp_path / "records.jsonl").put(recorded, overwrite=False)
    Records(tmp_path / "link").put(replace(recorded, test_accuracy=[90.0]), overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert [record.accuracy for record in Records(tmp_path / "records.jsonl").read()] == [90.0]
    assert sorted(os.listdir(tmp_path)) == [".records.lock", "link", "records.jsonl"]


def test_directory_in_place_of_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Records(Path("runs/records.jsonl")).add([make_record("relu", [80.0])])
    for arguments, place in (
        (["report", "runs", "--output", "report.html"], "report.html"),
        (["figures", "runs", "--only", "accuracy", "--output", "."], "kerasnet-cifar10-accuracy-over-epochs.png"),
    ):
        Path(place).mkdir()
        result = CliRunner().invoke(app, arguments)
        assert (result.exit_code, result.stderr.partition(";")[0]) == (
            2,
            f"hullo: cannot write {place}: Is a directory",
        )
        assert os.listdir(place) == []


def test_directory_is_created_with_parents(tmp_path: Path) -> None:
    for _ in range(2):
        make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize(
    ("name", "reason"), [("taken", "a file of that name exists"), ("taken/below", "Not a directory")]
)
def test_uncreatable_directory_is_a_clear_error(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ValueError, match=f"^cannot write to {tmp_path / name}: {reason}; choose another directory$"):
        make_directory(tmp_path / name)


def test_read_only_directory_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # a superuser may write anywhere
    with pytest.raises(ValueError, match=f"^cannot write to {tmp_path}: Permission denied; choose another directory$"):
        make_directory(tmp_path)
