import hashlib

import pytest
import torch


def test_real_release_is_balanced(real):
    dataset = real("fashion-mnist").load()
    assert dataset.train_images.shape == (60_000, 1, 28, 28)
    assert dataset.test_images.shape == (10_000, 1, 28, 28)
    assert dataset.train_labels.bincount().tolist() == [6000] * 10
    assert dataset.test_labels.bincount().tolist() == [1000] * 10
    # known of old: the first image of either part is an ankle boot; mean and deviation that people normalize by
    assert dataset.classes[dataset.train_labels[0]] == dataset.classes[dataset.test_labels[0]] == "Ankle boot"
    pixels = dataset.train_images.double() / 255
    torch.testing.assert_close(
        torch.stack([pixels.mean(), pixels.std()]), torch.tensor([0.2860, 0.3530]).double(), atol=5e-5, rtol=0
    )


@pytest.mark.parametrize(
    ("name", "md5"),
    [
        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ],
)
def test_digests_match_the_published_md5(real, name, md5):
    assert hashlib.md5(real("fashion-mnist").read(name)).hexdigest() == md5
