import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_ilsvrc import WNIDS, lay_out, make_images
from safetensors import safe_open
from safetensors.torch import save_file

from hullo.lab.data.ilsvrc2012.decoding import decode
from hullo.lab.data.ilsvrc2012.packed import Pack
from hullo.lab.data.release import DataError


@pytest.fixture
def packed(tmp_path, pack):
    return pack(lay_out(tmp_path / "source"), tmp_path / "packed")


def flaws(pack):
    return pack.flaws(lambda _: None)


def test_opened_pack_equals_the_written_one(packed):
    assert Pack.open(packed.folder) == packed
    assert flaws(packed) == []
    assert packed.classes == tuple((wnid, f"thing {wnid[-1]}") for wnid in WNIDS)


@pytest.mark.parametrize("split", ["train", "val"])
def test_images_are_indexed_in_the_order_of_their_names(packed, split):
    actual = packed.images(split)
    made = sorted((name, wnid, data) for wnid, files in make_images()[split].items() for name, data in files.items())
    assert len(actual) == len(made) > 5  # more than a shard
    for number, (_, wnid, data) in enumerate(made):
        pixels, label = actual[number]
        assert np.array_equal(pixels, decode(data))
        assert (label, int(actual.labels[number])) == (WNIDS.index(wnid), WNIDS.index(wnid))
    assert torch.equal(actual[-1][0], actual[len(actual) - 1][0])
    with pytest.raises(IndexError):
        actual[len(actual)]


def test_labels_are_loaded_on_opening(packed):
    labels = packed.images("train").labels
    assert labels.dtype == torch.int64
    assert labels.bincount().tolist() == [3, 5, 4]


def test_every_altered_or_missing_file_is_reported(packed):
    for name, place in (("train-001.safetensors", 5000), ("mean.safetensors", 500)):
        content = bytearray((packed.folder / name).read_bytes())
        content[place] ^= 1
        (packed.folder / name).write_bytes(content)
    (packed.folder / "val-000.safetensors").unlink()
    mean, train, val = flaws(packed)
    assert mean.startswith(f"{packed.folder}/mean.safetensors is missing or altered: expected sha256 ")
    assert train.startswith(f"{packed.folder}/train-001.safetensors is altered: expected sha256 ")
    assert val.startswith(f"{packed.folder}/val-000.safetensors is missing or damaged (")


def test_swapped_shards_are_detected(packed):
    (packed.folder / "train-000.safetensors").replace(packed.folder / "train-001.safetensors")
    assert len(flaws(packed)) == 2


def test_shard_truncated_while_reading_is_a_clear_error(packed):
    result = packed.images("train")
    with (packed.folder / "train-001.safetensors").open("r+b") as file:
        file.truncate(300_000)
    result[5]
    with pytest.raises(
        DataError, match=r"train-001.safetensors is truncated; make it again with: hullo data pack ilsv"
    ):
        result[6]
    with pytest.raises(DataError, match=r"train-001.safetensors is missing or damaged .*with: hullo data pack ilsv"):
        packed.images("train")


@pytest.mark.parametrize(
    "mean",
    [
        torch.zeros(256, 256, 3, dtype=torch.float64),
        torch.zeros(256, 256, 3, dtype=torch.uint8),
        torch.zeros(3, 256, 256),
        torch.zeros(()),
        torch.full((256, 256, 3), torch.nan),
        torch.full((256, 256, 3), 256.0),
    ],
)
def test_mean_of_another_dtype_or_shape_is_a_clear_error(packed, mean):
    save_file({"mean": mean}, packed.folder / "mean.safetensors")
    with pytest.raises(
        DataError, match=r"mean.safetensors is missing or damaged \(.*; make it again with: hullo data pack"
    ):
        Pack.open(packed.folder).mean  # noqa: B018


def test_shard_saved_by_another_writer_is_rejected(packed):
    path = packed.folder / "train-000.safetensors"
    with safe_open(path, "pt") as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, about)
    with pytest.raises(DataError, match=r"train-000.safetensors is missing or damaged \("):
        packed.images("train")


def test_label_outside_of_the_classes_is_rejected(packed):
    with pytest.raises(DataError, match=r"label 2 in train, 2 classes; delete it"):
        replace(packed, classes=packed.classes[:2]).images("train")


@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_missing_or_damaged_mean_is_a_clear_error(packed, content):
    path = packed.folder / "mean.safetensors"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        Pack.open(packed.folder).mean  # noqa: B018
    assert str(caught.value).startswith(f"{path} is missing or damaged (")
    assert str(caught.value).endswith("; make it again with: hullo data pack ilsvrc2012")


def test_other_folders_and_versions_are_rejected(packed, tmp_path):
    with pytest.raises(
        DataError, match=rf"{tmp_path} contains no finished pack; make it with: hullo data pack ilsvrc2012"
    ):
        Pack.open(tmp_path)
    manifest = packed.folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 1}))
    with pytest.raises(DataError, match="version 1, not 3"):
        Pack.open(packed.folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: json.dumps(values)[:100],
        lambda values: "[]",
        lambda values: "null",
        lambda values: "{}",
        lambda values: '{"version": 3}',
        lambda values: json.dumps(values | {"parts": {}}),
        lambda values: json.dumps(values | {"parts": {split: {"shards": [{"name": ""}]} for split in values["parts"]}}),
        lambda values: json.dumps(values | {"classes": [["n01000002"]]}),
        lambda values: json.dumps(values | {"mean_sha256": 12}),
        lambda values: json.dumps(
            values | {"parts": values["parts"] | {"val": values["parts"]["val"] | {"wanted": -1}}}
        ),
        lambda values: json.dumps(values).replace('"num_images": 5', '"num_images": "5"'),
        lambda values: "[" * 5000,
    ],
)
def test_damaged_manifest_is_a_clear_error(packed, damage):
    manifest = packed.folder / "manifest.json"
    manifest.write_text(damage(json.loads(manifest.read_text())))
    with pytest.raises(DataError) as caught:
        Pack.open(packed.folder)
    assert str(caught.value).startswith(f"{manifest} is damaged (")
    assert str(caught.value).endswith("; delete it, then run: hullo data pack ilsvrc2012")


def test_unreadable_manifest_is_a_clear_error(packed, forbid):
    forbid(packed.folder / "manifest.json")
    with pytest.raises(DataError, match=r"/manifest.json cannot be read \(Permission denied\); make it readable, then"):
        Pack.open(packed.folder)
