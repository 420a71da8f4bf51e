import io
import tarfile
from dataclasses import replace

import pytest
from made_ilsvrc import LAYOUTS, TRAIN, WNIDS, as_tar, lay_out, make_images, write

from hullo.lab.data.ilsvrc2012 import source as module
from hullo.lab.data.ilsvrc2012.source import SPLITS, Source
from hullo.lab.data.release import DataError

MADE = make_images()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("split", SPLITS)
def test_every_source_layout_gives_the_same_images(tmp_path, layout, split):
    source = Source(lay_out(tmp_path, layout))
    result = [(image.name, image.label, image.encoded.read()) for image in source.images(split)]
    made = MADE[split].items()
    assert result == sorted((name, WNIDS.index(wnid), data) for wnid, files in made for name, data in files.items())
    assert len(result) == source.num_released(split)


def test_without_a_devkit_1000_folders_define_the_classes(tmp_path, monkeypatch):
    lay_out(tmp_path, "sorted")
    (tmp_path / "devkit").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"has no devkit.*1000 folders; put ILSVRC2012_devkit"):
        Source(tmp_path).images("val")
    monkeypatch.setattr(module, "CLASSES", 3)
    source = Source(tmp_path)
    assert source.wnids == tuple(WNIDS)
    assert [WNIDS[image.label] for image in source.images("train")] == [
        wnid for wnid in WNIDS for _ in range(TRAIN[wnid])
    ]
    assert source.num_released("train") == 1_281_167
    assert source.num_released("val") == 50_000


@pytest.mark.parametrize("layout", ["tars", "flat"])
@pytest.mark.parametrize("split", SPLITS)
def test_missing_devkit_is_a_clear_error_if_val_is_not_sorted(tmp_path, layout, split):
    lay_out(tmp_path, layout)
    for path in tmp_path.glob("*devkit*"):
        path.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=rf"{tmp_path} has no devkit.* put ILSVRC2012_devkit_t12.tar.gz \(2,568,145"):
        Source(tmp_path).images(split)


def test_wrong_path_is_a_clear_error(tmp_path):
    with pytest.raises(DataError, match=rf"{tmp_path}/no is not a directory; put there ILSVRC2012_img_train.tar an"):
        Source(tmp_path / "no").images("train")
    with pytest.raises(DataError, match=rf"{tmp_path} has neither ILSVRC2012_img_val.tar nor a folder val; put there"):
        Source(tmp_path).images("val")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("part", [0, 0.3, 0.6, 0.8])
def test_truncated_tar_is_a_clear_error(tmp_path, split, part):
    lay_out(tmp_path, "tars")
    path = tmp_path / f"ILSVRC2012_img_{split}.tar"
    content = path.read_bytes().rstrip(b"\0")
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(DataError) as caught:
        Source(tmp_path).images(split)
    tar = module.TARS[split]
    assert str(caught.value).startswith(f"{path} is truncated or damaged (")
    assert str(caught.value).endswith(f"expected {tar.size:,} bytes, md5 {tar.digest}; download it again")


@pytest.mark.parametrize("kept", [1, 2])
def test_tar_truncated_between_members_is_reported(tmp_path, kept):
    path = lay_out(tmp_path, "tars") / "ILSVRC2012_img_train.tar"
    with tarfile.open(path) as tar:
        end = tar.getmembers()[kept].offset
    path.write_bytes(path.read_bytes()[:end])
    source = Source(tmp_path)
    assert len(source.images("train")) == sum(list(TRAIN.values())[:kept])
    assert source.shortfall("train") == (
        f" (ILSVRC2012_img_train.tar has {end:,} of the released 147,897,477,120 bytes: truncated, unless you "
        "repacked it)"
    )


def test_complete_tar_and_folder_are_not_reported(tmp_path, monkeypatch):
    lay_out(tmp_path, "tars")
    size = (tmp_path / "ILSVRC2012_img_val.tar").stat().st_size
    monkeypatch.setitem(module.TARS, "val", replace(module.TARS["val"], size=size))
    assert Source(tmp_path).shortfall("val") == ""
    assert Source(lay_out(tmp_path / "folders")).shortfall("train") == ""


@pytest.mark.parametrize(
    ("layout", "place"),
    [
        ("flat", ""),
        ("flat", "train"),
        ("flat", "train/n02000003"),
        ("class tars", "train/n02000003.tar"),
        ("tars", "ILSVRC2012_img_train.tar"),
    ],
)
def test_unreadable_source_is_a_clear_error(tmp_path, forbid, layout, place):
    source = Source(lay_out(tmp_path, layout))
    forbid(tmp_path / place)
    with pytest.raises(DataError) as caught:
        source.images("train")
    assert str(caught.value) == (
        f"{tmp_path / place} cannot be read (Permission denied); make it readable, then try again"
    )


