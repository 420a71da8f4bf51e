from collections import Counter
from importlib import resources

import torch

from hullo.lab.data import find, load


def test_sample_is_balanced_and_like_fashion_mnist():
    sample = load("fashion-mnist-sample")
    assert sample.train_images.shape == (6000, 1, 28, 28)
    assert sample.test_images.shape == (1000, 1, 28, 28)
    assert sample.train_labels.bincount().tolist() == [600] * 10
    assert sample.test_labels.bincount().tolist() == [100] * 10


def test_sample_does_not_depend_on_the_data_directory(tmp_path):
    assert find("fashion-mnist-sample", tmp_path) == find("fashion-mnist-sample")


def test_sample_fits_in_4_mb_with_its_license():
    folder = resources.files("hullo.lab.data") / "fashion-mnist-sample"
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sum(map(len, contents.values())) < 4e6
    assert "MIT License (MIT) Copyright © 2017 Zalando SE" in contents["LICENSE"].decode()


def first_of_each_class(images, labels, each):
    seen, places = Counter(), []
    for place, label in enumerate(labels.tolist()):
        seen[label] += 1
        if seen[label] <= each:
            places.append(place)
    return images[places], labels[places]


def test_sample_has_the_first_images_of_each_class(real):
    full, sample = real("fashion-mnist").load(), load("fashion-mnist-sample")
    images, labels = first_of_each_class(full.train_images, full.train_labels, 600)
    assert torch.equal(sample.train_images, images)
    assert torch.equal(sample.train_labels, labels)
    images, labels = first_of_each_class(full.test_images, full.test_labels, 100)
    assert torch.equal(sample.test_images, images)
    assert torch.equal(sample.test_labels, labels)
