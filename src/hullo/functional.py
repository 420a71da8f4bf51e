"""Combine base functions: the function that every hull calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from hullo._compat import is_batched, is_eager, is_exporting, is_intercepted, is_plain, tracing_state
from hullo.bases import Base, resolve
from hullo.kernels import CombineSpec, choose, load, operators, reference
from hullo.kernels.spec import compute_dtype
from hullo.parametrizations import get_parametrization


def combine(
    x: Tensor, coefficients: Tensor, bases: Iterable[str | Base], *, channel_dim: int = 1, backend: str | None = None
) -> Tensor:
    r"""Combine base functions elementwise: y = sum over i of c_i f_i(x).

    Args:
        x: any dense floating-point tensor.
        coefficients: N numbers, or G rows of them: then the channels are divided into G equal groups in their order,
            each with its own row. They may be any numbers.
        bases: N names of the catalogue or :class:`hullo.Base` objects; not necessarily admissible ones.
        channel_dim: which dimension of x holds the channels.
        backend: "reference", "cpu" or "triton"; by default the fastest that supports x.

    Values are computed in float32 or float64 and returned in the dtype of x. Only x and the coefficients are saved
    for the backward pass.

    Example:
        >>> import torch, hullo
        >>> x = torch.tensor([-1.0, 0.0, 2.0])
        >>> hullo.combine(x, torch.tensor([0.25, 0.75]), ["identity", "relu"])
        tensor([-0.2500,  0.0000,  2.0000])
    """
    resolved = resolve(bases, strict=False)
    if not isinstance(coefficients, Tensor) or not coefficients.is_floating_point():
        given = coefficients.dtype if isinstance(coefficients, Tensor) else type(coefficients).__name__
        raise TypeError(f"coefficients must be a floating-point tensor, got {given}; torch.tensor([...]) makes one")
    if coefficients.dim() not in (1, 2) or coefficients.shape[-1] != len(resolved):
        raise ValueError(
            f"invalid shape {tuple(coefficients.shape)} of coefficients for {len(resolved)} bases; valid are "
            f"({len(resolved)},) and (groups, {len(resolved)})"
        )
    return apply(x, coefficients, CombineSpec(resolved, get_parametrization("given"), channel_dim), backend=backend)


def apply(
    x: Tensor,
    raw: Tensor,
    spec: CombineSpec,
    scales: Tensor | None = None,
    backend: str | None = None,
    hull: Any = None,
) -> Tensor:
    """Combine with raw parameters and a spec, as the modules do, and with inner scales if they are given.

    Error messages end with the hint of the hull.
    """
    if isinstance(x, fx.Proxy):  # torch.fx traces with these in place of tensors
        return apply_encoded(x, raw, scales, spec.encoded, backend)
    check_tensors(x, raw, spec)
    if scales is not None:
        return _apply_scaled(x, raw, scales, spec, backend)
    kernel = choose(x, spec, backend)
    if is_plain(x, raw):
        if torch.is_grad_enabled() and (x.requires_grad or raw.requires_grad):
            return _combine(x, raw, spec, kernel)
        return load(kernel).forward(x, raw, spec)
    if torch.compiler.is_compiling() and kernel == "triton" and not is_exporting():
        fused: Tensor = operators.combine(x, raw, spec.encoded, backend)
        return fused
    if torch.compiler.is_compiling() or not is_eager():
        return reference.forward(
            x, raw, spec
        )  # plain operations, which every compiler, exporter and transform supports
    return _combine(x, raw, spec, "reference" if is_intercepted(x, raw) else kernel)


@fx.wrap
def apply_encoded(x: Tensor, raw: Tensor, scales: Tensor | None, encoded: str, backend: str | None) -> Tensor:
    """Call `apply` with a spec as a string, which a graph of torch.fx can hold."""
    return apply(x, raw, CombineSpec.decode(encoded), scales, backend)


def _apply_scaled(x: Tensor, raw: Tensor, scales: Tensor, spec: CombineSpec, backend: str | None) -> Tensor:
    """Compute sum over i of c_i f_i(b_i x), with one b for all bases or one for each."""
    wide = x.to(compute_dtype(x))  # once, since each product saves its factor for the backward pass
    if scales.shape[-1] == 1:
        return apply(_scaled(wide, scales, 0, spec), raw, spec, backend=backend).to(x.dtype)
    coefficients = spec.parametrization.transform(raw)
    total = torch.zeros((), dtype=wide.dtype, device=x.device)
    for n, item in enumerate(spec.bases):
        single = CombineSpec((item,), get_parametrization("given"), spec.channel_dim)
        total = total + apply(_scaled(wide, scales, n, spec), coefficients[..., n : n + 1], single, backend=backend)
    return total.to(x.dtype)


def _scaled(x: Tensor, scales: Tensor, column: int, spec: CombineSpec) -> Tensor:
    """Return x times the scales of one column."""
    factors = scales[..., column].to(x.dtype)
    if scales.dim() == 1:
        return x * factors
    shape = [1] * x.dim()
    shape[spec.channel_dim] = x.shape[spec.channel_dim]
    return x * factors.repeat_interleave(shape[spec.channel_dim] // len(factors)).reshape(shape)


def check_tensors(x: Tensor, raw: Tensor, spec: CombineSpec) -> None:
    """Raise an error unless x is dense, on the device of the raw parameters, and these are as many as the bases need,
    in one row or one per group."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.layout is not torch.strided or x.is_nested:
        given = f"one of {x.dtype} and {x.layout}" if isinstance(x, Tensor) else type(x).__name__
        hint = ""
        if isinstance(x, Tensor) and x.is_nested:
            given, hint = "a nested one", "; for nn.TransformerEncoder, replace the activations of the whole encoder"
        raise TypeError(
            f"x must be a dense floating-point tensor, got {given}; convert it, for example by torch.as_tensor(x), "
            f"x.float(), x.to_dense(), torch.view_as_real(x) or torch.nested.to_padded_tensor(x, 0.0){hint}"
        )
    if raw.device != x.device and "meta" not in (raw.device.type, x.device.type):
        raise ValueError(f"x is on {x.device} and the coefficients on {raw.device}; move both to one device with .to()")
    expected = len(spec.bases) - spec.parametrization.fewer
    if tracing_state() is None and raw.shape[-1:] != (expected,):
        raise ValueError(
            f"{' x '.join(map(str, raw.shape))} raw parameters, but {len(spec.bases)} base functions with the "
            f"parametrization {spec.parametrization.name!r} have {expected} per group"
        )
    if raw.dim() == 2:
        check_groups(x.shape, raw.shape[0], spec.channel_dim)


