import pytest
import torch

from hullo.lab.data import RELEASES, find, load


def test_the_names_are_those_of_the_command_line():
    assert list(RELEASES) == ["fashion-mnist", "cifar10", "fashion-mnist-sample"]


@pytest.mark.parametrize("function", [find, load])
def test_an_unknown_name_is_refused_with_those_there_are(function):
    with pytest.raises(
        ValueError, match="unknown data set 'mnist'; available: fashion-mnist, cifar10, fashion-mnist-s"
    ):
        function("mnist")


@pytest.mark.gpu
def test_a_data_set_is_loaded_onto_the_device_as_bytes():
    dataset = load("fashion-mnist-sample", device="cuda")
    assert dataset.train_images.is_cuda
    assert dataset.train_images.dtype == torch.uint8
