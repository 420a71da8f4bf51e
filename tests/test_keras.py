"""The Keras layers, on whichever backend KERAS_BACKEND names: PyTorch here, the others in processes of their own."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import hullo
from hullo import catalogue

keras = pytest.importorskip("keras")
import hullo.keras  # noqa: E402
from hullo.keras import arithmetic  # noqa: E402

# Keras turns PyTorch's tensors into arrays in a way that NumPy no longer likes.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

BACKEND = keras.backend.backend()
PAPER = ["identity", "relu", "tanh"]
KINDS = {"convex": ("ConvexHull", ("projection", "softmax")), "affine": ("AffineHull", ("recentred", "free"))}
WAYS = [(name, keep) for name, keeps in KINDS.values() for keep in keeps]
TOLERANCE = (
    {"float32": 1e-6} if BACKEND == "jax" else {"float32": 1e-6, "float64": 1e-12}
)  # JAX has no float64 as it comes
HULLS = [name for name, _ in KINDS.values()]


def numpy(array):
    return keras.ops.convert_to_numpy(array)


def gradients(function, *arguments):
    """The gradients of a scalar function of arrays, on any backend; they can be differentiated again."""
    if BACKEND == "torch":
        arguments = [a if a.requires_grad else a.requires_grad_() for a in map(torch.as_tensor, arguments)]
        return torch.autograd.grad(function(*arguments), arguments, create_graph=True)
    if BACKEND == "jax":
        import jax

        return jax.jit(jax.grad(function, tuple(range(len(arguments)))))(*arguments)
    import tensorflow as tf

    arguments = [tf.convert_to_tensor(a) for a in arguments]
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        value = function(*arguments)
    return tape.gradient(value, arguments)


def tensor(array):
    return keras.ops.convert_to_tensor(array, dtype=array.dtype.name)


def dot(a, b):
    return keras.ops.sum(a * tensor(b))


def as_function(layer):
    """The layer as a function of x and its raw numbers."""
    return lambda x, raw: layer.stateless_call([raw], [], x)[0]


def twins(name, bases, shape, dtype="float32", axis=-1, **arguments):
    """A layer, and the module in float64 that it is held against."""
    layer = getattr(hullo.keras, name)(bases, dtype=dtype, axis=axis, **arguments)
    layer.build(shape)
    return layer, getattr(hullo, name)(*bases, channel_dim=axis, dtype=torch.float64, **arguments)


def assert_twins_agree(layer, module, x, upstream):
    tolerance = TOLERANCE[layer.compute_dtype]
    y, raw = layer(tensor(x)), layer.raw.numpy()
    dx, draw = gradients(lambda x, raw: dot(as_function(layer)(x, raw), upstream), x, raw)
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    expected = module(x)
    expected.backward(torch.tensor(upstream, dtype=torch.float64))
    np.testing.assert_allclose(numpy(y), expected.detach(), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(numpy(dx), x.grad, rtol=tolerance, atol=tolerance * np.max(np.abs(upstream), initial=0))
    np.testing.assert_allclose(numpy(draw), module.raw.grad, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(numpy(layer.coefficients), module.coefficients.detach(), atol=tolerance)


def sample(shape, dtype="float32", kinks=(0.0,)):
    """Points that include the kinks, and the upstream gradient of a mean."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, size=shape)
    x.reshape(-1)[: len(kinks)] = kinks
    return x.astype(dtype), (rng.uniform(-1, 1, size=shape) / x.size).astype(dtype)


def coefficients(rng, name, groups, n, keep=None):
    """Rows of coefficients, exact in float32; of a projection's, most lie on a face of the simplex."""
    rows = rng.multinomial(4 if keep == "projection" else 64, np.full(n, 1 / n), size=groups).astype("float64")
    rows /= rows.sum(-1, keepdims=True)
    if name == "AffineHull":
        rows = 2 * rows - np.eye(n)[0]
    return rows.tolist() if groups > 1 else rows[0].tolist()


def test_keras_has_a_meaning_for_every_word_of_a_formula():
    assert arithmetic.WORDS.keys() == catalogue.WORDS.keys()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", hullo.names())
