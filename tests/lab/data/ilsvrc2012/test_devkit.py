import io
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_ilsvrc import TRAIN, TRUTH, WNIDS, as_mat, as_tar, devkit_files, lay_out, synset, write

from hullo.lab.data.ilsvrc2012 import devkit, matlab
from hullo.lab.data.ilsvrc2012.devkit import ARCHIVE, Class, find_devkit
from hullo.lab.data.release import DataError

PREFIX = "ILSVRC2012_devkit_t12"


@pytest.mark.parametrize("place", ["archive", "devkit", PREFIX])
def test_labels_follow_sorted_wnids_and_val_labels_are_mapped(tmp_path, place):
    files = devkit_files()
    if place == "archive":
        write(tmp_path, {ARCHIVE: as_tar({f"{PREFIX}/{name}": data for name, data in files.items()}, "w:gz")})
    else:
        write(tmp_path, {f"{place}/{name}": data for name, data in files.items()})
    result = find_devkit(tmp_path)
    assert result.classes == tuple(Class(wnid, f"thing {wnid[-1]}", TRAIN[wnid]) for wnid in WNIDS)
    assert [WNIDS[label] for label in result.val_labels] == [list(TRAIN)[number - 1] for number in TRUTH]


def test_missing_devkit_is_none(tmp_path):
    assert find_devkit(tmp_path) is None
    assert find_devkit(tmp_path / "nowhere") is None


def test_truncated_archive_is_a_clear_error(tmp_path):
    archive = lay_out(tmp_path, "tars") / ARCHIVE
    content = archive.read_bytes()
    for parametrization in (0, 10, len(content) // 2):
        archive.write_bytes(content[:parametrization])
        with pytest.raises(
            DataError,
            match=rf"{ARCHIVE} is an incomplete or damaged devkit \(.*put {ARCHIVE} \(2,568,145 bytes, md5 fa",
        ):
            find_devkit(tmp_path)


@pytest.mark.parametrize("missing", ["meta.mat", "ILSVRC2012_validation_ground_truth.txt"])
def test_devkit_without_a_file_is_a_clear_error(tmp_path, missing):
    folder = lay_out(tmp_path) / "devkit"
    (folder / "data" / missing).unlink()
    with pytest.raises(DataError, match=rf"devkit is an incomplete or damaged devkit \(.*{missing}"):
        find_devkit(tmp_path)


@pytest.mark.parametrize(
    ("kind", "link"),
    [(tarfile.SYMTYPE, "meta.mat"), (tarfile.SYMTYPE, "../data"), (tarfile.LNKTYPE, "nowhere"), (tarfile.DIRTYPE, "")],
)
def test_archive_with_links_is_a_clear_error(tmp_path, kind, link):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        member = tarfile.TarInfo(f"{PREFIX}/data/meta.mat")
        member.type, member.linkname = kind, link
        tar.addfile(member)
    write(tmp_path, {ARCHIVE: stream.getvalue()})
    with pytest.raises(
        DataError, match=rf"{ARCHIVE} is an incomplete or damaged devkit \(meta.mat is not a regular file\)"
    ):
        find_devkit(tmp_path)


def test_decompressed_size_of_a_devkit_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(devkit, "MAX_BYTES", 100)
    lay_out(tmp_path, "tars")
    with pytest.raises(DataError, match=r"is an incomplete or damaged devkit \(meta.mat has more than 100 bytes"):
        find_devkit(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(matlab, "MAX_BYTES", 1000)
    with pytest.raises(
        DataError, match=r"is an incomplete or damaged devkit \(is truncated, or has more than 1,000 bytes"
    ):
        find_devkit(tmp_path)


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes_give_a_devkit_or_an_error(tmp_path, data):
    files = {f"devkit/{name}": bytearray(content) for name, content in devkit_files().items()}
    name = data.draw(st.sampled_from(sorted(files)))
    plain = as_mat([synset(1, "n03000001", "thing", 0, 4), synset(2, "n03000002", "thing", 0, 4)], compressed=False)
    files["devkit/data/meta.mat"] = bytearray(plain)
    for place in data.draw(st.lists(st.integers(0, len(files[name]) - 1), min_size=1, max_size=3)):
        files[name][place] = data.draw(st.integers(0, 255))
    write(tmp_path, files)
    try:
        assert find_devkit(tmp_path).classes
    except DataError as error:
        assert "is an incomplete or damaged devkit" in str(error)  # noqa: PT017 (either is right)


def test_unknown_val_label_is_rejected(tmp_path):
    write(tmp_path, {f"devkit/{name}": data for name, data in devkit_files().items()})
    write(tmp_path, {"devkit/data/meta.mat": as_mat([synset(1, "n03000001", "thing", 0, 4)])})
    with pytest.raises(DataError, match=r"devkit is an incomplete or damaged devkit \(3\)"):
        find_devkit(tmp_path)


def test_real_devkit_has_1000_classes_with_50_val_images_each(real_source):
    result = real_source.devkit
    assert len(result.classes) == 1000
    assert sum(item.num_images for item in result.classes) == 1_281_167
    assert len(result.val_labels) == 50_000
    assert {result.val_labels.count(label) for label in range(0, 1000, 111)} == {50}
    # known of old
    assert [result.classes[label].words.split(",")[0] for label in (0, 1, 207, 999)] == [
        "tench",
        "goldfish",
        "golden retriever",
        "toilet tissue",
    ]
