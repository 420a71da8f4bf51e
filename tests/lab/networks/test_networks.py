"""Test the networks against the paper (parameters) and against Keras (values)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hullo
from hullo.lab import networks
from hullo.lab.networks.resnet56 import ResNet
from hullo.lab.spec import paper
from hullo.lab.spec.activation import ActivationSpec

FASHION_MNIST = {"in_channels": 1, "image_size": 28}
CIFAR10 = {"in_channels": 3, "image_size": 32}


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


class TestCounts:
    @pytest.mark.parametrize(
        ("name", "images", "expected"),
        [
            ("lenet5", FASHION_MNIST, 431_080),
            ("lenet5", CIFAR10, 657_080),
            ("kerasnet", FASHION_MNIST, 889_834),
            ("kerasnet", CIFAR10, 1_250_858),
            ("resnet56", CIFAR10, 857_706),
        ],
    )
    def test_number_of_parameters_matches_the_paper(self, name: str, images: dict[str, int], expected: int) -> None:
        assert count(networks.build(name, activation="relu", **images)) == expected

    @pytest.mark.parametrize(("name", "layers"), [("lenet5", 3), ("kerasnet", 5), ("resnet56", 55)])
    def test_hull_adds_its_coefficients(self, name: str, layers: int) -> None:
        fixed = networks.build(name, activation="tanh")
        learned = networks.build(name, activation="convex(identity,relu,tanh)")
        assert count(learned) == count(fixed) + 3 * layers
        assert sum(isinstance(module, hullo.Hull) for module in learned.modules()) == layers

    def test_learned_parameters_of_members_are_counted(self) -> None:
        counts = [count(networks.build("lenet5", activation=row)) for row in paper.ROWS]
        assert counts == [657_080 + 3 * n for n in (0, 0, 0, 0, 2, 2, 2, 3, 2, 2, 2, 3)]


class TestStart:
    def test_weights_are_glorot_uniform_and_biases_zero(self) -> None:
        network = networks.build("kerasnet", activation="relu")
        for layer in network.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                outputs, inputs = layer.weight.shape[:2]
                limit = (6 / ((inputs + outputs) * layer.weight[0, 0].numel())) ** 0.5
                assert not layer.bias.any()
                assert 0.98 * limit < layer.weight.abs().max() < 1.001 * limit
                assert layer.weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.1)

    def test_weights_of_he_are_normal_and_biases_zero(self) -> None:
        for layer in networks.build("resnet56_he", activation="relu").modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                weights = layer.weight.flatten() * (layer.weight[0].numel() / 2) ** 0.5
                assert not layer.bias.any()
                tail = 5 * (0.046 / len(weights)) ** 0.5
                assert (weights.abs() > 2).float().mean().item() == pytest.approx(0.0455, abs=tail)  # uniform: none

    def test_weights_depend_only_on_the_seed(self) -> None:
        torch.manual_seed(4)
        before = torch.random.get_rng_state()
        one, other, third = (networks.build("lenet5", activation="relu", seed=seed) for seed in (1, 1, 2))
        assert torch.random.get_rng_state().equal(before)
        assert one.linear1.weight.equal(other.linear1.weight)
        assert not one.linear1.weight.equal(third.linear1.weight)


# The same networks in Keras; inputs and kernels have their channels last there.


def keras_lenet5(layers: Any, x: Any) -> Any:
    x = layers.MaxPooling2D()(layers.Conv2D(20, 5, activation="tanh")(x))
    x = layers.MaxPooling2D()(layers.Conv2D(50, 5, activation="tanh")(x))
    return layers.Dense(10)(layers.Dense(500, activation="tanh")(layers.Flatten()(x)))


def keras_kerasnet(layers: Any, x: Any) -> Any:
    for filters in (32, 64):
        x = layers.Conv2D(filters, 3, padding="same", activation="tanh")(x)
        x = layers.Conv2D(filters, 3, activation="tanh")(x)
        x = layers.Dropout(0.25)(layers.MaxPooling2D()(x))
    x = layers.Dense(512, activation="tanh")(layers.Flatten()(x))
    return layers.Dense(10)(layers.Dropout(0.5)(x))


def keras_resnet8(layers: Any, x: Any) -> Any:
    x = layers.Conv2D(16, 3, padding="same")(x)
    x = layers.Activation("tanh")(layers.BatchNormalization()(x))
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        y = layers.Conv2D(filters, 3, strides=strides, padding="same")(x)
        y = layers.Activation("tanh")(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(y))
        if strides > 1:
            x = layers.Conv2D(filters, 1, strides=strides, padding="same")(x)
        x = layers.Activation("tanh")(layers.add([x, y]))
    x = layers.AveragePooling2D(pool_size=x.shape[1])(x)
    return layers.Dense(10)(layers.Flatten()(x))


def resnet8(activation: str = "tanh", **sizes: int) -> nn.Module:
    return ResNet(ActivationSpec.parse(activation).module, n=1, **sizes)


def keras_weights(network: nn.Module) -> Iterator[list[Tensor]]:
    """Yield the weights of each layer as Keras holds them, in the order in which the layers stand in the network."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            yield [layer.weight.permute(2, 3, 1, 0), layer.bias]
        elif isinstance(layer, nn.Linear):
            yield [layer.weight.T, layer.bias]
        elif isinstance(layer, nn.BatchNorm2d):
            yield [layer.weight, layer.bias, layer.running_mean, layer.running_var]


