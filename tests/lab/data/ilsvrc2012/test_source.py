import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_ilsvrc import (
    LAYOUTS,
    TRAIN,
    TRUTH,
    WNIDS,
    as_mat,
    as_tar,
    devkit_files,
    lay_out,
    make_images,
    write,
    write_devkit,
)

from hullo.lab.data.ilsvrc2012.source import SPLITS, Source
from hullo.lab.data.release import DataError

MADE = make_images()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("split", SPLITS)
def test_every_layout_gives_the_same_images(tmp_path, layout, split):
    source = Source(lay_out(tmp_path, layout))
    result = [(image.name, image.label, image.read()) for image in source.images(split)]
    made = MADE[split].items()
    assert result == sorted((name, WNIDS.index(wnid), data) for wnid, files in made for name, data in files.items())


@pytest.mark.parametrize("layout", ["tars", "flat"])
def test_labels_follow_sorted_wnids_and_val_labels_are_mapped(tmp_path, layout):
    devkit = Source(lay_out(tmp_path, layout)).devkit
    assert devkit.wnids == WNIDS
    assert [WNIDS[label] for label in devkit.val_labels] == [list(TRAIN)[number - 1] for number in TRUTH]


def test_without_a_devkit_sorted_folders_define_the_classes(tmp_path):
    source = Source(lay_out(tmp_path, "sorted"))
    (tmp_path / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    assert [WNIDS[image.label] for image in source.images("train")] == [
        wnid for wnid in WNIDS for _ in range(TRAIN[wnid])
    ]


def test_missing_split_names_what_to_put_there(tmp_path):
    with pytest.raises(DataError, match=r"neither ILSVRC2012_img_val.tar nor"):
        Source(lay_out(tmp_path / "here")).path_of("val") and Source(tmp_path).images("val")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("part", [0, 0.3, 0.6, 0.8])
def test_truncated_tar_is_a_clear_error(tmp_path, split, part):
    lay_out(tmp_path, "tars")
    path = tmp_path / f"ILSVRC2012_img_{split}.tar"
    content = path.read_bytes().rstrip(b"\0")
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(DataError, match=rf"{path} is truncated or damaged"):
        Source(tmp_path).images(split)


def test_only_regular_files_in_tars_are_read(tmp_path):
    lay_out(tmp_path, "tars")
    with tarfile.open(tmp_path / "ILSVRC2012_img_val.tar", "a") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            member = tarfile.TarInfo("ILSVRC2012_val_00000001.JPEG")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    assert len(Source(tmp_path).images("val")) == 6


def test_paths_in_tars_are_not_followed(tmp_path):
    lay_out(tmp_path, "tars")
    content = next(iter(MADE["val"]["n02000003"].values()))
    write(tmp_path, {"ILSVRC2012_img_val.tar": as_tar({"/../../ILSVRC2012_val_00000001.JPEG": content})})
    (image,) = Source(tmp_path).images("val")
    assert (image.name, image.read()) == ("ILSVRC2012_val_00000001.JPEG", content)


@pytest.mark.parametrize(
    ("place", "split", "message"),
    [
        ("val/holiday.JPEG", "val", r"'holiday.JPEG' is in no folder"),
        ("train/n00000009/n00000009_1.JPEG", "train", "is in n00000009, which is not its class"),
    ],
)
def test_misplaced_images_are_rejected(tmp_path, place, split, message):
    write(lay_out(tmp_path, "sorted"), {place: b""})
    with pytest.raises(DataError, match=message):
        Source(tmp_path).images(split)


def test_other_files_are_ignored(tmp_path):
    write(lay_out(tmp_path), {"train/README": b"", "train/n01000002/.DS_Store": b"", "val/labels.txt": b""})
    assert [len(Source(tmp_path).images(split)) for split in SPLITS] == [12, 6]


@pytest.mark.parametrize("folder", ["ILSVRC2012_devkit_t12", "devkit"])
def test_an_extracted_devkit_is_that_of_the_archive(tmp_path, folder):
    packed = Source(lay_out(tmp_path)).devkit
    (tmp_path / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    write(tmp_path, {f"{folder}/{name}": data for name, data in devkit_files().items()})
    assert packed is not None
    assert Source(tmp_path).devkit == packed


@pytest.mark.parametrize("missing", ["meta.mat", "ILSVRC2012_validation_ground_truth.txt"])
def test_devkit_without_a_file_is_a_clear_error(tmp_path, missing):
    write_devkit(tmp_path, {name: data for name, data in devkit_files().items() if not name.endswith(missing)})
    with pytest.raises(DataError, match=missing):
        _ = Source(tmp_path).devkit


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_devkit_is_read_or_a_clear_error(tmp_path, data):
    files = {name: bytearray(content) for name, content in devkit_files().items()}
    name = data.draw(st.sampled_from(sorted(files)))
    for place in data.draw(st.lists(st.integers(0, len(files[name]) - 1), min_size=1, max_size=3)):
        files[name][place] = data.draw(st.integers(0, 255))
    write_devkit(tmp_path, files)
    try:
        assert Source(tmp_path).devkit.wnids
    except DataError as error:
        assert "download ILSVRC2012_devkit_t12.tar.gz" in str(error)  # noqa: PT017 (either is right)


def test_truncated_devkit_and_unknown_labels_are_clear_errors(tmp_path):
    archive = lay_out(tmp_path / "tars", "tars") / "ILSVRC2012_devkit_t12.tar.gz"
    content = archive.read_bytes()
    for length in (0, 10, len(content) // 2):
        archive.write_bytes(content[:length])
        with pytest.raises(DataError, match=archive.name):
            _ = Source(tmp_path / "tars").devkit
    write_devkit(tmp_path, devkit_files() | {"data/meta.mat": as_mat([(1, "n03000001", 0)])})
    with pytest.raises(DataError, match="damaged"):
        _ = Source(tmp_path).devkit


def test_missing_scipy_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy.io", None)
    with pytest.raises(DataError, match=r"SciPy.*\[ilsvrc\]"):
        _ = Source(lay_out(tmp_path)).devkit


def test_real_devkit_has_1000_classes_with_50_val_images_each(real_source):
    devkit = real_source.devkit
    assert (len(devkit.wnids), len(devkit.val_labels)) == (1000, 50_000)
    assert {devkit.val_labels.count(label) for label in range(0, 1000, 111)} == {50}
    assert [devkit.wnids[label] for label in (0, 1, 207, 999)] == ["n01440764", "n01443537", "n02099601", "n15075141"]


def test_real_images_have_the_classes_of_their_folders(real_source):
    train, val = (real_source.images(split) for split in SPLITS)
    assert {real_source.wnids[image.label] == image.name.split("_")[0] for image in train} == {True}
    assert {image.label for image in val} == {image.label for image in train}
