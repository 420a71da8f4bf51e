"""Compute `combine` in plain PyTorch; the tests compare every other kernel with this one.

Both passes are ordinary differentiable PyTorch, so that automatic differentiation of `forward` gives `backward`, and
that of `backward` gives second derivatives.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hullo.kernels.spec import CombineSpec, compute_dtype


def forward(x: Tensor, raw: Tensor, spec: CombineSpec) -> Tensor:
    """Compute y = sum over i of c_i f_i(x)."""
    wide, coefficients = _prepare(x, raw, spec)
    terms = [c * value(wide) for c, (value, _) in zip(coefficients, spec.functions, strict=True)]
    return _finish(_total(terms), x)


def backward(gradient: Tensor, x: Tensor, raw: Tensor, spec: CombineSpec) -> tuple[Tensor, Tensor]:
    """Compute dx = dy * sum over i of c_i f_i'(x), and dc_i = sum over x of dy * f_i(x), pulled back to raw."""
    wide, coefficients = _prepare(x, raw, spec)
    upstream = gradient.reshape(wide.shape).to(wide.dtype)
    values = [value(wide) for value, _ in spec.functions]
    slope = _total([c * f(wide, y) for c, (_, f), y in zip(coefficients, spec.functions, values, strict=True)])
    others = [d for d in range(wide.dim()) if raw.dim() == 1 or d != spec.channel_dim % x.dim()]
    sums = torch.stack([(upstream * y).sum(others) if others else upstream * y for y in values], dim=-1)
    wide_raw = raw.to(wide.dtype)
    pulled = spec.parametrization.pullback(wide_raw, spec.parametrization.transform(wide_raw), sums)
    return _finish(upstream * slope, x), pulled.to(raw.dtype)


def _prepare(x: Tensor, raw: Tensor, spec: CombineSpec) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return x in the dtype of the computation, with channels split into (groups, channels per group), and the
    coefficients of each base, shaped to broadcast with it."""
    dtype = compute_dtype(x)
    coefficients = spec.parametrization.transform(raw.to(dtype))
    if raw.dim() == 1:
        return x.to(dtype), coefficients.unbind(-1)
    dim = spec.channel_dim % x.dim()
    split = (*x.shape[:dim], raw.shape[0], x.shape[dim] // raw.shape[0], *x.shape[dim + 1 :])
    wide = x.to(dtype).reshape(split)
    shape = [1] * wide.dim()
    shape[dim] = raw.shape[0]
    return wide, tuple(c.reshape(shape) for c in coefficients.unbind(-1))


def _total(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _finish(y: Tensor, x: Tensor) -> Tensor:
    return y.reshape(x.shape).to(x.dtype)
