"""Test replacing, listing and folding activations of existing Keras models."""

import numpy as np
import pytest
import torch

pytest.importorskip("keras")

import keras

import hullo
import hullo.keras
from keras_layers import numpy, without_array_warning

pytestmark = without_array_warning
layers = keras.layers


def branching():
    """Return a functional model with a nested one, activation layers, and activations of other layers."""
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(5, activation="silu"), layers.LeakyReLU(0.3)])
    x = keras.Input((8, 8, 2))
    y = layers.Conv2D(4, 3, activation="relu", name="conv")(x)
    y = layers.BatchNormalization()(y)
    y = layers.Activation("tanh", name="tanh")(layers.Flatten()(y))
    y = inner(layers.Dense(6, activation="elu")(y)) + layers.Dense(5)(y)
    return keras.Model(x, layers.Dense(3, activation="softmax")(y))


def sample(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def test_replaced_model_has_equal_outputs_and_is_saved_and_loaded(tmp_path):
    model, x = branching(), sample(2, 8, 8, 2)
    swapped = hullo.keras.replace_activations(model)
    np.testing.assert_allclose(numpy(swapped(x)), numpy(model(x)), rtol=1e-4, atol=1e-5)
    table = hullo.keras.summary(swapped).splitlines()
    assert len(table) == 5
    assert table[0].split() == ["conv", "affine(identity,relu,tanh)", "0", "1", "0"]
    assert "affine(identity,tanh,silu)" in "".join(table)
    swapped.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(loaded(x)), numpy(swapped(x)), rtol=1e-6, atol=1e-6)


def test_fold_restores_keras_activations_and_freezes_mixtures():
    model, x = branching(), sample(2, 8, 8, 2)
    swapped = hullo.keras.replace_activations(model)
    folded = hullo.keras.fold(swapped)
    np.testing.assert_allclose(numpy(folded(x)), numpy(model(x)), rtol=1e-4, atol=1e-5)
    assert hullo.keras.summary(folded) == ""
    assert folded.count_params() == model.count_params()
    swapped.get_layer("conv").activation.coefficients = [0.5, 0.25, 0.25]
    mixed = hullo.keras.fold(swapped)
    np.testing.assert_allclose(numpy(mixed(x)), numpy(swapped(x)), rtol=1e-4, atol=1e-5)
    assert hullo.keras.summary(mixed) == "conv  affine(identity,relu,tanh)  0.5 0.25 0.25"
    assert not mixed.get_layer("conv").activation.trainable_variables


@pytest.mark.parametrize("other", ["identity", "tanh"])
def test_fold_keeps_groups_that_differ(other):
    rows = [[1.0, 0.0], [0.0, 1.0]]
    for init in (rows, rows[::-1]):  # neither the first group nor the last decides for all
        act = hullo.keras.ConvexHull(["relu", other], init=init, groups=2)
        model = keras.Sequential([keras.Input((6,)), act])
        folded, x = hullo.keras.fold(model), sample(5, 6)
        np.testing.assert_allclose(numpy(folded(x)), numpy(model(x)), rtol=1e-6, atol=1e-7)
        assert not folded.trainable_variables


def test_copies_train_without_the_original_and_a_second_swap_is_refused():
    model, x = keras.Sequential([keras.Input((3,)), layers.Dense(2, activation="relu")]), sample(4, 3)
    before = numpy(model(x))
    swapped = hullo.keras.replace_activations(model)
    folded = hullo.keras.fold(swapped)
    swapped.compile("sgd", "mse")
    swapped.fit(x, sample(4, 2), epochs=2, verbose=0)  # JAX deletes the arrays that it updates
    np.testing.assert_allclose(numpy(model(x)), before, rtol=1e-6)
    np.testing.assert_allclose(numpy(folded(x)), before, rtol=1e-6)
    with pytest.raises(ValueError, match="one that is not a hull yet"):
        hullo.keras.replace_activations(swapped)


def test_recurrent_layers_and_gates_are_not_replaced():
    inputs = [keras.Input((4, 3)), layers.LSTM(5), layers.Dense(4, activation="relu"), layers.Dense(1, "sigmoid")]
    swapped = hullo.keras.replace_activations(keras.Sequential(inputs), bases=["identity", "relu"])
    assert len(hullo.keras.summary(swapped).splitlines()) == 1
    assert swapped.layers[1].activation.spelling == "affine(identity,relu)"


@keras.saving.register_keras_serializable("test")
def clipped(x):
    return keras.activations.relu(x, max_value=20.0)


