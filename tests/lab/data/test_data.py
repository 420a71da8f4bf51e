import pytest
import torch

from hullo.lab.data import find, load


@pytest.mark.parametrize("function", [find, load])
def test_unknown_name_is_rejected_with_valid_ones(function):
    with pytest.raises(ValueError, match="'mnist'; available: fashion-mnist"):
        function("mnist")


@pytest.mark.gpu
def test_data_set_is_loaded_onto_the_device_as_uint8():
    dataset = load("fashion-mnist-sample", device="cuda")
    assert dataset.train_images.is_cuda
    assert dataset.train_images.dtype == torch.uint8