def check_groups(shape: Sequence[int], groups: int, channel_dim: int) -> None:
    """Raise an error unless the channels of a shape divide into that many equal groups."""
    if not -len(shape) <= channel_dim < len(shape):
        raise ValueError(f"x of shape {tuple(shape)} has no dimension {channel_dim} for {groups} groups of channels")
    channels = shape[channel_dim]
    if channels % groups:
        raise ValueError(
            f"{channels} channels (dimension {channel_dim} of {tuple(shape)}) cannot be divided into {groups} equal "
            "groups; choose a number of groups that divides them"
        )


class _Combine(torch.autograd.Function):
    """Combine; save only x and the raw parameters, and recompute the bases in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, raw: Tensor, spec: CombineSpec, kernel: str) -> Tensor:
        ctx.spec, ctx.kernel = spec, kernel
        ctx.save_for_backward(x, raw)
        return load(kernel).forward(x, raw, spec)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, raw = ctx.saved_tensors
        return *backward(gradient, x, raw, ctx.spec, ctx.kernel), None, None


# Function.apply without its Python part, which serves transforms of torch.func
_combine: Callable[..., Tensor] = super(torch.autograd.Function, _Combine).apply


def backward(gradient: Tensor, x: Tensor, raw: Tensor, spec: CombineSpec, kernel: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the raw parameters, differentiable where autograd records a graph."""
    if is_batched(gradient):
        return reference.backward(gradient, x, raw, spec)
    if not torch.is_grad_enabled():
        return load(kernel).backward(gradient, x, raw, spec)
    if kernel != "triton":
        return reference.backward(gradient, x, raw, spec)
    wide = raw.to(compute_dtype(x))
    coefficients = spec.parametrization.transform(wide)
    given = replace(spec, parametrization=get_parametrization("given"))
    dx, dc = _Gradients.apply(gradient, x, coefficients, given)  # type: ignore[no-untyped-call]
    return dx, spec.parametrization.pullback(wide, coefficients, dc).to(raw.dtype)


class _Gradients(torch.autograd.Function):
    """The backward pass of the fused kernels as a function that can be differentiated any number of times.

    The gradients of (dx, dc) are again combinations, of derivatives of the bases of the next orders.
    """

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, x: Tensor, coefficients: Tensor, spec: CombineSpec
    ) -> tuple[Tensor, Tensor]:
        ctx.spec = spec
        ctx.save_for_backward(gradient, x, coefficients)
        ctx.set_materialize_grads(False)
        return load("triton").backward(gradient, x, coefficients, spec)

    @staticmethod
    def backward(ctx: Any, v: Tensor | None, w: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, x, coefficients = ctx.saved_tensors
        spec, next_order = ctx.spec, replace(ctx.spec, order=ctx.spec.order + 1)
        kernel = "reference" if is_batched(v, w) else "triton"
        dgradient, dx, dc = None, None, None
        if v is not None:
            dgradient = v * _combine(x, coefficients, next_order, kernel)
            dx, dc = backward(v * gradient, x, coefficients, next_order, kernel)
        if w is not None:  # the coefficients' gradients are differentiated, too
            of_sums, through_sums = _combine(x, w, spec, kernel), backward(gradient, x, w, spec, kernel)[0]
            dgradient = of_sums if dgradient is None else dgradient + of_sums
            dx = through_sums if dx is None else dx + through_sums
        return dgradient, dx, dc, None