@keras.saving.register_keras_serializable("test")
def of_the_batch(x):
    return keras.ops.relu(x) * (1 + keras.ops.std(x, axis=0, keepdims=True))


@keras.saving.register_keras_serializable("test")
def of_the_features(x):
    return keras.ops.relu(x) * (1 + keras.ops.std(x, axis=1, keepdims=True))


@pytest.mark.parametrize("function", [clipped, of_the_batch, of_the_features])
def test_functions_that_equal_relu_only_on_some_inputs_are_not_replaced(function):
    layers = [keras.Input((4,)), keras.layers.Dense(4, activation=function), keras.layers.Dense(4, activation="tanh")]
    model = hullo.keras.replace_activations(keras.Sequential(layers))
    assert model.layers[0].activation is function
    assert isinstance(model.layers[1].activation, hullo.keras.AffineHull)


def test_hull_has_the_activity_regularizer_of_its_layer():
    layers = [keras.Input((4,)), keras.layers.Activation("relu", activity_regularizer="l2")]
    model, x = keras.Sequential(layers), np.ones((2, 4), "float32")
    swapped = hullo.keras.replace_activations(model)
    folded = hullo.keras.fold(swapped)
    losses = []
    for copy in (model, swapped, folded):
        copy(x)
        losses.append([float(numpy(loss)) for loss in copy.losses])
    assert losses == [pytest.approx([0.04])] * 3


def test_hulls_of_frozen_layers_are_frozen(tmp_path):
    frozen = keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.ReLU(), layers.Dense(8, activation="relu")])
    frozen.trainable = False
    model = keras.Sequential([keras.Input((6,)), frozen, layers.Dense(4, activation="tanh"), layers.Dense(1)])
    swapped = hullo.keras.replace_activations(model)
    swapped.save(tmp_path / "model.keras")
    for copy in (swapped, keras.saving.load_model(tmp_path / "model.keras")):
        assert len(copy.trainable_weights) == len(model.trainable_weights) + 1
        hulls = [layer for layer in copy._flatten_layers() if isinstance(layer, hullo.keras.AffineHull)]
        assert sorted(layer.trainable for layer in hulls) == [False, False, True]


def test_rounding_errors_are_not_printed():
    act = hullo.keras.AffineHull(["relu", "tanh"], init=[1 + 2e-8, -2e-8], name="act")
    assert hullo.keras.summary(keras.Sequential([keras.Input((4,)), act])) == "act  affine(relu,tanh)  1 0"


def test_functions_for_pytorch_name_those_for_keras():
    act = hullo.keras.AffineHull(["relu", "tanh"])
    model = keras.Sequential([keras.Input((4,)), act])
    for function in (hullo.replace_activations, hullo.summary, hullo.fold):
        with pytest.raises(TypeError, match=r"not a Sequential; see hullo\.keras"):
            function(model)
    for function in (hullo.plot, hullo.parameter_groups):
        with pytest.raises(TypeError, match=r"not a Sequential; see hullo\.keras"):
            function(model)
    plain = keras.Sequential([keras.Input((4,)), layers.Dense(2, activation="relu")])
    for hull in (hullo.AffineHull, act, "affine"):
        with pytest.raises(TypeError, match=r"hull=.*hullo\.keras"):
            hullo.keras.replace_activations(plain, hull=hull)


