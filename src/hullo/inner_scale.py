"""A learned inner scale: sum over i of c_i f_i(b_i x), with one b per hull, or one for each of its bases.

The scales are one more parameter of a hull; x is multiplied with them before the kernels run.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from hullo import operators
from hullo.functional import apply
from hullo.kernels import CombineSpec
from hullo.kernels.spec import compute_dtype
from hullo.parametrizations import get_parametrization

KINDS = ("hull", "base")


def make_scales(kind: str | None, groups: int, bases: int, raw: Tensor) -> nn.Parameter | None:
    """Return scales equal to one, on the device of `raw`: per group one scale, or one per base."""
    if kind is None:
        return None
    if kind not in KINDS:
        raise ValueError(f"inner_scale={kind!r}: give 'hull' for one scale, 'base' for one scale per base, or None")
    columns = bases if kind == "base" else 1
    return nn.Parameter(raw.new_ones((columns,) if groups == 1 else (groups, columns)))


def apply_scaled(x: Tensor, raw: Tensor, scales: Tensor, spec: CombineSpec, hull: object = None) -> Tensor:
    """Combine base functions of a scaled input, as :func:`hullo.functional.apply` does of the input."""
    if isinstance(x, fx.Proxy):
        return apply_scaled_spelled(x, raw, scales, *spec.spelled)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return apply(x, raw, spec, hull=hull)  # raises the error
    wide = x.to(compute_dtype(x))  # once, since each product saves its factor for the backward pass
    if scales.shape[-1] == 1:
        return apply(_scaled(wide, scales, 0, spec), raw, spec, hull=hull).to(x.dtype)
    coefficients = spec.parametrization.transform(raw)
    total = torch.zeros((), dtype=wide.dtype, device=x.device)
    for n, item in enumerate(spec.bases):
        single = CombineSpec((item,), get_parametrization("given"), spec.channel_dim)
        total = total + apply(_scaled(wide, scales, n, spec), coefficients[..., n : n + 1], single)
    return total.to(x.dtype)


@fx.wrap
def apply_scaled_spelled(
    x: Tensor, raw: Tensor, scales: Tensor, bases: str, parametrization: str, channel_dim: int
) -> Tensor:
    """Call `apply_scaled` with a spec of strings and numbers, which a graph of torch.fx can hold."""
    return apply_scaled(x, raw, scales, operators.spec(bases, parametrization, channel_dim))


def _scaled(x: Tensor, scales: Tensor, column: int, spec: CombineSpec) -> Tensor:
    """Return x times the scales of one column."""
    factors = scales[..., column].to(x.dtype)
    if scales.dim() == 1:
        return x * factors
    dim = spec.channel_dim % x.dim() if -x.dim() <= spec.channel_dim < x.dim() else 0
    if x.dim() == 0 or x.shape[dim] % len(factors):
        return x  # `apply` raises the error
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    return x * factors.repeat_interleave(x.shape[dim] // len(factors)).reshape(shape)
