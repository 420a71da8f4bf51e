"""Combine base functions: the function that every hull calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from hullo import operators
from hullo._compat import is_exporting, is_intercepted, needs_plain_operations
from hullo.bases import Base, resolve
from hullo.kernels import CombineSpec, choose, load, reference
from hullo.parametrizations import get_parametrization


def combine(
    x: Tensor,
    coefficients: Tensor,
    bases: Iterable[str | Base],
    *,
    channel_dim: int = 1,
    backend: str | None = None,
) -> Tensor:
    r"""Combine base functions: y = sum over i of c_i f_i(x), entry by entry.

    Args:
        x: any dense floating-point tensor.
        coefficients: N numbers, or G rows of them: then the channels fall into G equal groups in their order, each
            with its own row. They are used as given; a hull's coefficients sum to one.
        bases: N names of the catalogue or :class:`hullo.Base` objects; any function is admitted here.
        channel_dim: which dimension of x holds the channels.
        backend: "reference", "cpu" or "triton"; by default the fastest that serves x.

    Values are computed in float32 or float64 and returned in the dtype of x. Only x and the coefficients are saved
    for the backward pass.

    Example:
        >>> import torch, hullo
        >>> x = torch.tensor([-1.0, 0.0, 2.0])
        >>> hullo.combine(x, torch.tensor([0.25, 0.75]), ["identity", "relu"])
        tensor([-0.2500,  0.0000,  2.0000])
    """
    found = resolve(bases, strict=False)
    if not isinstance(coefficients, Tensor) or not coefficients.is_floating_point():
        given = coefficients.dtype if isinstance(coefficients, Tensor) else type(coefficients).__name__
        raise TypeError(f"coefficients must be a floating-point tensor, got {given}; torch.tensor([...]) makes one")
    if coefficients.dim() not in (1, 2) or coefficients.shape[-1] != len(found):
        raise ValueError(
            f"invalid shape {tuple(coefficients.shape)} of coefficients for {len(found)} bases; valid are "
            f"({len(found)},) and (groups, {len(found)})"
        )
    return apply(x, coefficients, CombineSpec(found, get_parametrization("given"), channel_dim), backend)


def apply(x: Tensor, raw: Tensor, spec: CombineSpec, backend: str | None = None, hull: object = None) -> Tensor:
    """Combine with raw parameters and a spec, as the modules do. Errors end with the hint of the hull."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.layout is not torch.strided or x.is_nested:
        if isinstance(x, fx.Proxy):  # torch.fx follows code with these in the places of tensors
            return apply_spelled(x, raw, *spec.spelled, backend)
        raise TypeError(_why_not(x) + getattr(hull, "how_to_avoid", ""))
    if raw.device != x.device and "meta" not in (raw.device.type, x.device.type):
        raise ValueError(f"x is on {x.device} and the coefficients on {raw.device}; move both to one device with .to()")
    if raw.dim() == 2:
        check_groups(x.shape, raw.shape[0], spec.channel_dim)
    kernel = choose(x, spec, backend)
    if not torch.compiler.is_compiling() and torch._C._get_tracing_state() is None:
        return _dispatch(x, raw, spec, "reference" if is_intercepted(x, raw) else kernel)
    if kernel == "triton" and not is_exporting():
        result: Tensor = operators.combine(x, raw, *spec.spelled, backend)
        return result
    return reference.forward(x, raw, spec)  # plain operations: a compiler fuses them, and exporters know them


@fx.wrap
def apply_spelled(
    x: Tensor, raw: Tensor, bases: str, parametrization: str, channel_dim: int, backend: str | None
) -> Tensor:
    """Call `apply` with a spec of strings and numbers, which a graph of torch.fx can hold."""
    return apply(x, raw, operators.spec(bases, parametrization, channel_dim), backend)


def _why_not(x: object) -> str:
    """Return why x cannot be the input of a hull, and what to do."""
    if not isinstance(x, Tensor):
        return f"x must be a floating-point tensor, got {type(x).__name__}; torch.as_tensor(x) makes one of numbers"
    if x.is_nested:
        return (
            "x must be a dense tensor, got a nested one; torch.nested.to_padded_tensor(x, 0.0) makes it dense. For "
            "layers of an nn.TransformerEncoder, replace the activations of the whole encoder"
        )
    if x.layout is not torch.strided:
        return f"x must be a dense tensor, got one of layout {x.layout}; x.to_dense() makes it dense"
    if x.is_complex():
        return f"x must be a floating-point tensor, got {x.dtype}; torch.view_as_real(x) makes it real"
    return f"x must be a floating-point tensor, got {x.dtype}; for integers call x.float() first"


def check_groups(shape: Sequence[int], groups: int, channel_dim: int) -> None:
    """Raise an error unless the channels of a shape divide into that many equal groups."""
    if not -len(shape) <= channel_dim < len(shape):
        raise ValueError(f"x of shape {tuple(shape)} has no dimension {channel_dim} for {groups} groups of channels")
    channels = shape[channel_dim]
    if channels % groups:
        raise ValueError(
            f"{channels} channels (dimension {channel_dim} of {tuple(shape)}) do not fall into {groups} equal "
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
        # The reference supports higher-order gradients and batches of gradients (is_grads_batched).
        batched = torch._C._functorch.is_legacy_batchedtensor(gradient)
        kernel = reference if torch.is_grad_enabled() or batched else load(ctx.kernel)
        return *kernel.backward(gradient, x, raw, ctx.spec), None, None


class _TransformedCombine(_Combine):
    """Combine with the separate setup_context that torch.func requires, which takes three times as long to call."""

    @staticmethod
    def forward(x: Tensor, raw: Tensor, spec: CombineSpec, kernel: str) -> Tensor:  # type: ignore[override]
        return load(kernel).forward(x, raw, spec)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, CombineSpec, str], output: Tensor) -> None:
        x, raw, ctx.spec, ctx.kernel = inputs
        ctx.save_for_backward(x, raw)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, raw: Tensor, spec: CombineSpec, kernel: str
    ) -> tuple[Tensor, int]:
        """Merge a batch of inputs into the input, and a batch of coefficients into the groups."""
        x_dim, raw_dim = in_dims[:2]
        if x_dim is None:
            x, x_dim = x.expand(info.batch_size, *x.shape), 0
        if raw_dim is None:
            channel_dim = spec.channel_dim % (x.dim() - 1) + 1 if raw.dim() == 2 else 0
            return _dispatch(x.movedim(x_dim, 0), raw, replace(spec, channel_dim=channel_dim), kernel), 0
        raw = raw.movedim(raw_dim, 0)
        batch_dim = spec.channel_dim % (x.dim() - 1) if raw.dim() == 3 else 0
        x = x.movedim(x_dim, batch_dim)
        merged = x.flatten(batch_dim, batch_dim + 1) if raw.dim() == 3 else x
        rows = raw.reshape(-1, raw.shape[-1])
        y = _dispatch(merged, rows, replace(spec, channel_dim=batch_dim), kernel)
        return y.reshape(x.shape), batch_dim


def _dispatch(x: Tensor, raw: Tensor, spec: CombineSpec, kernel: str) -> Tensor:
    if needs_plain_operations():
        return reference.forward(x, raw, spec)
    function = _TransformedCombine if torch._C._are_functorch_transforms_active() else _Combine
    result: Tensor = function.apply(x, raw, spec, kernel)  # type: ignore[no-untyped-call]
    return result
