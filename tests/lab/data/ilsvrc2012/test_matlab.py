import io

import numpy
import pytest
from made_ilsvrc import as_mat, devkit_files

from hullo.lab.data.ilsvrc2012.matlab import read_structs

ROWS = [{"name": "tench, Tinca", "n": 1300}, {"name": "x", "n": 0}, {"name": "", "n": 65535}]


@pytest.mark.parametrize("compressed", [True, False])
def test_structs_are_read_compressed_or_not(compressed):
    read = read_structs(as_mat(ROWS, compressed=compressed))
    assert read == [{"name": row["name"], "n": [float(row["n"])]} for row in ROWS]


@pytest.mark.parametrize("compressed", [True, False])
def test_files_that_scipy_writes_are_read(compressed):
    scipy = pytest.importorskip("scipy.io")
    values = numpy.empty((1, 2), dtype=[("word", "O"), ("few", "O"), ("real", "O"), ("none", "O")])
    values[0, 0] = ("wörter", numpy.array([[1, 2, 300]], numpy.uint16), 0.25, numpy.zeros((1, 0)))
    values[0, 1] = ("b", numpy.array([[-7]], numpy.int64), -1e300, numpy.zeros((1, 0)))
    stream = io.BytesIO()
    scipy.savemat(stream, {"values": values}, do_compression=compressed)
    assert read_structs(stream.getvalue()) == [
        {"word": "wörter", "few": [1.0, 2.0, 300.0], "real": [0.25], "none": []},
        {"word": "b", "few": [-7.0], "real": [-1e300], "none": []},
    ]


def test_the_real_devkit_is_read_as_scipy_reads_it(real_source):
    scipy = pytest.importorskip("scipy.io")
    path = real_source.devkit.path / "data" / "meta.mat"
    if not path.exists():
        pytest.skip("needs the devkit unpacked")
    theirs = scipy.loadmat(path, squeeze_me=True)["synsets"]
    ours = read_structs(path.read_bytes())
    assert [row["WNID"] for row in ours] == theirs["WNID"].tolist()
    assert [row["ILSVRC2012_ID"] for row in ours] == [[float(value)] for value in theirs["ILSVRC2012_ID"]]
    assert [len(row["children"]) for row in ours] == [numpy.size(value) for value in theirs["children"]]


@pytest.mark.parametrize("parametrization", [0, 127, 130, 140, 200, -1])
@pytest.mark.parametrize("compressed", [True, False])
def test_truncated_file_is_rejected(parametrization, compressed):
    with pytest.raises(ValueError, match=r"truncated|damaged|starts with"):
        read_structs(as_mat(ROWS, compressed=compressed)[:parametrization])


def test_other_files_are_rejected():
    with pytest.raises(ValueError, match=r"starts with b'<html>'"):
        read_structs(b"<html>")
    content = bytearray(devkit_files()["data/meta.mat"])
    content[200] ^= 255
    with pytest.raises(ValueError, match="is damaged"):
        read_structs(bytes(content))
