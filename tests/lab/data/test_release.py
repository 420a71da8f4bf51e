from dataclasses import replace
from pathlib import Path

import pytest
from tiny_releases import FASHION, as_file

from hullo.lab.data.release import Copy, DataError, data_root


@pytest.fixture
def copy(tiny, tmp_path):
    copy = Copy(tiny, tmp_path)
    copy.folder.mkdir()
    for name, content in FASHION.items():
        (copy.folder / name).write_bytes(content)
    return copy


NAME = "t10k-images-idx3-ubyte.gz"
WANTED = as_file(NAME, FASHION[NAME])


def test_intact_copy_is_read(copy):
    assert copy.flaws() == {}
    dataset = copy.load()
    assert dataset.name == "fashion-mnist"
    assert dataset.train_images.flatten().tolist() == list(range(24))
    assert dataset.train_images.shape == (4, 1, 2, 3)
    assert dataset.train_labels.tolist() == [9, 0, 1, 9]
    assert dataset.test_images.tolist() == [[[[100, 101, 102], [103, 104, 105]]]]
    assert dataset.test_labels.tolist() == [5]


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (b"", f"truncated after 0 of {WANTED.size} bytes"),
        (FASHION[NAME][:-1], f"truncated after {WANTED.size - 1} of {WANTED.size} bytes"),
        (FASHION[NAME] + b"\0", "altered"),
        (FASHION[NAME][:-1] + b"x", "altered"),
    ],
)
def test_altered_file_is_rejected_with_digests_and_remedy(copy, content, state):
    path = copy.folder / NAME
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        copy.load()
    assert str(caught.value) == (
        f"{path} is {state}: expected sha256 {WANTED.digest}, found {as_file(NAME, content).digest}; "
        f"run: hullo data fetch fashion-mnist --data {copy.root}"
    )
    assert copy.flaws() == {WANTED: str(caught.value)}


def test_missing_file_is_rejected_with_remedy(copy, monkeypatch):
    monkeypatch.setenv("HULLO_DATA", str(copy.root))
    (copy.folder / NAME).unlink()
    with pytest.raises(DataError) as caught:
        copy.load()
    assert str(caught.value) == (f"{copy.folder / NAME} is missing; run: hullo data fetch fashion-mnist")


def test_unreadable_file_is_rejected(copy):
    (copy.folder / NAME).unlink()
    (copy.folder / NAME).mkdir()
    with pytest.raises(DataError, match=rf"{NAME} cannot be read \(Is a directory\); run"):
        copy.load()


def test_remedy_is_quoted_for_a_shell(copy):
    assert replace(copy, root=Path("my data")).command == "hullo data fetch fashion-mnist --data 'my data'"


def test_data_directory_is_argument_then_environment_then_cache(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HULLO_DATA", "")
    assert data_root() == Path("/home/me/.cache/hullo/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_root() == Path("/cache/hullo/data")
    monkeypatch.setenv("HULLO_DATA", "~/images")
    assert data_root() == Path("/home/me/images")
    assert data_root("/here") == Path("/here")