def copy_to_keras(network: nn.Module, model: Any) -> None:
    """Copy weights layer by layer: layers of one kind have the same order in both networks."""
    for shape in ({4}, {2}, {1}):
        ours = [weights for weights in keras_weights(network) if {weights[0].dim()} == shape]
        theirs = [layer for layer in model.layers if layer.weights and {len(layer.weights[0].shape)} == shape]
        for weights, layer in zip(ours, theirs, strict=True):
            layer.set_weights([weight.detach().numpy() for weight in weights])


# Keras turns PyTorch's tensors into arrays in a way that NumPy no longer likes.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: networks.build("lenet5", activation="tanh"), keras_lenet5),
        (lambda: networks.build("kerasnet", activation="tanh"), keras_kerasnet),
        (resnet8, keras_resnet8),
    ],
    ids=["lenet5", "kerasnet", "resnet8"],
)
def test_logits_match_keras(ours: Callable[[], nn.Module], theirs: Callable[[Any, Any], Any]) -> None:
    keras = pytest.importorskip("keras")
    network = ours()
    for module in network.modules():  # nothing stays at a value that would hide a mistake
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean, std=0.3)
        if isinstance(module, nn.BatchNorm2d | nn.Conv2d | nn.Linear):
            nn.init.normal_(module.bias, std=0.3)
    inputs = keras.Input((32, 32, 3))
    model = keras.Model(inputs, theirs(keras.layers, inputs))
    norms = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert [layer.p for layer in network.modules() if isinstance(layer, nn.Dropout)] == [
        layer.rate for layer in model.layers if isinstance(layer, keras.layers.Dropout)
    ]
    assert [(1 - norm.momentum, norm.eps) for norm in norms] == [
        (layer.momentum, layer.epsilon) for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)
    ]
    copy_to_keras(network, model)
    images = torch.rand(4, 3, 32, 32)
    expected = model(images.permute(0, 2, 3, 1).numpy(), training=False)
    logits = network.eval()(images).detach()
    torch.testing.assert_close(logits, torch.as_tensor(keras.ops.convert_to_numpy(expected)), rtol=1e-4, atol=1e-4)
    assert sum(p.numel() for p in network.parameters()) == model.count_params() - sum(
        weight.numel() for layer in keras_weights(network) if len(layer) == 4 for weight in layer[2:]
    )


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"name": "vgg"}, r"unknown network 'vgg'; available: lenet5, "),
            ({"image_size": 15}, r"image_size=15: lenet5 needs images of at least 16 pixels"),
            ({"activation": "rellu"}, r"invalid activation 'rellu'"),
        ],
    )
    def test_invalid_network_is_rejected_with_valid_ones(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            networks.build(**({"name": "lenet5", "activation": "relu"} | options))

    @pytest.mark.parametrize(("name", "smallest"), [("lenet5", 16), ("kerasnet", 10)])
    def test_smallest_valid_images_leave_one_pixel(self, name: str, smallest: int) -> None:
        network = networks.build(name, activation="relu", image_size=smallest)
        assert network(torch.zeros(1, 3, smallest, smallest)).shape == (1, 10)