def test_every_base_agrees_with_pytorch_per_layer_and_per_channel(name, dtype):
    x, upstream = sample((5, 3, 4), dtype, kinks=(0.0, *hullo.base(name).kinks))
    for hull, groups in (("AffineHull", 1), ("ConvexHull", 4)):
        bases = [name, "sin" if name == "asinh" else "asinh"]
        start = coefficients(np.random.default_rng(1), hull, groups, 2)
        layer, module = twins(hull, bases, x.shape, dtype, start=start, groups=groups, strict=False)
        assert_twins_agree(layer, module, x, upstream)


@pytest.mark.parametrize(("groups", "axis"), [(1, -1), (2, 1), (6, -1)])
@pytest.mark.parametrize(("name", "keep"), WAYS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_way_of_keeping_coefficients_agrees_with_pytorch(name, keep, groups, axis, dtype):
    x, upstream = sample((4, 6, 5, 6), dtype)
    bases = [*PAPER, "elu"]
    start = coefficients(np.random.default_rng(groups), name, groups, len(bases), keep)
    layer, module = twins(name, bases, x.shape, dtype, axis, start=start, groups=groups, keep=keep)
    assert_twins_agree(layer, module, x, upstream)


def test_the_projection_pulls_gradients_back_as_in_pytorch_from_every_face():
    rng = np.random.default_rng(0)
    rows = np.array(coefficients(rng, "ConvexHull", 64, 4, "projection"), dtype="float32")
    rows[:32] += rng.normal(size=(32, 4)).astype("float32")  # raw numbers off the simplex, as an optimiser leaves them
    upstream = rng.normal(size=rows.shape).astype("float32")
    project = arithmetic.COEFFICIENTS["projection"]
    (pulled,) = gradients(lambda raw: dot(project(raw), upstream), tensor(rows))
    expected = hullo.Simplex().way.pullback(*map(torch.tensor, (rows, numpy(project(tensor(rows))), upstream)))
    np.testing.assert_allclose(numpy(pulled), expected, atol=1e-6)


@pytest.mark.parametrize("name", HULLS)
def test_second_derivatives_are_those_of_the_formula(name):
    layer, module = twins(name, ["tanh", "asinh", "sin"], (5, 4), groups=4)
    x, _ = sample((5, 4))

    def penalty(x, raw):
        (dx,) = gradients(lambda x: keras.ops.sum(as_function(layer)(x, raw)), x)
        return keras.ops.sum(dx * dx)

    found = gradients(penalty, x, layer.raw.numpy())
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (dx,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    expected = torch.autograd.grad(dx.square().sum(), (x, module.raw))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(numpy(ours), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "groups"), [((0, 4), 1), ((0, 4), 4), ((4,), 1), ((4,), 4), ((2, 3, 1, 4), 4)])
def test_any_shape_goes_in_and_comes_out(shape, groups):
    layer, module = twins("AffineHull", PAPER, shape, groups=groups)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    assert_twins_agree(layer, module, x, np.ones_like(x))
    assert layer.compute_output_shape((None, *shape)) == (None, *shape)


def network(*hulls):
    return keras.Sequential([keras.Input((4,)), *hulls])


def test_fit_leaves_a_vertex_finds_the_function_and_never_leaves_the_hull():
    layer = hullo.keras.ConvexHull(PAPER, start="identity")
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
        {"bases": ["leaky_relu(0.2)", "gelu"], "strict": False, "start": "gelu", "axis": 1, "groups": 2},
        {"bases": PAPER, "start": np.eye(3)[[0, 1, 2, 2]], "groups": 4, "dtype": "mixed_bfloat16"},
        {"bases": ["tanh"]},
    ],
)
@pytest.mark.parametrize(("name", "keep"), WAYS)
def test_a_saved_model_loads_with_equal_outputs(name, keep, arguments, tmp_path):
    if keep == "softmax" and len(arguments["bases"]) > 1:
        arguments = {**arguments, "start": None}
    layer = getattr(hullo.keras, name)(**arguments, keep=keep, name="act")
    model = network(layer)
    x = sample((8, 4))[0]
    layer.raw.assign(layer.raw.numpy() + np.linspace(0, 1, layer.raw.numpy().size).reshape(layer.raw.shape))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config() == loaded.get_layer("act").get_config()
    assert repr(again) == repr(layer)


