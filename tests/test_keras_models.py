"""Test Keras models with hulls: training, saving and loading, half precision."""

import numpy as np
import pytest

pytest.importorskip("keras")

import keras

import hullo.keras
from keras_layers import BACKEND, PAPER, PARAMETRIZATIONS, network, numpy, sample, without_array_warning

pytestmark = without_array_warning


def test_fit_leaves_a_vertex_and_finds_the_function():
    layer = hullo.keras.ConvexHull(PAPER, init="identity")
    model = network(layer)
    model.compile(keras.optimizers.SGD(0.5), "mse")
    seen = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(numpy(layer.coefficients)))
    x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
    model.fit(x, 0.25 * np.tanh(x) + 0.75 * np.maximum(x, 0), epochs=100, batch_size=256, verbose=0, callbacks=[watch])
    np.testing.assert_allclose(seen[-1], [0, 0.75, 0.25], atol=1e-3)
    np.testing.assert_allclose(np.sum(seen, axis=-1), 1, atol=1e-6)
    assert np.min(seen) >= 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"bases": PAPER},
        {"bases": ["leaky_relu(0.2)", "gelu"], "strict": False, "init": "gelu", "axis": 1, "groups": 2},
        {"bases": PAPER, "init": np.eye(3)[[0, 1, 2, 2]], "groups": 4, "dtype": "mixed_bfloat16"},
        {"bases": ["tanh"]},
    ][: 4 if BACKEND == "torch" else 2],
)
@pytest.mark.parametrize(("name", "parametrization"), PARAMETRIZATIONS)
def test_saved_model_loads_with_equal_outputs(name, parametrization, arguments, tmp_path):
    if parametrization in ("softmax", "softplus") and len(arguments["bases"]) > 1:
        arguments = {**arguments, "init": None}
    layer = getattr(hullo.keras, name)(**arguments, parametrization=parametrization, name="act")
    model = network(layer)
    x = sample((8, 4))[0]
    layer.raw.assign(layer.raw.numpy() + np.linspace(0, 1, layer.raw.numpy().size).reshape(layer.raw.shape))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config() == loaded.get_layer("act").get_config()
    assert repr(again) == repr(layer)


@pytest.mark.parametrize(
    "other", [{"bases": ["identity", "relu", "sin"]}, {"parametrization": "softmax"}, {"groups": 4}]
)
def test_weights_of_another_hull_are_rejected(other, tmp_path):
    saved = network(hullo.keras.ConvexHull(**{"bases": PAPER, **other}))
    model = network(hullo.keras.ConvexHull(PAPER, init="tanh", name="act"))
    saved.save_weights(tmp_path / "it.weights.h5")
    with pytest.raises(ValueError, match=r"was saved by 'convex\(.*'; this layer is 'convex\(identity,relu,tanh\)"):
        model.load_weights(tmp_path / "it.weights.h5")
    np.testing.assert_array_equal(numpy(model.get_layer("act").coefficients), [0, 0, 1])


def test_weights_of_another_layer_are_rejected(tmp_path):
    network(keras.layers.PReLU()).save_weights(tmp_path / "it.weights.h5")
    with pytest.raises(ValueError, match=r"convex_hull.* was saved by"):
        network(hullo.keras.ConvexHull(PAPER)).load_weights(tmp_path / "it.weights.h5")
    saved = network(keras.layers.Dense(4, activation=keras.layers.PReLU()))
    saved(sample((2, 4))[0])
    saved.save_weights(tmp_path / "dense.weights.h5")
    model = network(keras.layers.Dense(4, activation=hullo.keras.ConvexHull(PAPER, name="act")))
    with pytest.raises(ValueError, match=r"act was saved by .another layer.*; this layer is .convex"):
        model.load_weights(tmp_path / "dense.weights.h5")


def test_hull_that_layers_share_is_saved_and_loaded(tmp_path):
    shared = hullo.keras.AffineHull(PAPER, lr_scale=2)
    model = network(*(keras.layers.Dense(4, activation=shared) for _ in range(2)), keras.layers.Dense(4))
    model.compile("adam", "mse")
    x, y = sample((8, 4))
    model.fit(x, y, verbose=0)
    shared.coefficients = [0.5, 0.75, -0.25]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(loaded(x)), numpy(model(x)), rtol=1e-6, atol=1e-6)
    assert loaded.layers[0].activation is loaded.layers[1].activation
    assert loaded.layers[0].activation is not shared
    for each in (model, loaded):
        each.fit(x, y, shuffle=False, verbose=0)
    np.testing.assert_allclose(numpy(loaded(x)), numpy(model(x)), rtol=1e-5, atol=1e-5)


