"""The arithmetic of the Keras layers: bases, coefficients and `combine`, written with `keras.ops`.

Bases are the same formulas as in PyTorch, with the functions of Keras. On the PyTorch backend, some functions of
`keras.ops` convert float64 to float32: minimum, mean, cumsum, and where with a number. None of them is used here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from keras import ops
from keras.backend import standardize_dtype

from hullo._compat import tracing_state
from hullo.bases import Base

Array = Any  # a tensor of whichever backend Keras runs on


def _where(condition: Array, a: Array, b: Array) -> Array:
    dtype = a.dtype if ops.is_tensor(a) else b.dtype
    return ops.where(condition, ops.convert_to_tensor(a, dtype), ops.convert_to_tensor(b, dtype))


def _running_means(x: Array) -> Array:
    sums = itertools.accumulate(ops.unstack(x, axis=-1))
    return ops.stack([total / count for count, total in enumerate(sums, start=1)], axis=-1)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "abs": ops.abs,
    "asinh": ops.arcsinh,
    "atan": ops.arctan,
    "clamp": ops.clip,
    "cos": ops.cos,
    "erf": ops.erf,
    "exp": ops.exp,
    "expm1": ops.expm1,
    "log1p": ops.log1p,
    "minimum": lambda x, most: _where(x > most, most, x),
    "normal_pdf": lambda x: ops.exp(-0.5 * x * x) / math.sqrt(2 * math.pi),
    "normal_tail": lambda x: 0.5 * (1 - ops.erf(math.sqrt(0.5) * ops.abs(x))),  # older versions of Keras have no erfc
    "positive_part": ops.relu,
    "sigmoid": ops.sigmoid,
    "sin": ops.sin,
    "sqrt": ops.sqrt,
    "square": ops.square,
    "step": lambda x: ops.sign(ops.relu(x)),
    "tanh": ops.tanh,
    "where": _where,
}
"""The functions that a formula may call, in Keras; see :data:`hullo.bases.formulas.FUNCTIONS`."""


def _with_gradient(function: Callable[..., Array], pullback: Callable[..., Array]) -> Callable[..., Array]:
    """Return `function` with `pullback(*arguments, gradient)` as its backward pass, on every backend."""

    @ops.custom_gradient  # type: ignore[untyped-decorator]
    def both(*arguments: Array) -> tuple[Array, Callable[..., Array]]:
        def backward(*given: Array, upstream: Array = None) -> Array:
            # PyTorch's backend passes the arguments again and the gradient by name, other backends only the gradient.
            return pullback(*arguments, *given) if upstream is None else pullback(*given, upstream)

        return function(*arguments), backward

    def differentiated(*arguments: Array) -> Array:
        # Keras exports to ONNX with PyTorch's tracer, which does not support custom backward passes.
        return both(*arguments) if tracing_state() is None else function(*arguments)

    return differentiated


def _project_onto_simplex(raw: Array) -> Array:
    """Project onto the simplex, as :func:`hullo.parametrizations.nearest_in_simplex` does."""
    raw = raw - ops.floor(ops.amax(raw, axis=-1, keepdims=True))
    ordered = ops.flip(ops.sort(raw, axis=-1), axis=-1)
    counts = ops.arange(1, raw.shape[-1] + 1, dtype=raw.dtype)
    threshold = ops.amax(_running_means(ordered) - 1 / counts, axis=-1, keepdims=True)
    return ops.relu(raw - threshold)


def _feasible_gradient(raw: Array, gradient: Array) -> Array:
    """Return the part of a gradient along which coefficients can move.

    Like :func:`hullo.parametrizations.feasible_gradient`, but for each backward pass separately: Keras optimizers have
    no hook that could restrict the accumulated gradient.
    """
    rounding = 8 * float(np.finfo(standardize_dtype(raw.dtype)).eps)  # of the projection
    inside = _project_onto_simplex(raw) > rounding
    order = ops.argsort(_where(inside, -np.inf, gradient), axis=-1)
    means = _running_means(ops.take_along_axis(gradient, order, axis=-1))
    counts = ops.arange(1, raw.shape[-1] + 1)
    least = ops.sum(ops.cast(inside, counts.dtype), axis=-1, keepdims=True)
    threshold = ops.amin(_where(counts >= least, means, np.inf), axis=-1, keepdims=True)
    moved = gradient - threshold
    return _where(inside, moved, -ops.relu(-moved))


COEFFICIENTS: dict[str, Callable[[Array], Array]] = {
    "projection": _with_gradient(_project_onto_simplex, _feasible_gradient),
    "softmax": lambda raw: ops.exp(ops.log_softmax(raw, axis=-1)),  # ops.softmax warns when there is one base
    "recentred": lambda raw: raw - (ops.sum(raw, axis=-1, keepdims=True) - 1) / raw.shape[-1],
    "free": lambda raw: ops.concatenate([raw, 1 - ops.sum(raw, axis=-1, keepdims=True)], axis=-1),
    "clamped": _with_gradient(ops.relu, lambda raw, gradient: _where(raw > 0, gradient, -ops.relu(-gradient))),
    "softplus": ops.softplus,
    "given": lambda raw: raw,
}
"""Raw parameters to coefficients, for each built-in parametrization of :mod:`hullo.parametrizations`."""


def combiner(bases: Iterable[Base]) -> Callable[[Array, Array], Array]:
    """Return the function combine(x, columns) = sum of columns[i] * f_i(x), where columns broadcast with x.

    Only x and the columns are saved for the backward pass, which uses the formulas of the slopes.
    """
    functions = []
    for item in bases:
        if item.formula is None:
            raise ValueError(
                f"base function {item.name!r} is a Python function; Keras layers need bases with a formula: "
                "those of the catalogue, or formulas given to hullo.add_base"
            )
        functions.append(item.formula.functions(FUNCTIONS))

    def combine(x: Array, columns: Array) -> Array:
        return sum(columns[i] * value(x) for i, (value, _) in enumerate(functions))

    def pullback(x: Array, columns: Array, gradient: Array) -> tuple[Array, Array]:
        values = [value(x) for value, _ in functions]
        slopes = sum(columns[i] * slope(x, y) for i, ((_, slope), y) in enumerate(zip(functions, values, strict=True)))
        shared = [axis for axis, size in enumerate(columns.shape[1:]) if size == 1]
        products = [gradient * y for y in values]
        sums = [ops.sum(product, axis=shared, keepdims=True) if shared else product for product in products]
        return gradient * slopes, ops.stack(sums)

    return _with_gradient(combine, pullback)
