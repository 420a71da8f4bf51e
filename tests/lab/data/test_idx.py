import gzip

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_releases import as_idx

from hullo.lab.data.fashion_mnist import read_idx


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data())
def test_tensor_has_the_bytes_and_shape_of_the_file(shape, data):
    size = torch.Size(shape).numel()
    content = data.draw(st.binary(min_size=size, max_size=size))
    tensor = read_idx(as_idx(shape, content), "some.gz")
    assert tensor.dtype == torch.uint8
    assert tensor.shape == torch.Size(shape)
    assert bytes(tensor.flatten().tolist()) == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"starts with ''"),
        (b"\0\0\x08", r"starts with '00 00 08'; idx"),
        (b"\x89PNG", r"starts with '89 50 4e 47'"),
        (b"\0\0\x0d\1\0\0\0\1abcd", r"starts with '00 00 0d 01'"),  # an idx file of floats
        (b"\0\0\x08\3\0\0\0\1\0\0", r"the header is truncated after 10 of 16 bytes"),
        (b"\0\0\x08\1\0\0\0\4abc", r"3 bytes for the shape \(4,\) in its header"),
        (b"\0\0\x08\1\0\0\0\2abc", r"3 bytes or more for the shape \(2,\) in its header"),
        (
            b"\0\0\x08\3\0\0\0\0" + b"\xff" * 8,
            r"the header has shape \(0, 4294967295, 4294967295\); must have fewer dim",
        ),
        (b"\0\0\x08\xff" + b"\0\0\0\2" * 255, r"the header has shape \(2, 2, .*\); must have fewer dimensions"),
        (b"\0\0\x08\2\0\0\0\2\0\0\0\2abc", r"3 bytes for the shape \(2, 2\) in its header"),
    ],
)
def test_other_content_is_rejected(content, message):
    with pytest.raises(ValueError, match=rf"^some\.gz: {message}"):
        read_idx(gzip.compress(content), "some.gz")


def test_wrong_number_of_dimensions_is_rejected():
    with pytest.raises(ValueError, match=r"^some\.gz: the header has shape \(\); must have 1 dimensions"):
        read_idx(as_idx((), b"a"), "some.gz", 1)


def test_decompressed_size_is_limited_by_the_header(monkeypatch):
    asked = []
    read = gzip.GzipFile.read

    def limited(self, size=-1):
        asked.append(size)
        return read(self, size)

    monkeypatch.setattr(gzip.GzipFile, "read", limited)
    with pytest.raises(ValueError, match=r"5 bytes or more for the shape \(4,\)"):
        read_idx(as_idx((4,), bytes(10**6)), "some.gz")
    assert asked == [4, 4, 5]


@pytest.mark.parametrize("content", [as_idx((1,), b"a")[:-1], as_idx((3,), b"abc")[:10] + b"\xff" * 20, b"not gzip"])
def test_incomplete_gzip_file_is_rejected(content):
    with pytest.raises(ValueError, match=r"^some\.gz: truncated or damaged gzip file"):
        read_idx(content, "some.gz")
