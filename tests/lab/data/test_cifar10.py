import torch

from hullo.lab.data import cifar10

RAMP = bytes(value % 251 for value in range(3072))


def test_image_record_is_a_label_and_three_color_planes():
    images, labels = cifar10.read_batches([b"\7" + RAMP + b"\2" + RAMP[::-1], b"\0" + bytes(3072)])
    assert labels.tolist() == [7, 2, 0]
    for channel, row, column in [(0, 0, 0), (0, 0, 31), (0, 1, 0), (1, 0, 0), (2, 31, 31)]:
        place = 1024 * channel + 32 * row + column
        assert images[:, channel, row, column].tolist() == [RAMP[place], RAMP[::-1][place], 0]


def test_training_batches_are_concatenated_in_order():
    contents = {file.name: bytes([place]) + RAMP for place, file in enumerate(cifar10.RELEASE.files)}
    dataset = cifar10.read("cifar10", contents.__getitem__)
    assert dataset.train_labels.tolist() == [0, 1, 2, 3, 4]
    assert dataset.test_labels.tolist() == [5]


def test_real_release_is_balanced(real):
    dataset = real("cifar10").load()
    assert dataset.train_images.shape == (50_000, 3, 32, 32)
    assert dataset.test_images.shape == (10_000, 3, 32, 32)
    assert dataset.train_images.is_contiguous()
    assert dataset.train_labels.bincount().tolist() == [5000] * 10
    assert dataset.test_labels.bincount().tolist() == [1000] * 10
    # known of old: the first training image is a frog, the first test image a cat
    assert dataset.classes[dataset.train_labels[0]] == "frog"
    assert dataset.classes[dataset.test_labels[0]] == "cat"
    # channel means that half the world normalizes by
    means = dataset.train_images.double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor([0.4914, 0.4822, 0.4465]).double(), atol=5e-5, rtol=0)
