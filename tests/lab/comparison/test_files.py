"""Folders of images, tables and network files are read as a user would expect; what cannot be read is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hullo.lab.comparison.data import read_data
from hullo.lab.comparison.files import open_files, open_network, read_csv
from hullo.lab.data.release import DataError


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def table(path: Path, count: int = 60) -> Path:
    rows = [f"{i},{'abc'[i % 3]},{1000 + 10 * i + 0.5}" for i in range(count)]
    return write(path / "prices.csv", "size,place,price", *rows, ",a,1000")


def test_a_table_is_standardized_by_its_training_rows_and_scored_in_its_own_units(tmp_path: Path) -> None:
    data = read_csv(table(tmp_path))
    x, y = data.parts["train"]
    assert x.shape[1] == 1 + 3
    assert x.mean(0).abs().max() < 1e-5
    assert y.std() == pytest.approx(1.0, abs=1e-4)
    assert y.mean() == pytest.approx(0.0, abs=1e-4)
    assert data.scale == pytest.approx(174, rel=0.2)
    assert data.notes[-1].startswith("1 rows")


def test_a_word_that_no_training_row_has_stays_small(tmp_path: Path) -> None:
    rows = [f"{i},{'rare' if i == 5 else 'often'},{i + 0.5}" for i in range(60)]
    data = read_csv(write(tmp_path / "rare.csv", "size,place,price", *rows))
    assert max(part[0].abs().max() for part in data.parts.values()) < 20
    assert min(part[0][:, 1:].std(0).max() for part in data.parts.values()) == 0


def test_words_and_few_whole_numbers_are_classes(tmp_path: Path) -> None:
    data = open_files(table(tmp_path), target="place")
    assert data.parts["train"][1].dtype == torch.int64
    numbers = write(tmp_path / "n.csv", "x,y", *(f"{i},{3 * (i % 2)}" for i in range(40)))
    assert sorted(set(read_csv(numbers).parts["train"][1].tolist())) == [0, 1]
    assert read_csv(numbers, regress=True).parts["train"][1].is_floating_point()


def test_texts_are_left_out_and_named(tmp_path: Path) -> None:
    data = read_csv(write(tmp_path / "texts.csv", "size,title,price", *(f"{i},t{i},{i + 0.5}" for i in range(60))))
    assert data.parts["train"][0].shape[1] == 1
    assert "title" in data.notes[-1]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["1,2", "1,2", "3,4"], "must name the columns"),
        (["x,y"], "header"),
        (["x,x", "1,2"], "each differently"),
        (["x,y", "1,2", "1"], "line 3"),
        (["x,y,z", ",2,1", "1,,1", "1,,1"], "fill or remove columns"),
        (["y", "1", "2"], "only the column"),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_csv(write(tmp_path / "bad.csv", *lines))


def test_an_unknown_target_names_the_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="size, place, price"):
        open_files(table(tmp_path), target="cost")


def test_folders_of_images_are_bytes_until_a_network_sees_them(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for kind in ("a", "b"):
            (tmp_path / split / kind).mkdir(parents=True)
            for i in range(10):
                Image.fromarray(np.full((6, 6), 25 * i, np.uint8)).save(tmp_path / split / kind / f"{i}.png")
    data = open_files(tmp_path)
    assert data.parts["train"][0].dtype == torch.uint8
    inputs, _ = data.load_batch(torch.tensor([[0, 1]]))
    for seen, stored in ((data.first[0], data.parts["train"][0][:8]), (inputs[0], data.parts["train"][0][:2])):
        assert torch.equal(seen, stored.float() / 255)


def test_images_without_a_test_set_are_split(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        (tmp_path / "flat" / kind).mkdir(parents=True)
        for i in range(20):
            Image.fromarray(np.full((6, 6), 10 * i, np.uint8)).save(tmp_path / "flat" / kind / f"{i}.png")
    flat = open_files(tmp_path / "flat")
    assert {name: len(labels) for name, (_, labels) in flat.parts.items()} == {"train": 27, "test": 8, "val": 5}
    assert int(flat.parts["test"][1].sum()) == 4
    (tmp_path / "nested").mkdir()
    (tmp_path / "flat").rename(tmp_path / "nested" / "train")
    nested = open_files(tmp_path / "nested")
    assert nested.parts["train"][0].equal(flat.parts["train"][0])
    (tmp_path / "nested" / "train").rename(tmp_path / "nested" / "Train")
    (tmp_path / "nested" / "Test").mkdir()
    with pytest.raises(DataError, match="neither a folder train"):  # rather than the classes Test and Train
        open_files(tmp_path / "nested")


def test_arrays_may_have_any_targets_and_lack_a_test_set(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) / 7
    np.savez(tmp_path / "numbers.npz", x_train=x, y_train=y)
    data = open_files(tmp_path / "numbers.npz")
    assert {name: len(labels) for name, (_, labels) in data.parts.items()} == {"train": 41, "test": 12, "val": 7}
    assert data.first[1].dtype == torch.float32
    np.savez(tmp_path / "both.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    assert torch.equal(open_files(tmp_path / "both.npz").parts["test"][1], torch.from_numpy(y[:5]).float())
    np.savez(tmp_path / "half.npz", x_train=x, y_train=y, x_test=x)
    with pytest.raises(DataError, match="no array y_test"):
        open_files(tmp_path / "half.npz")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_tables_are_separated_by_commas_semicolons_or_tabs(delimiter: str, tmp_path: Path) -> None:
    rows = [delimiter.join((str(i), f'"{i % 3},{i % 3}"', str(i / 7))) for i in range(60)]
    data = read_csv(write(tmp_path / "table.csv", delimiter.join(("size", '"place, and more"', "price")), *rows))
    assert data.parts["train"][0].shape[1] == 1 + 3


def test_a_network_has_an_output_for_each_class_of_all_data(tmp_path: Path) -> None:
    lines = (
        "from torch import nn",
        "def net(in_channels, num_classes):",
        "    return nn.Linear(in_channels, num_classes)",
    )
    source = f"{write(tmp_path / 'net.py', *lines)}:net"
    x, y = torch.randn(60, 4), torch.arange(60) // 20  # the first samples are of one class
    for targets, outputs in ((y, 3), (y.float()[:, None], 1), (x.float()[:, :2], 2)):
        network = open_network(source, read_data((x, targets), None, None))()
        assert (network.in_features, network.out_features) == (4, outputs)


def test_whole_numbers_of_any_type_are_classes_or_tokens() -> None:
    for y in (torch.arange(40, dtype=torch.int32) % 2, torch.arange(80, dtype=torch.uint8).reshape(40, 2) % 5):
        assert read_data((torch.randn(40, 2), y), None, None).parts["train"][1].dtype == torch.int64


def test_splits_are_proportional_disjoint_and_always_the_same() -> None:
    x, y = torch.arange(400.0)[:, None], (torch.arange(400) % 10 == 0).long()
    first, second = (read_data((x, y), None, None) for _ in range(2))
    parts = [set(pair[0].flatten().tolist()) for pair in first.parts.values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 400
    assert first.parts["val"][0].equal(second.parts["val"][0])
    for _, labels in first.parts.values():
        assert labels.double().mean() == pytest.approx(0.1, abs=0.02)
