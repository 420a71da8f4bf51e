"""Test that Keras layers accept and reject the arguments of the PyTorch modules, and their repr."""

import numpy as np
import pytest

pytest.importorskip("keras")

import keras

import hullo.keras
from keras_layers import HULLS, PAPER, numpy, without_array_warning

pytestmark = without_array_warning


@pytest.mark.parametrize("name", HULLS)
@pytest.mark.parametrize(
    ("bases", "arguments"),
    [
        (["identity", "rellu"], {}),
        (["relu", "relu"], {}),
        (["relu", "leaky_relu", "identity"], {}),
        (["gelu"], {"strict": True}),
        ([], {}),
        ([3], {}),
        (PAPER, {"init": [0.5, float("nan"), 0.5]}),
        (PAPER, {"init": [0.5, 0.5]}),
        (PAPER, {"init": "elu"}),
        (PAPER, {"init": [[1.0, 0.0], [1.0]]}),
        (PAPER, {"init": ["a", "b", "c"]}),
        (PAPER, {"init": [[1.0, 0.0, 0.0]] * 3, "groups": 2}),
        (PAPER, {"groups": 0}),
        (PAPER, {"groups": 2.0}),
    ],
)
def test_bad_arguments_raise_the_errors_of_pytorch(name, bases, arguments):
    with pytest.raises((ValueError, TypeError)) as expected:
        getattr(hullo, name)(*bases, **arguments)
    with pytest.raises(expected.type) as actual:
        getattr(hullo.keras, name)(bases, **arguments)
    assert str(actual.value) == str(expected.value)


def test_base_without_a_formula_is_rejected():
    own = hullo.add_base("own", lambda x: x + x * x * x)
    with pytest.raises(ValueError, match=r"'own'.*formula"):
        hullo.keras.AffineHull(["relu", own])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((None, 5), r"5 channels \(dimension -1 of \(None, 5\)\) .* 2 equal groups"),
        ((None, None), "no fixed number of channels"),
        ((), r"x of shape \(\) has no dimension -1"),
    ],
)
def test_indivisible_channels_are_rejected_by_build(shape, message):
    with pytest.raises(ValueError, match=message):
        hullo.keras.AffineHull(PAPER, groups=2).build(shape)


def test_integers_are_rejected():
    with pytest.raises(TypeError, match=r"floating-point.*int32"):
        hullo.keras.AffineHull(PAPER)(keras.ops.convert_to_tensor([[1, 2]], dtype="int32"))


@pytest.mark.parametrize("name", HULLS)
def test_coefficients_can_be_set_and_invalid_ones_change_nothing(name):
    layer = getattr(hullo.keras, name)(PAPER, groups=2, lr_scale=4)
    layer.coefficients = "relu"
    np.testing.assert_array_equal(numpy(layer.coefficients), [[0, 1, 0]] * 2)
    layer.coefficients = [0.25, 0.5, 0.25]
    with pytest.raises(ValueError, match="finite"):
        layer.coefficients = [1.0, np.nan, 0.0]
    if name in ("ConvexHull", "AffineHull"):
        with pytest.raises(ValueError, match="sum to one"):
            layer.coefficients = [1.0, 1.0, 0.0]
    np.testing.assert_allclose(numpy(layer.coefficients), [[0.25, 0.5, 0.25]] * 2, atol=1e-7)
    other = getattr(hullo.keras, name)(PAPER, groups=2, init=layer.coefficients)
    np.testing.assert_allclose(numpy(other.coefficients), [[0.25, 0.5, 0.25]] * 2, atol=1e-7)


def test_repr_matches_the_constructor():
    assert repr(hullo.keras.AffineHull(["relu", "elu(2)"], strict=False)) == "AffineHull(['relu', 'elu(2)'])"
    layer = hullo.keras.ConvexHull(["identity"], groups=3, axis=1, parametrization="softmax")
    assert repr(layer) == "ConvexHull(['identity'], groups=3, axis=1, parametrization='softmax')"