def tar_with(member, content=b""):
    """Return a val tar of one image and another member."""
    stream = io.BytesIO(as_tar({name: data for files in MADE["val"].values() for name, data in files.items()}))
    with tarfile.open(fileobj=stream, mode="a") as tar:
        tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def odd_member(kind, name="ILSVRC2012_val_00000007.JPEG", link="ILSVRC2012_val_00000001.JPEG"):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    "content",
    [
        tar_with(odd_member(tarfile.SYMTYPE)),
        tar_with(odd_member(tarfile.LNKTYPE)),
        tar_with(odd_member(tarfile.SYMTYPE, link="/etc/passwd")),
        tar_with(odd_member(tarfile.SYMTYPE, name="n01000002.tar")),
        tar_with(odd_member(tarfile.FIFOTYPE)),
        tar_with(odd_member(tarfile.CHRTYPE)),
        tar_with(odd_member(tarfile.DIRTYPE)),
        tar_with(odd_member(tarfile.GNUTYPE_SPARSE)),
        as_tar({"n01000002.tar": as_tar({"n02000003.tar": as_tar({"a.JPEG": b""})})}),
        tar_with(tarfile.TarInfo("x")).replace(b"00000000000\0", b"\xff" * 12, 1),  # a size below zero
        b"<html>please log in</html>" * 100,
    ],
)
def test_tar_with_unusual_content_is_a_clear_error(tmp_path, content):
    lay_out(tmp_path, "tars")
    write(tmp_path, {"ILSVRC2012_img_val.tar": content})
    with pytest.raises(DataError, match=r"ILSVRC2012_img_val.tar is truncated or damaged \(.*; download it again"):
        Source(tmp_path).images("val")


@pytest.mark.parametrize("name", ["a\nb.JPEG", "\udcff.JPEG"])
def test_unprintable_file_name_is_rejected(tmp_path, name):
    lay_out(tmp_path, "sorted")
    (tmp_path / "val" / "n02000003" / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"val: invalid file name '.*\.JPEG'"):
        Source(tmp_path).images("val")


def test_paths_outside_of_the_folder_are_not_followed(tmp_path):
    lay_out(tmp_path, "tars")
    content = next(iter(MADE["val"]["n02000003"].values()))
    write(tmp_path, {"ILSVRC2012_img_val.tar": as_tar({"/../../ILSVRC2012_val_00000001.JPEG": content})})
    (image,) = Source(tmp_path).images("val")
    assert (image.name, image.encoded.read()) == ("ILSVRC2012_val_00000001.JPEG", content)


def test_images_without_a_class_are_rejected(tmp_path):
    lay_out(tmp_path, "sorted")
    write(tmp_path, {"val/holiday.JPEG": b""})
    with pytest.raises(DataError, match=r"val: holiday.JPEG has no label"):
        Source(tmp_path).images("val")
    write(tmp_path, {"train/n00000009/n00000009_1.JPEG": b""})
    with pytest.raises(DataError, match=r"train: n00000009 is not one of the 3 classes"):
        Source(tmp_path).images("train")


def test_misplaced_or_duplicate_val_images_are_rejected(tmp_path):
    lay_out(tmp_path, "sorted")
    right, wrong = tmp_path / "val" / "n02000003", tmp_path / "val" / "n01000002"
    (right / "ILSVRC2012_val_00000001.JPEG").rename(wrong / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(DataError, match=r"ILSVRC2012_val_00000001.JPEG is in n01000002, but its class is n02000003"):
        Source(tmp_path).images("val")
    (wrong / "ILSVRC2012_val_00000001.JPEG").rename(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG")
    assert len(Source(tmp_path).images("val")) == 6  # flat or sorted, even half of each
    write(tmp_path, {"val/n02000003/ILSVRC2012_val_00000001.JPEG": b""})
    with pytest.raises(DataError, match=r"val has ILSVRC2012_val_00000001.JPEG twice"):
        Source(tmp_path).images("val")


def test_other_files_are_ignored(tmp_path):
    lay_out(tmp_path)
    write(tmp_path, {"train/README": b"", "train/n01000002/.DS_Store": b"", "val/labels.txt": b""})
    assert [len(Source(tmp_path).images(split)) for split in SPLITS] == [12, 6]


def test_real_images_have_the_classes_of_their_folders(real_source):
    train, val = (real_source.images(split) for split in SPLITS)
    assert {real_source.wnids[image.label] == image.name.split("_")[0] for image in train} == {True}
    assert {image.label for image in val} == {image.label for image in train}