@pytest.mark.parametrize("other", [{"bases": ["identity", "relu", "sin"]}, {"keep": "softmax"}, {"groups": 4}])
def test_weights_of_another_hull_are_refused(other, tmp_path):
    saved = network(hullo.keras.ConvexHull(**{"bases": PAPER, **other}))
    model = network(hullo.keras.ConvexHull(PAPER, start="tanh", name="act"))
    saved.save_weights(tmp_path / "it.weights.h5")
    with pytest.raises(ValueError, match=r"was saved by 'convex\(.*'; this layer is 'convex\(identity,relu,tanh\)"):
        model.load_weights(tmp_path / "it.weights.h5")
    np.testing.assert_array_equal(numpy(model.get_layer("act").coefficients), [0, 0, 1])


def test_weights_of_another_layer_are_refused(tmp_path):
    network(keras.layers.PReLU()).save_weights(tmp_path / "it.weights.h5")
    with pytest.raises(ValueError, match="was saved by 'another layer'"):
        network(hullo.keras.ConvexHull(PAPER)).load_weights(tmp_path / "it.weights.h5")


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "bfloat16"])
def test_half_precision_computes_in_float32_and_keeps_float32_coefficients(policy):
    half = policy.removeprefix("mixed_")
    layer = hullo.keras.AffineHull(PAPER, start=[3.0, -1.0, -1.0], dtype=policy)
    x = keras.ops.cast(sample((8, 4))[0], half)
    wide = hullo.keras.AffineHull(PAPER, start=[3.0, -1.0, -1.0])(keras.ops.cast(x, "float32"))
    y = layer(x)
    assert layer.raw.dtype == "float32"
    assert keras.backend.standardize_dtype(y.dtype) == half
    np.testing.assert_array_equal(
        numpy(keras.ops.cast(y, "float32")), numpy(keras.ops.cast(keras.ops.cast(wide, half), "float32"))
    )


def test_masks_pass_through():
    model = keras.Sequential([keras.Input((3, 4)), keras.layers.Masking(), hullo.keras.AffineHull(PAPER)])
    x = keras.ops.convert_to_tensor(np.array([[[1.0] * 4, [0.0] * 4, [2.0] * 4]], dtype="float32"))
    assert numpy(model(x)._keras_mask).tolist() == [[True, False, True]]


def decay(model):
    """One step of training without gradients: only weight decay can move anything."""
    zeros = np.zeros((8, 4), dtype="float32")
    model.fit(zeros, zeros, verbose=0)
    return numpy(model.get_layer("act").coefficients).tolist()


@pytest.mark.parametrize("excluded", [True, False])
def test_weight_decay_leaves_coefficients_alone_if_they_are_excluded_by_name(excluded, tmp_path):
    start = [2.0, 0.0, -1.0]
    model = network(keras.layers.Dense(4), hullo.keras.AffineHull(PAPER, start=start, name="act"))
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


@pytest.mark.parametrize("name", HULLS)
@pytest.mark.parametrize(
    ("bases", "arguments"),
    [
        (["identity", "rellu"], {}),
        (["relu", "relu"], {}),
        (["relu", "leaky_relu", "identity"], {}),
        (["gelu"], {}),
        ([], {}),
        ([3], {}),
        (PAPER, {"start": [0.5, 0.4, 0.3]}),
        (PAPER, {"start": [0.5, float("nan"), 0.5]}),
        (PAPER, {"start": [0.5, 0.5]}),
        (PAPER, {"start": "elu"}),
        (PAPER, {"start": [[1.0, 0.0], [1.0]]}),
        (PAPER, {"start": ["a", "b", "c"]}),
        (PAPER, {"start": [[1.0, 0.0, 0.0]] * 3, "groups": 2}),
        (PAPER, {"groups": 0}),
        (PAPER, {"groups": 2.0}),
        (PAPER, {"keep": "division"}),
    ],
)
def test_bad_arguments_raise_the_errors_of_pytorch(name, bases, arguments):
    with pytest.raises((ValueError, TypeError)) as expected:
        getattr(hullo, name)(*bases, **arguments)
    with pytest.raises(expected.type) as found:
        getattr(hullo.keras, name)(bases, **arguments)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("bases", ["relu", None])
