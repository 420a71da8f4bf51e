"""Hulls as Keras layers; the computation is in :mod:`hullo.keras.arithmetic`.

The PyTorch modules check arguments and coefficients, which therefore mean the same in both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, ClassVar

import keras
import numpy as np
import torch
from keras import ops

from hullo import modules
from hullo.bases import Base
from hullo.functional import check_groups
from hullo.keras.arithmetic import Array, combiner, transform
from hullo.parametrizations import get_parametrization


class Hull(keras.layers.Layer):  # type: ignore[misc]
    """The base class of the layers."""

    torch_class: ClassVar[type[modules.Hull]]

    def __init__(
        self,
        bases: Iterable[str | Base],
        *,
        init: Any = None,
        groups: int = 1,
        axis: int = -1,
        parametrization: str | None = None,
        strict: bool | None = None,
        lr_scale: float = 1.0,
        **layer: Any,
    ) -> None:
        super().__init__(**layer)
        if not (isinstance(lr_scale, (int, float)) and 0 < lr_scale < float("inf")):
            raise ValueError(f"lr_scale={lr_scale!r}: give a positive number; trainable=False freezes the coefficients")
        choices = self.torch_class.coefficient_set.choices
        if parametrization is not None and parametrization not in choices:
            raise ValueError(
                f"invalid parametrization {parametrization!r} for the Keras layer {type(self).__name__}; valid are "
                f"{', '.join(map(repr, choices))}"
            )
        self.supports_masking = True
        self.init, self.groups, self.axis, self.strict = _to_lists(init), groups, axis, strict
        self.lr_scale = float(lr_scale)
        self._is_counted = False
        # The same hull in PyTorch checks the arguments and maps coefficients to raw parameters.
        self._make_torch_hull = functools.partial(
            self.torch_class,
            bases,
            groups=groups,
            channel_dim=axis,
            parametrization=parametrization,
            strict=strict,
            device="cpu",
            dtype=torch.float64,
        )
        torch_hull = self._make_torch_hull(init=self.init)
        self.bases, self.spelling = torch_hull.bases, torch_hull.spelling
        self.parametrization = torch_hull.parametrization.name
        self._combine = combiner(self.bases)
        self.raw = self.add_weight(
            name="raw_coefficients",
            shape=tuple(torch_hull.raw.shape),
            initializer=lambda shape, dtype: ops.convert_to_tensor(_raw(torch_hull) / self.lr_scale, dtype),
            # Half precision leaves the raw parameters in float32: they are few, and their updates small.
            dtype="float64" if self.variable_dtype == "float64" else "float32",
            autocast=False,
        )

    def build(self, input_shape: Any) -> None:
        if self.groups == 1:
            return
        if -len(input_shape) <= self.axis < len(input_shape) and input_shape[self.axis] is None:
            raise ValueError(f"x of shape {input_shape} has no fixed number of channels; {self.groups} groups need one")
        check_groups(input_shape, self.groups, self.axis)

    def call(self, x: Array) -> Array:
        dtype = keras.backend.standardize_dtype(x.dtype) if ops.is_tensor(x) else type(x).__name__
        if not dtype.startswith(("float", "bfloat")):
            raise TypeError(f"x must be a floating-point tensor, got {dtype}; keras.ops.cast(x, 'float32') makes one")
        wide = "float64" if dtype == "float64" else "float32"
        columns = self._coefficients(wide)
        shape = [1] * len(x.shape)
        if self.groups > 1:
            shape[self.axis] = x.shape[self.axis]
            columns = ops.transpose(ops.repeat(columns, shape[self.axis] // self.groups, axis=0))
        columns = ops.reshape(columns, (len(self.bases), *shape))
        return ops.cast(self._combine(ops.cast(x, wide), columns), dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    @property
    def coefficients(self) -> Array:
        """Return N coefficients, or one row of them per group, computed from the raw parameters.

        Assign N numbers, one row per group, or the name of a base to set them; values outside of the set raise an
        error.
        """
        return self._coefficients(self.raw.dtype)

    @coefficients.setter
    def coefficients(self, value: Any) -> None:
        self.raw.assign(_raw(self._make_torch_hull(init=_to_lists(value))) / self.lr_scale)

    def to_torch(self) -> modules.Hull:
        """Return the same hull as a module of PyTorch in float64, for questions such as :func:`hullo.is_monotone`."""
        torch_hull = self._make_torch_hull()
        torch_hull.raw.data.copy_(torch.as_tensor(to_numpy(self.raw[...]) * self.lr_scale))
        return torch_hull

    def _coefficients(self, dtype: str) -> Array:
        raw = self.raw[...]  # a tensor: TensorFlow's custom gradients do not accept variables
        return transform(get_parametrization(self.parametrization), ops.cast(raw, dtype) * self.lr_scale)

    def get_config(self) -> dict[str, Any]:
        names = ("init", "groups", "axis", "parametrization", "strict", "lr_scale")
        own = {name: getattr(self, name) for name in names}
        if not self._is_counted:
            # Loading restores an object that several layers share if its configuration has a number. Keras writes that
            # only from the second time on, and an activation that is used twice would get it once.
            self._is_counted = True
            try:
                keras.saving.serialize_keras_object(self)
            finally:
                self._is_counted = False
        return {**super().get_config(), "bases": [item.name for item in self.bases], **own}

    @property
    def _meaning(self) -> str:
        return f"{self.spelling} {self.parametrization} groups={self.groups}"

    def save_own_variables(self, store: Any) -> None:
        store["raw"] = self.raw * self.lr_scale
        store["meaning"] = np.frombuffer(self._meaning.encode(), dtype=np.uint8)

    def load_own_variables(self, store: Any) -> None:
        meaning = "another layer, or a hull that layers share, which is saved once"
        if "meaning" in store.keys():  # noqa: SIM118  (not every store of Keras is a mapping)
            meaning = np.asarray(store["meaning"]).tobytes().decode()
        if meaning != self._meaning:
            raise ValueError(f"{self.path or self.name} was saved by {meaning!r}; this layer is {self._meaning!r}")
        self.raw.assign(to_numpy(store["raw"]) / self.lr_scale)

    def __repr__(self) -> str:
        parts = [str([item.name for item in self.bases])]
        defaults = {"groups": 1, "axis": -1, "parametrization": self.torch_class.coefficient_set.choices[0]}
        parts += [f"{name}={getattr(self, name)!r}" for name in defaults if getattr(self, name) != defaults[name]]
        return f"{type(self).__name__}({', '.join(parts)})"


def to_numpy(tensor: Array) -> Any:
    """Return a tensor of any backend as an array in float64."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.detach().double().cpu().numpy()
    return np.asarray(tensor, dtype=np.float64)


