"""What is written takes its place whole, or leaves no trace."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hullo.lab.files import make_folder, whole


def test_a_file_is_replaced_only_when_it_is_all_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with whole(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError("wrong")])
def test_what_goes_wrong_leaves_what_was_there_and_nothing_else(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with whole(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_so_does_a_disk_that_fails_at_the_end(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(OSError, match="full"), whole(path) as file:
            file.write(b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_is_made_once_with_those_above_it(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize(("name", "reason"), [("taken", "it is a file"), ("taken/below", "Not a directory")])
def test_where_no_folder_can_be_one_line_says_why(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ValueError, match=f"^cannot write to {tmp_path / name}: {reason}; name another directory$"):
        make_folder(tmp_path / name)


def test_a_folder_that_is_there_and_must_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # a superuser may write anywhere
    with pytest.raises(ValueError, match=f"^cannot write to {tmp_path}: Permission denied; name another directory$"):
        make_folder(tmp_path)