def test_bases_are_a_list(bases):
    with pytest.raises(TypeError, match=r"give a list, as in bases=\['identity'"):
        hullo.keras.AffineHull(bases)


def test_an_axis_is_an_index():
    with pytest.raises(ValueError, match="axis='channels_last'"):
        hullo.keras.AffineHull(PAPER, axis="channels_last")


def test_a_base_known_as_code_alone_is_refused():
    own = hullo.add_base("own", lambda x: x + x * x * x)
    with pytest.raises(ValueError, match="'own' is known to PyTorch alone"):
        hullo.keras.AffineHull(["relu", own])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((None, 5), r"5 channels \(dimension -1 of \(None, 5\)\) do not fall into 2 equal groups"),
        ((None, None), "no fixed number of channels"),
        ((), r"x of shape \(\) has no dimension -1"),
    ],
)
def test_channels_that_do_not_fall_into_groups_are_refused_when_the_layer_is_built(shape, message):
    with pytest.raises(ValueError, match=message):
        hullo.keras.AffineHull(PAPER, groups=2).build(shape)


def test_a_layer_with_groups_keeps_its_number_of_channels():
    layer = hullo.keras.AffineHull(PAPER, groups=2)
    layer(np.zeros((1, 4), dtype="float32"))
    with pytest.raises(ValueError, match=r"expected axis -1 of input shape to have value 4"):
        layer(np.zeros((1, 6), dtype="float32"))


def test_integers_are_refused():
    with pytest.raises(TypeError, match="x must be a floating-point tensor, got int32"):
        hullo.keras.AffineHull(PAPER)(keras.ops.convert_to_tensor([[1, 2]], dtype="int32"))


@pytest.mark.parametrize("name", HULLS)
def test_coefficients_can_be_set_and_a_value_off_the_hull_changes_nothing(name):
    layer = getattr(hullo.keras, name)(PAPER, groups=2)
    layer.coefficients = "relu"
    np.testing.assert_array_equal(numpy(layer.coefficients), [[0, 1, 0]] * 2)
    layer.coefficients = [0.25, 0.5, 0.25]
    with pytest.raises(ValueError, match="coefficients must sum to one"):
        layer.coefficients = [1.0, 1.0, 0.0]
    np.testing.assert_allclose(numpy(layer.coefficients), [[0.25, 0.5, 0.25]] * 2, atol=1e-7)
    other = getattr(hullo.keras, name)(PAPER, groups=2, start=layer.coefficients)
    np.testing.assert_allclose(numpy(other.coefficients), [[0.25, 0.5, 0.25]] * 2, atol=1e-7)


def test_a_layer_reads_like_its_call():
    assert repr(hullo.keras.AffineHull(["relu", "elu(2)"], strict=False)) == "AffineHull(['relu', 'elu(2)'])"
    layer = hullo.keras.ConvexHull(["identity"], groups=3, axis=1, keep="softmax")
    assert repr(layer) == "ConvexHull(['identity'], groups=3, axis=1, keep='softmax')"


FASTER = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # to compile: the arrays are small
once = pytest.mark.skipif(BACKEND != "torch", reason="does not depend on the backend")


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@once
def test_hullo_does_not_import_keras():
    assert run("-c", "import hullo, sys; assert 'keras' not in sys.modules").returncode == 0


@once
def test_without_keras_the_error_says_what_to_install():
    done = run("-c", "import sys; sys.modules['keras'] = None; import hullo.keras")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: hullo.keras needs Keras 3")
    assert "pip install 'hullo[keras]'" in last


@once
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_everything_here_holds_on_the_other_backends(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    done = run("-m", "pytest", "-p", "no:cacheprovider", __file__, KERAS_BACKEND=backend, **FASTER)
    assert done.returncode == 0, done.stdout[-4000:]