def _to_lists(value: Any) -> Any:
    """Return an array of any kind as lists, which a configuration can hold; return other values unchanged."""
    return to_numpy(value).tolist() if hasattr(value, "__array__") else value


def _raw(torch_hull: modules.Hull) -> Any:
    return torch_hull.raw.detach().numpy()


@keras.saving.register_keras_serializable(package="hullo")
class AffineHull(Hull):
    r"""An activation learned in the affine hull of base functions: f(x) = sum c_i f_i(x) with sum c_i = 1.

    Args:
        bases: names of the catalogue.
        init: the initial coefficients: N numbers, one row per group, or the name of the base to start as;
            1/N each by default.
        groups: 1 is one activation for the layer; G gives each of G equal groups of channels its own coefficients;
            the number of channels is one activation per channel.
        axis: where the channels are: -1 as in Keras, 1 for channels-first data.
        parametrization: how raw parameters become coefficients, "recentred" or "free"; see
            :class:`hullo.AffineHull`.
        strict: reject bases that do not have value zero and slope one at the origin. By default convex and affine
            hulls do, conic and linear ones do not.
        lr_scale: the factor of the learning rate of the coefficients. The layer's variable holds the raw parameters
            divided by this, so the factor holds for optimizers whose steps do not depend on the size of gradients, such
            as Adam, AdamW and RMSprop; with SGD, its square applies.

    Example:
        >>> import keras, hullo.keras
        >>> act = hullo.keras.AffineHull(["identity", "relu", "tanh"], init="relu")
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), act, keras.layers.Dense(1)])
        >>> model.count_params() == (4 * 8 + 8) + 3 + (8 + 1)
        True

    Weight decay would pull the coefficients towards an arbitrary function: exclude ``"raw_coefficients"`` from it
    before training, and again after loading a model, since Keras does not save this.
    """

    torch_class = modules.AffineHull


@keras.saving.register_keras_serializable(package="hullo")
class ConvexHull(Hull):
    r"""An activation learned in the convex hull of base functions: sum c_i f_i(x) with sum c_i = 1 and c_i >= 0.

    The arguments are those of :class:`AffineHull`; `parametrization` is "projection" or "softmax", see
    :class:`hullo.ConvexHull`. With a projection, each backward pass gives the part of its gradient that
    stays in the simplex. So where a coefficient is zero, accumulated gradients, or those of several replicas, differ a
    little from the gradient of the whole batch; with a softmax they do not.

    Example:
        >>> import hullo.keras
        >>> hullo.keras.ConvexHull(["identity", "relu"], groups=8)
        ConvexHull(['identity', 'relu'], groups=8)
    """

    torch_class = modules.ConvexHull


@keras.saving.register_keras_serializable(package="hullo")
class ConicHull(Hull):
    r"""An activation learned in the conic hull of base functions: sum c_i f_i(x) with c_i >= 0.

    The arguments are those of :class:`AffineHull`; `parametrization` is "clamped" or "softplus", see
    :class:`hullo.ConicHull`. A clamped coefficient at zero has the gradient of a projected one in
    :class:`ConvexHull`.

    Example:
        >>> import hullo.keras
        >>> hullo.keras.ConicHull(["identity", "relu"], parametrization="softplus")
        ConicHull(['identity', 'relu'], parametrization='softplus')
    """

    torch_class = modules.ConicHull


@keras.saving.register_keras_serializable(package="hullo")
class LinearHull(Hull):
    r"""An activation learned in the linear hull of base functions: sum c_i f_i(x) with any coefficients c_i.

    The arguments are those of :class:`AffineHull`; the coefficients are the raw parameters themselves.

    Example:
        >>> import hullo.keras
        >>> hullo.keras.LinearHull(["relu", "tanh"])
        LinearHull(['relu', 'tanh'])
    """

    torch_class = modules.LinearHull