def test_weights_of_a_shared_hull_are_rejected_by_separate_ones(tmp_path):
    def model(*hulls):
        return network(*(keras.layers.Dense(4, activation=hull) for hull in hulls))

    hulls = [hullo.keras.AffineHull(PAPER, name=name) for name in ("first", "second", "shared")]
    model(hulls[2], hulls[2]).save_weights(tmp_path / "it.weights.h5")
    with pytest.raises(ValueError, match=r"second was saved by"):
        model(*hulls[:2]).load_weights(tmp_path / "it.weights.h5")


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "bfloat16"])
def test_half_precision_computes_in_float32_and_keeps_float32_coefficients(policy):
    half, start = policy.removeprefix("mixed_"), [3.1, -1.4, -0.7]  # not representable in halves
    layer = hullo.keras.AffineHull(PAPER, init=start, dtype=policy)
    x = keras.ops.cast(sample((8, 4))[0], half)
    wide = hullo.keras.AffineHull(PAPER, init=start)(keras.ops.cast(x, "float32"))
    y = layer(x)
    assert layer.raw.dtype == "float32"
    assert keras.backend.standardize_dtype(y.dtype) == half
    np.testing.assert_array_equal(
        numpy(keras.ops.cast(y, "float32")), numpy(keras.ops.cast(keras.ops.cast(wide, half), "float32"))
    )


def test_masks_are_propagated():
    model = keras.Sequential([keras.Input((3, 4)), keras.layers.Masking(), hullo.keras.AffineHull(PAPER)])
    x = keras.ops.convert_to_tensor(np.array([[[1.0] * 4, [0.0] * 4, [2.0] * 4]], dtype="float32"))
    assert numpy(model(x)._keras_mask).tolist() == [[True, False, True]]


@pytest.mark.skipif(BACKEND != "torch", reason="other backends export by packages of their own")
@pytest.mark.filterwarnings("ignore")  # the exporter's own
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("name", "parametrization"), PARAMETRIZATIONS)
def test_onnx_keeps_the_values_for_any_batch(name, parametrization, groups, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    start = [0.2, 0.3, 0.5]
    model = network(
        keras.layers.Dense(4),
        getattr(hullo.keras, name)(PAPER, parametrization=parametrization, groups=groups, init=start),
    )
    x = sample((5, 4))[0]
    y = numpy(model(x))
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {session.get_inputs()[0].name: x})[0], y, rtol=1e-5, atol=1e-6)


def decay(model):
    """Take a training step with zero gradients: only weight decay can change weights."""
    zeros = np.zeros((8, 4), dtype="float32")
    model.fit(zeros, zeros, verbose=0)
    return numpy(model.get_layer("act").coefficients).tolist()


@pytest.mark.parametrize("excluded", [True, False])
def test_excluded_coefficients_have_no_weight_decay(excluded, tmp_path):
    start = [2.0, 0.0, -1.0]
    model = network(keras.layers.Dense(4), hullo.keras.AffineHull(PAPER, init=start, name="act"))
    model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.5), "mse")
    if excluded:
        model.optimizer.exclude_from_weight_decay(var_names=["raw_coefficients"])
    assert (decay(model) == start) == excluded
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    if excluded:
        loaded.optimizer.exclude_from_weight_decay(var_names=["raw_coefficients"])
    assert (decay(loaded) == start) == excluded


def kerasnet(shape, activation):
    layers = keras.layers
    blocks = [
        layer
        for width in (32, 64)
        for layer in (
            layers.Conv2D(width, 3, padding="same"),
            activation(),
            layers.Conv2D(width, 3),
            activation(),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25),
        )
    ]
    head = [layers.Flatten(), layers.Dense(512), activation(), layers.Dropout(0.5), layers.Dense(10)]
    return keras.Sequential([keras.Input(shape), *blocks, *head])


@pytest.mark.parametrize(("shape", "parameters"), [((28, 28, 1), 889_834), ((32, 32, 3), 1_250_858)])
def test_kerasnet_has_the_papers_parameters_and_a_hull_adds_its_coefficients(shape, parameters):
    assert kerasnet(shape, keras.layers.ReLU).count_params() == parameters
    model = kerasnet(shape, lambda: hullo.keras.AffineHull(PAPER))
    assert model.count_params() == parameters + 5 * 3
    assert model.output_shape == (None, 10)
