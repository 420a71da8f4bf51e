import numpy as np
import pytest
from made_ilsvrc import lay_out
from safetensors.numpy import load_file, save_file

from hullo.lab.data.ilsvrc2012.decoding import decode
from hullo.lab.data.ilsvrc2012.shards import HEADER, IMAGE_BYTES, Shard, write_shard
from hullo.lab.data.ilsvrc2012.source import Bytes, Source
from hullo.lab.data.release import DataError


@pytest.fixture
def images(tmp_path):
    """Return twelve images, of which the third is truncated and the fifth is not there."""
    images = Source(lay_out(tmp_path)).images("train")
    broken = tmp_path / "broken"
    broken.write_bytes(images[2].encoded.read()[:-40])
    images[2] = images[2]._replace(encoded=Bytes(str(broken)))
    images[4] = images[4]._replace(encoded=Bytes(str(tmp_path / "nowhere")))
    return images


@pytest.fixture
def shard(images, tmp_path):
    write_shard(tmp_path / "train-000.safetensors", images)
    return Shard.open(tmp_path / "train-000.safetensors")


def test_shard_is_a_safetensors_file_of_decoded_images(shard, images):
    sound = [image for place, image in enumerate(images) if place not in (2, 4)]
    tensors = load_file(shard.path)
    pixels = np.stack([decode(image.encoded.read()) for image in sound])
    assert np.array_equal(tensors["images"], pixels)
    assert tensors["labels"].tolist() == [image.label for image in sound]
    assert np.array_equal(tensors["sum"], pixels.sum(0, dtype=np.int64))
    assert shard.names() == [image.name for image in sound]
    assert np.array_equal(shard.sum(), tensors["sum"])


def test_images_are_aligned_to_pages(shard):
    content = shard.path.read_bytes()
    images = load_file(shard.path)["images"]
    assert HEADER % 4096 == IMAGE_BYTES % 4096 == 0
    assert content[HEADER + 3 * IMAGE_BYTES : HEADER + 4 * IMAGE_BYTES] == images[3].tobytes()


def test_broken_images_are_listed_with_reasons(shard, images):
    (third, truncated), (fifth, unread) = shard.broken
    assert (third, fifth) == (images[2].name, images[4].name)
    assert "truncated" in truncated
    assert unread == "cannot be read: No such file or directory"


def test_shard_lists_its_images(shard, images):
    assert shard.holds(images)
    assert not shard.holds(images[:-1])
    assert not shard.holds(images[::-1])
    assert not shard.holds([*images[:-1], images[-1]._replace(label=0)])
    assert not shard.holds([*images[:2], *images[3:]])  # without a broken one


def test_shard_with_changed_broken_images_is_outdated(shard, images, tmp_path):
    (tmp_path / "nowhere").write_bytes(b"")
    assert not shard.holds(images)
    (tmp_path / "nowhere").write_bytes(images[0].encoded.read())
    assert not shard.holds(images)
    (tmp_path / "nowhere").unlink()
    assert shard.holds(images)


def test_shard_may_be_empty(images, tmp_path):
    write_shard(tmp_path / "val-000.safetensors", [images[2]])
    shard = Shard.open(tmp_path / "val-000.safetensors")
    assert (len(shard.labels), shard.names(), shard.verify()) == (0, [], True)


def test_every_changed_byte_is_detected(shard):
    assert shard.verify()
    content = bytearray(shard.path.read_bytes())
    for place in (HEADER, HEADER + IMAGE_BYTES + 5, len(content) - 1):
        content[place] ^= 1
        shard.path.write_bytes(content)
        assert not shard.verify()
        content[place] ^= 1


@pytest.mark.parametrize("parametrization", [0, 100, HEADER, -1])
def test_truncated_or_missing_shard_is_rejected(shard, parametrization):
    content = shard.path.read_bytes()
    shard.path.write_bytes(content[:parametrization])
    refused = r"train-000.safetensors is missing or damaged \(.*\); make it again with: hullo data pack ilsvrc2012$"
    with pytest.raises(DataError, match=refused):
        Shard.open(shard.path)
    shard.path.unlink()
    with pytest.raises(DataError, match=refused):
        Shard.open(shard.path)


@pytest.mark.parametrize(("written", "other"), [(b'"sha256"', b'"sha257"'), (b'[["n', b'[{"n')])
def test_shard_with_damaged_json_is_rejected(shard, written, other):
    content = shard.path.read_bytes()
    assert written in content
    shard.path.write_bytes(content.replace(written, other))
    with pytest.raises(DataError, match=r"train-000.safetensors is missing or damaged \("):
        Shard.open(shard.path)


def test_other_safetensors_file_is_rejected(tmp_path):
    save_file({"images": np.zeros(3)}, tmp_path / "train-000.safetensors")
    with pytest.raises(DataError, match=r"train-000.safetensors is missing or damaged \("):
        Shard.open(tmp_path / "train-000.safetensors")


def test_shard_with_damaged_names_matches_no_images(shard, images):
    names = "\n".join(shard.names()).encode()
    shard.path.write_bytes(shard.path.read_bytes().replace(names, b"\xff" + names[1:]))
    assert not shard.holds(images)


def test_interrupted_write_leaves_no_file(images, tmp_path):
    def interrupted():
        yield images[0]
        raise KeyboardInterrupt

    before = set(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        write_shard(tmp_path / "val-000.safetensors", interrupted())
    assert set(tmp_path.iterdir()) == before
