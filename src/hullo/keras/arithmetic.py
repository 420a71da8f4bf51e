"""The arithmetic of the Keras layers: bases, coefficients and `combine`, written with `keras.ops`.

Bases are the same formulas as in PyTorch, with the functions of Keras. On the PyTorch backend, some functions of
`keras.ops` convert float64 to float32: minimum, mean, cumsum, and where with a number. None of them is used here.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from keras import ops
from keras.backend import standardize_dtype

from hullo._compat import tracing_state
from hullo.bases import Base
from hullo.parametrizations import BuiltInParametrization

Array = Any  # a tensor of whichever backend Keras runs on


def _where(condition: Array, a: Array, b: Array) -> Array:
    dtype = a.dtype if ops.is_tensor(a) else b.dtype
    return ops.where(condition, ops.convert_to_tensor(a, dtype), ops.convert_to_tensor(b, dtype))


def _least(x: Array, most: float) -> Array:
    return _where(x > most, most, x)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    **vars(ops),
    "asinh": ops.arcsinh,
    "atan": ops.arctan,
    "cat": ops.concatenate,
    "clamp": ops.clip,
    "clamp_max": _least,
    "cumsum": lambda x, axis: ops.stack([*itertools.accumulate(ops.unstack(x, axis=axis))], axis),
    "finfo": lambda dtype: np.finfo(standardize_dtype(dtype)),
    "gather": lambda x, axis, indices: ops.take_along_axis(x, indices, axis),
    "mean": lambda x, axis, keepdims: ops.sum(x, axis, keepdims) / x.shape[axis],
    "minimum": _least,
    "normal_pdf": lambda x: ops.exp(-0.5 * x * x) / math.sqrt(2 * math.pi),
    "normal_tail": lambda x: 0.5 * (1 - ops.erf(math.sqrt(0.5) * ops.abs(x))),  # older versions of Keras have no erfc
    "positive_part": ops.relu,
    "softmax": lambda x, axis: ops.exp(ops.log_softmax(x, axis)),  # ops.softmax warns when there is one base
    "sort": lambda x, dim, descending: [ops.flip(ops.sort(x, dim), dim)],
    "step": lambda x: ops.sign(ops.relu(x)),
    "where": _where,
}
"""The functions of Keras, and the others that formulas of bases (:data:`hullo.bases.formulas.FUNCTIONS`) and of
parametrizations (:mod:`hullo.parametrizations`) call, under the names that they have in PyTorch."""


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


def transform(parametrization: BuiltInParametrization, raw: Array) -> Array:
    """Return the coefficients of raw parameters.

    Keras optimizers have no hook that could restrict the accumulated gradient: each backward pass returns the part of
    its own gradient along which coefficients can move.
    """
    in_keras = SimpleNamespace(**FUNCTIONS)
    formula = functools.partial(parametrization.formula, ops=in_keras)
    if parametrization.restrict is None:
        return formula(raw)
    return _with_gradient(formula, functools.partial(parametrization.restrict, ops=in_keras))(raw)


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