def test_unsupported_models_are_rejected():
    plain = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    with pytest.raises(ValueError, match="no activation"):
        hullo.keras.replace_activations(plain)
    with pytest.raises(TypeError, match="got a AffineHull: give a Keras model"):
        hullo.keras.summary(hullo.AffineHull("relu"))
    with pytest.raises(ValueError, match="no hulls to fold"):
        hullo.keras.fold(plain)
    with pytest.raises(ValueError, match="not built"):
        hullo.keras.replace_activations(keras.Sequential([layers.Dense(2, activation="relu")]))
    with pytest.raises(ValueError, match=r"is gelu, .* relu, tanh"):
        hullo.keras.replace_activations(
            keras.Sequential([keras.Input((4,)), layers.Dense(2, activation="gelu")]), bases=["relu", "tanh"]
        )
    with pytest.raises(TypeError, match="Dense"):
        hullo.keras.replace_activations(layers.Dense(2))


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_lr_scale_multiplies_coefficient_updates(scale, tmp_path):
    act = hullo.keras.LinearHull(["identity"], init=[1.0], lr_scale=scale)
    model = keras.Sequential([keras.Input((4,)), act])
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    x = sample(8, 4)
    model.fit(x, 3 * x, epochs=1, batch_size=8, verbose=0)
    assert numpy(act.coefficients)[0] == pytest.approx(1 + 1e-3 * scale, rel=1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").layers[0]
    assert numpy(loaded.coefficients)[0] == pytest.approx(1 + 1e-3 * scale, rel=1e-4)
    with pytest.raises(ValueError, match="lr_scale=0"):
        hullo.keras.LinearHull(["identity"], lr_scale=0)


def test_to_torch_has_the_same_coefficients_and_properties():
    act = hullo.keras.ConvexHull(["identity", "relu"], init=[[0.25, 0.75], [1.0, 0.0]], groups=2, lr_scale=4)
    twin = act.to_torch()
    np.testing.assert_allclose(twin.coefficients.tolist(), [[0.25, 0.75], [1, 0]])
    assert [item.name for item in hullo.identify(twin)] == ["leaky_relu(0.25)", "identity"]
    x = sample(3, 5, 4)
    np.testing.assert_allclose(twin(torch.tensor(x)).detach(), numpy(act(x)), rtol=1e-6, atol=1e-6)


def test_summary_shows_the_range_over_groups():
    act = hullo.keras.AffineHull(["relu", "tanh"], init=[[0.25, 0.75], [1.5, -0.5]], groups=2, name="act")
    shown = hullo.keras.summary(keras.Sequential([keras.Input((4,)), act]))
    assert shown == "act  affine(relu,tanh)  0.25..1.5 -0.5..0.75"


def test_layers_of_other_types_are_replaced_and_keep_their_type():
    for policy in ["mixed_bfloat16", *(["float64"] if keras.backend.backend() == "torch" else [])]:
        parts = [
            layers.Dense(6, activation="gelu", dtype=policy),
            layers.ReLU(dtype=policy),
            layers.LeakyReLU(dtype=policy),
        ]
        model = keras.Sequential([keras.Input((4,)), *parts])
        swapped = hullo.keras.replace_activations(model)
        assert len(hullo.keras.summary(swapped).splitlines()) == 3
        x = sample(3, 4)
        assert str(swapped(x).dtype) == str(model(x).dtype)
        np.testing.assert_allclose(numpy(swapped(x)).astype("float64"), numpy(model(x)).astype("float64"), rtol=1e-2)


@keras.saving.register_keras_serializable(package="hullo-tests")
class Standardized(layers.Layer):
    """Standardize inside a layer, with values that are derived from weights."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = layers.Normalization()

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)


def assert_tools_keep_outputs(model, x, rtol=1e-4):
    """Compare a model's outputs with those of its copies; return the copies."""
    swapped = hullo.keras.replace_activations(model)
    folded = hullo.keras.fold(swapped)
    expected = model.predict(x, verbose=0)
    for copy in (swapped, folded):
        np.testing.assert_allclose(copy.predict(x, verbose=0), expected, rtol=rtol, atol=0.1 * rtol)
    return swapped, folded


@pytest.mark.parametrize("nested", [False, True])
def test_copies_keep_values_that_layers_derive_from_weights(nested):
    x = 5 + 3 * sample(64, 4)
    first = Standardized() if nested else layers.Normalization()
    model = keras.Sequential([keras.Input((4,)), first, layers.Dense(3, activation="relu")])
    (first.inner if nested else first).adapt(x)
    assert_tools_keep_outputs(model, x)


def test_activations_inside_wrappers_are_replaced_and_folded():
    block = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh"), layers.LeakyReLU(0.3)])
    parts = [layers.Dense(6, activation="relu"), layers.Activation("elu"), block]
    model = keras.Sequential([keras.Input((5, 3)), *map(layers.TimeDistributed, parts)])
    model.add(layers.SpectralNormalization(layers.Dense(2, activation="silu")))
    x = sample(4, 5, 3)
    model(x, training=True)  # changes the state of the wrapper
    swapped, folded = assert_tools_keep_outputs(model, x)
    assert len(hullo.keras.summary(swapped).splitlines()) == 5
    assert hullo.keras.summary(folded) == ""
    assert folded.count_params() == model.count_params()


@keras.saving.register_keras_serializable(package="hullo-tests")
class Renamed(layers.TimeDistributed):
    """Wrap a layer, with a configuration of its own."""

    def get_config(self):
        config = super().get_config()
        return {"wrapped": config.pop("layer"), **config}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config.pop("wrapped")), **config)


