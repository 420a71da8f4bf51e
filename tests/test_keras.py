"""Test that Keras layers have the values and gradients of the PyTorch modules."""

import numpy as np
import pytest
import torch

import hullo
from hullo.bases import formulas
from hullo.parametrizations import feasible_gradient, get_parametrization

pytest.importorskip("keras")

import keras

import hullo.keras
from hullo.keras import arithmetic
from keras_layers import BACKEND, HULLS, PAPER, PARAMETRIZATIONS, numpy, sample, without_array_warning

pytestmark = without_array_warning

# JAX has no float64 by default
TOLERANCE = {"float32": 1e-6} if BACKEND == "jax" else {"float32": 1e-6, "float64": 1e-12}
# Other backends compile each case, and differ from PyTorch by their operations, not by how these are put together.
FORMS = [("AffineHull", 1), ("ConvexHull", 4)][BACKEND != "torch" :]
GROUPS = [(1, -1), (6, -1), (2, 1)][2 * (BACKEND != "torch") :]


def gradients(function, *arguments):
    """Return the gradients of a scalar function of arrays, on any backend; they can be differentiated again."""
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
    """Return the layer as a function of x and its raw parameters."""
    return lambda x, raw: layer.stateless_call([raw], [], x)[0]


def layer_and_module(name, bases, shape, dtype="float32", axis=-1, **arguments):
    """Return a layer, and the module in float64 that it is held against."""
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
    expected_draw = module.raw.grad
    if restrict := module.parametrization.restrict:  # in PyTorch just before a step
        expected_draw = restrict(module.raw.detach(), expected_draw)
    np.testing.assert_allclose(numpy(draw), expected_draw, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(numpy(layer.coefficients), module.coefficients.detach(), atol=tolerance)


def coefficients(rng, name, groups, n, parametrization=None):
    """Return rows of coefficients, exact in float32; where zero can be reached, many are zero."""
    rows = rng.multinomial(
        4 if parametrization in ("projection", "clamped") else 64, np.full(n, 1 / n), size=groups
    ).astype("float64")
    rows /= rows.sum(-1, keepdims=True)
    if name == "AffineHull":
        rows = 2 * rows - np.eye(n)[0]
    return rows.tolist() if groups > 1 else rows[0].tolist()


def test_keras_defines_every_formula_function():
    assert arithmetic.FUNCTIONS.keys() >= formulas.FUNCTIONS.keys()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", hullo.list_bases())
def test_every_base_agrees_with_pytorch_per_layer_and_per_channel(name, dtype):
    x, upstream = sample((5, 3, 4), dtype, kinks=(0.0, *hullo.get_base(name).kinks))
    for hull, groups in FORMS:
        bases = [name, "sin" if name == "asinh" else "asinh"]
        start = coefficients(np.random.default_rng(1), hull, groups, 2)
        layer, module = layer_and_module(hull, bases, x.shape, dtype, init=start, groups=groups, strict=False)
        assert_twins_agree(layer, module, x, upstream)


@pytest.mark.parametrize(("groups", "axis"), GROUPS)
@pytest.mark.parametrize(("name", "parametrization"), PARAMETRIZATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("step", [0.0, 0.5])  # as an optimizer leaves raw parameters, outside of the set
def test_every_parametrization_agrees_with_pytorch(name, parametrization, groups, axis, dtype, step):
    x, upstream = sample((4, 6, 5, 6), dtype)
    bases = [*PAPER, "elu"]
    start = coefficients(np.random.default_rng(groups), name, groups, len(bases), parametrization)
    layer, module = layer_and_module(
        name, bases, x.shape, dtype, axis, init=start, groups=groups, parametrization=parametrization
    )
    moved = layer.raw.numpy() + step * np.random.default_rng(0).normal(size=layer.raw.shape)
    layer.raw.assign(moved)
    module.raw.data.copy_(torch.tensor(numpy(layer.raw)))
    assert_twins_agree(layer, module, x, upstream)


def project(raw):
    return arithmetic.transform(get_parametrization("projection"), raw)


def test_rounding_does_not_move_a_coefficient_off_its_face():
    raw, upstream = np.array([[0.0, 0.5138302, 0.4861697]], "float32"), np.array([[1.0, 0.0, 0.0]], "float32")
    (pulled,) = gradients(lambda raw: dot(project(raw), upstream), tensor(raw))
    np.testing.assert_allclose(numpy(pulled), 0.0, atol=1e-7)


def test_projection_gives_feasible_gradients_on_every_face():
    rng = np.random.default_rng(0)
    rows = np.array(coefficients(rng, "ConvexHull", 64, 4, "projection"), dtype="float32")
    rows[:32] += rng.normal(size=(32, 4)).astype(
        "float32"
    )  # raw parameters off the simplex, as an optimizer leaves them
    upstream = rng.normal(size=rows.shape).astype("float32")
    (pulled,) = gradients(lambda raw: dot(project(raw), upstream), tensor(rows))
    expected = feasible_gradient(*map(torch.tensor, (numpy(project(tensor(rows))), upstream)))
    np.testing.assert_allclose(numpy(pulled), expected, atol=1e-6)


@pytest.mark.parametrize("name", HULLS)
def test_second_derivatives_match_the_formula(name):
    layer, module = layer_and_module(name, ["tanh", "asinh", "sin"], (5, 4), groups=4)
    x, _ = sample((5, 4))

    def penalty(x, raw):
        (dx,) = gradients(lambda x: keras.ops.sum(as_function(layer)(x, raw)), x)
        return keras.ops.sum(dx * dx)

    actual = gradients(penalty, x, layer.raw.numpy())
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (dx,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    expected = torch.autograd.grad(dx.square().sum(), (x, module.raw))
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(numpy(ours), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "groups"), [((0, 4), 1), ((0, 4), 4), ((4,), 1), ((4,), 4), ((2, 3, 1, 4), 4), ((3, 2), 2)]
)
def test_any_input_shape_is_supported(shape, groups):
    layer, module = layer_and_module("AffineHull", PAPER, shape, groups=groups)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    assert_twins_agree(layer, module, x, np.ones_like(x))
    assert layer.compute_output_shape((None, *shape)) == (None, *shape)
