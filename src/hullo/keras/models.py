"""Replace, list and fold activations of existing Keras models.

Models are copied, because a Keras layer that is built cannot get new weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import torch
from keras import ops
from torch import Tensor

from hullo.bases import Base, resolve
from hullo.keras.layers import AffineHull, Hull, to_numpy
from hullo.modules import without_rounding
from hullo.properties import identify
from hullo.recognition.known import AMBIGUOUS, Known, default_bases
from hullo.recognition.probe import read_function


def replace_activations(
    model: keras.Model, *, hull: type[Hull] = AffineHull, bases: Iterable[str | Base] | None = None, **options: Any
) -> keras.Model:
    """Return a copy of a model in which activations are hulls that start as the functions they replace.

    Activation layers (``ReLU``, ``Activation("gelu")``) and the `activation` of other layers (``Dense``, ``Conv2D``)
    are replaced if they are in the catalogue, also inside wrappers (``TimeDistributed``). Not replaced are ``linear``,
    ``softmax``, functions that often serve as gates or probabilities (``sigmoid``, ``hard_sigmoid``, ``softplus``), the
    functions inside recurrent layers and ``Bidirectional``, and those that layers of your own call other than by their
    `activation`. A hull has the `trainable` of the layer whose function it replaces.

    Args:
        model: a Sequential or functional model that is built; not changed.
        hull: the class of the layers.
        bases: the bases of every hull; by default identity, relu and tanh, or identity, tanh and the replaced
            function if it is not a combination of those.
        options: other arguments of the layers, such as `parametrization` and `lr_scale`.

    Raises:
        ValueError: no activation can be replaced, or one is not a combination of `bases`.

    Example:
        >>> import keras, hullo.keras
        >>> layers = [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
        >>> model = hullo.keras.replace_activations(keras.Sequential(layers))
        >>> model.layers[0].activation
        AffineHull(['identity', 'relu', 'tanh'])
    """
    _check(model)
    if not (isinstance(hull, type) and issubclass(hull, Hull) and hasattr(hull, "torch_class")):
        raise TypeError(f"hull={hull!r}: give a class of hulls of hullo.keras, such as hullo.keras.ConvexHull")
    made: list[Hull] = []

    def make_hull(function: Any, layer: Any) -> Hull | None:
        known = None if isinstance(function, Hull) else _recognize(function)
        if known is None or known.family in AMBIGUOUS:
            return None
        chosen = default_bases(known) if bases is None else resolve(bases, strict=False)
        start = known.coefficients(chosen)
        if start is None:
            spelled = ", ".join(item.name for item in chosen)
            raise ValueError(f"{layer.name} is {known.spelling}, not a combination of {spelled}; add it to bases")
        init = [number + 0.0 for number in start[0]]  # no negative zeros
        policy = layer.dtype_policy  # of a quantized layer, the hull gets the policy before quantization
        given = {"dtype": policy.get_config().get("source_name", policy), "trainable": layer.trainable} | options
        made.append(hull([item.name for item in chosen], init=init, strict=False, **given))
        return made[-1]

    result = _clone(model, make_hull)
    if not made:
        raise ValueError(
            "no activation of the model can be replaced; it needs layers with one that is not a hull yet, such as "
            "Dense or ReLU, outside of recurrent layers, Bidirectional and layers of your own"
        )
    return result


def fold(model: keras.Model) -> keras.Model:
    """Return a copy of a model in which hulls are constant.

    A hull that equals one of Keras's activations, to 1e-6 in its coefficients, becomes that activation. Any other
    becomes a hull that is not trainable, as do all hulls inside recurrent layers and layers of your own.

    Args:
        model: a Sequential or functional model; not changed.

    Example:
        >>> import keras, hullo.keras
        >>> act = hullo.keras.ConvexHull(["identity", "relu"], init="relu")
        >>> hullo.keras.fold(keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), act])).layers[1].activation
        <function relu at ...>
    """
    _check(model)
    if not any(True for _ in named_hulls(model)):
        raise ValueError("the model has no hulls to fold")

    def make_constant(function: Any, layer: Any) -> Any:
        if not isinstance(function, Hull):
            return None
        identified = identify(function.to_torch())
        answers = {*identified} if isinstance(identified, list) else {identified}  # one per group
        return _native(answers.pop(), function.dtype_policy) if len(answers) == 1 else None

    return _clone(model, make_constant, trainable_hulls=False)


def summary(model: keras.Model) -> str:
    """Return a table of a model's hulls: where they are, their bases and their coefficients.

    Example:
        >>> import keras, hullo.keras
        >>> act = hullo.keras.AffineHull(["identity", "relu"], name="act")
        >>> print(hullo.keras.summary(keras.Sequential([keras.Input((4,)), act])))
        act  affine(identity,relu)  0.5 0.5
    """
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(f"got a {type(model).__name__}: give a Keras model; hullo.summary lists the hulls of PyTorch's")
    rows = []
    for where, layer in named_hulls(model):
        columns = zip(*map(without_rounding, np.atleast_2d(to_numpy(layer.coefficients)).tolist()), strict=True)
        shown = (f"{min(c):.3g}" if min(c) == max(c) else f"{min(c):.3g}..{max(c):.3g}" for c in columns)
        rows.append(f"{where}  {layer.spelling}  {' '.join(shown)}")
    return "\n".join(rows)


def _check(model: Any) -> None:
    if not _has_graph(model):
        raise TypeError(
            f"got a {type(model).__name__}: give a Sequential or functional Keras model; in a model of your own code, "
            "write the hulls where its activations are"
        )
    if not model.built:
        raise ValueError(
            "the model is not built yet, so its weights cannot be copied: give it a keras.Input, or call it"
        )


def named_hulls(model: keras.Model) -> Iterable[tuple[str, Hull]]:
    """Yield hulls with the names of their layers: the hull itself, or the layer whose activation it is."""
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, Hull):
            owner = next((o for o in model._flatten_layers() if getattr(o, "activation", None) is layer), layer)
            yield owner.name, layer


def _has_graph(layer: Any) -> bool:
    return isinstance(layer, keras.Sequential) or (isinstance(layer, keras.Model) and hasattr(layer, "operations"))


def _clone(model: keras.Model, change: Callable[[Any, Any], Any], trainable_hulls: bool = True) -> keras.Model:
    """Copy a model; `change(function, layer)` returns the new activation, or None to keep the function."""
    copies: dict[int, Any] = {}
    pairs: list[tuple[Any, Any, Any, Any]] = []  # a layer, its copy, and the part of each that is copied separately

    def clone(layer: Any) -> Any:
        if id(layer) not in copies:
            copies[id(layer)] = clone_model(layer) if _has_graph(layer) else clone_layer(layer)
        return copies[id(layer)]

    def clone_model(layer: Any) -> Any:
        result = keras.models.clone_model(layer, clone_function=clone)
        if type(result) is not type(layer):
            raise TypeError(
                f"{layer.name} is a {type(layer).__name__}, which Keras copies as a {type(result).__name__}, without "
                "its own methods; give a keras.Sequential or keras.Model(inputs, outputs), or use hulls in your code"
            )
        return result

    def clone_layer(layer: Any) -> Any:
        config, old, new = layer.get_config(), None, None
        if not isinstance(layer, keras.layers.Layer):  # an operation such as a sum
            return type(layer).from_config(config)
        if isinstance(layer, keras.layers.Wrapper) and config.pop("layer", None):
            old, new = layer.layer, clone(layer.layer)
            result = type(layer)(new, **config)
        elif (replaced := change(layer, layer)) is not None:
            return _as_layer(replaced, layer)
        else:
            if "activation" in config and not isinstance(layer, keras.layers.RNN):
                old = layer.activation
                new = change(old, layer) or (clone(old) if isinstance(old, Hull) else None)
            result = type(layer).from_config(config if new is None else config | {"activation": new})
        for part in result._flatten_layers():
            if isinstance(part, Hull) and not trainable_hulls:  # before the copy is compiled
                part.trainable = False
        pairs.append((layer, result, None if new is None else old, new))
        return result

    result = clone(model)
    for before, after, old, new in pairs:
        for source, target in zip(_parts(before, old), _parts(after, new), strict=True):
            _copy_state(source, target)
    return result


def _as_layer(activation: Any, replaced: Any) -> Any:
    """Return an activation as a layer, with the name and the regularizer of the one that it replaces."""
    if not isinstance(activation, keras.layers.Layer):
        activation = keras.layers.Activation(activation, dtype=replaced.dtype_policy)
    activation.name, activation.activity_regularizer = replaced.name, replaced.activity_regularizer
    return activation


def _parts(layer: Any, apart: Any) -> list[Any]:
    """Return a layer and the layers inside, without one of them and what it holds."""
    skipped = apart._flatten_layers() if isinstance(apart, keras.layers.Layer) else []
    return [part for part in layer._flatten_layers() if not any(part is other for other in skipped)]


def _copy_state(old: Any, new: Any) -> None:
    """Copy the variables of a layer as saving and loading do, which also restores what is computed from them."""
    store: dict[str, Any] = {}
    old.save_own_variables(store)
    # Without copies, JAX would share the arrays, and training one model delete the other's.
    new.load_own_variables({k: v if isinstance(v, np.ndarray) else ops.copy(v) for k, v in store.items()})


def _recognize(function: Any) -> Known | None:
    """Return which activation a function, or a layer of Keras without weights, computes; None if it is not known."""
    called = function
    if isinstance(function, keras.layers.Layer):
        if function.weights or not type(function).__module__.startswith("keras."):
            return None
        called = type(function).from_config({**function.get_config(), "dtype": "float32"})

    def call(x: Tensor) -> Tensor:
        y = called(ops.convert_to_tensor(x.numpy().astype("float32")))
        return torch.as_tensor(to_numpy(y).copy())

    reading = read_function(call, has_gradient=False)
    return reading.known if reading else None


def _native(item: Base | None, policy: Any) -> Any:
    """Return the activation of Keras that computes a base, or None."""
    if item is None:
        return None
    if item.name.startswith("leaky_relu"):
        return keras.layers.LeakyReLU(negative_slope=item.slopes_at_zero[0], dtype=policy)
    if item.name == "identity":
        return keras.activations.linear
    function = getattr(keras.activations, item.name, None)
    return function if function and _recognize(function) == Known.of(item.name) else None