@pytest.mark.parametrize(
    "around",
    [
        lambda act: layers.TimeDistributed(layers.Dense(4, activation=act)),
        lambda act: layers.Bidirectional(layers.SimpleRNN(4, activation=act)),
        lambda act: Renamed(layers.Dense(4, activation=act)),
    ],
)
def test_fold_freezes_hulls_inside_other_layers(around):
    act = hullo.keras.AffineHull(["identity", "relu", "tanh"])
    model = keras.Sequential([keras.Input((5, 3)), around(act)])
    for _, hull in hullo.keras.models.named_hulls(model):
        hull.coefficients = [0.5, 0.75, -0.25]
    model.compile("sgd", "mse")
    x = sample(4, 5, 3)
    folded = hullo.keras.fold(model)
    np.testing.assert_allclose(folded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    table = hullo.keras.summary(folded)
    folded.fit(x, folded.predict(x, verbose=0) + 1, verbose=0)
    assert hullo.keras.summary(folded) == table
    assert not any("raw_coefficients" in weight.path for weight in folded.trainable_variables)


def test_functions_inside_layers_that_are_copied_as_they_are_are_not_replaced():
    parts = [layers.Bidirectional(layers.SimpleRNN(4, activation="relu", return_sequences=True))]
    parts += [Renamed(layers.Dense(4, activation="relu")), layers.TimeDistributed(layers.LSTM(3))]
    model = keras.Sequential([keras.Input((5, 3)), *parts[:2], layers.Reshape((5, 2, 2)), parts[2]])
    with pytest.raises(ValueError, match="no activation"):
        hullo.keras.replace_activations(model)


def test_hulls_and_wrapped_layers_that_are_shared_stay_shared():
    act = hullo.keras.AffineHull(["identity", "relu", "tanh"])
    dense = layers.Dense(3, activation=act)
    x = keras.Input((5, 3))
    y = layers.TimeDistributed(dense)(x) + dense(layers.Dense(3, activation=act)(layers.ReLU()(x)))
    model = keras.Model(x, layers.SimpleRNN(3, activation=act)(y))
    act.coefficients = [0.5, 0.75, -0.25]
    swapped, _ = assert_tools_keep_outputs(model, sample(4, 5, 3))
    # The new hull adds 3 coefficients, and the recurrent layer, which is copied as it is, has 3 of its own.
    assert swapped.count_params() == model.count_params() + 6


def test_quantized_model_gets_hulls_that_are_not_quantized():
    for policy, rtol in (("float32", 1e-4), ("mixed_bfloat16", 2e-2)):
        parts = [layers.Dense(8, activation="relu", dtype=policy), layers.Dense(3, activation="tanh", dtype=policy)]
        model = keras.Sequential([keras.Input((4,)), *parts])
        for part in parts:
            part.bias.assign(sample(part.units))
            part.quantize("int8")
        swapped, _ = assert_tools_keep_outputs(model, sample(8, 4), rtol)
        assert [layer.quantization_mode for layer in swapped.layers] == ["int8", "int8"]
        assert {layer.activation.dtype_policy.name for layer in swapped.layers} == {policy}


def test_weights_of_a_nested_model_of_own_code_are_copied():
    @keras.saving.register_keras_serializable(package="hullo-tests")
    class Own(keras.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    x = keras.Input((4,))
    assert_tools_keep_outputs(keras.Model(x, layers.Dense(3, activation="relu")(Own()(x))), sample(8, 4))


def test_activation_with_weights_is_not_replaced_and_the_model_is_not_changed():
    parts = [layers.Dense(3, activation=layers.PReLU()), layers.Dense(3, activation="relu")]
    model = keras.Sequential([keras.Input((4,)), *parts])
    swapped, _ = assert_tools_keep_outputs(model, sample(8, 4))
    assert isinstance(swapped.layers[0].activation, layers.PReLU)


@pytest.mark.parametrize("init", ["relu", [0.3, 0.7]])
def test_folded_activations_have_the_policies_of_their_hulls(init):
    hull = hullo.keras.ConvexHull(["identity", "relu"], init=init, dtype="mixed_bfloat16")
    folded = hullo.keras.fold(keras.Sequential([keras.Input((4,)), hull]))
    assert folded.layers[0].dtype_policy.name == "mixed_bfloat16"
    assert not isinstance(folded.layers[0], hullo.keras.ConvexHull)


def test_model_of_own_code_is_refused_where_keras_copies_its_graph_alone():
    class Doubled(keras.Sequential):
        def call(self, x, training=None, mask=None):
            return 2 * super().call(x)

    with pytest.raises(TypeError, match="is a Doubled, which Keras copies as a Sequential, without its own methods"):
        hullo.keras.replace_activations(Doubled([keras.Input((4,)), layers.Dense(2, activation="relu")]))
