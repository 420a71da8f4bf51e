import pytest
import torch

from hullo.lab.data import RELEASES, find, load


def test_data_sets_match_the_command_line():
    assert list(RELEASES) == ["fashion-mnist", "cifar10", "fashion-mnist-sample"]


@pytest.mark.parametrize("function", [find, load])
def test_unknown_name_is_rejected_with_valid_ones(function):
    with pytest.raises(
        ValueError, match="unknown data set 'mnist'; available: fashion-mnist, cifar10, fashion-mnist-s"
    ):
        function("mnist")


@pytest.mark.gpu
def test_data_set_is_loaded_onto_the_device_as_uint8():
    dataset = load("fashion-mnist-sample", device="cuda")
    assert dataset.train_images.is_cuda
    assert dataset.train_images.dtype == torch.uint8
