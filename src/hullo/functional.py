"""combine: the function under every hull."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hullo.bases import Base, resolve
from hullo.coefficients import way
from hullo.kernels import Kernel, Plan, choose, reference


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
        x: any floating-point tensor.
        coefficients: N numbers, or G rows of them: then the channels fall into G equal groups in their order, each
            with its own row. They are used as given; a hull's coefficients sum to one.
        bases: N names of the catalogue or :class:`hullo.Base` objects; any function is admitted here.
        channel_dim: which dimension of x holds the channels.
        backend: "cpu" or "reference"; by default the fastest that serves x.

    Values are computed in float32 at least and returned in the type of x. Only x and the coefficients are kept for
    the backward pass.

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
            f"coefficients for {len(found)} bases have shape ({len(found)},) or (groups, {len(found)}), "
            f"got {tuple(coefficients.shape)}"
        )
    return apply(x, coefficients, Plan(found, way("given"), channel_dim), backend)


def apply(x: Tensor, raw: Tensor, plan: Plan, backend: str | None = None) -> Tensor:
    """`combine` over raw numbers, for those who hold a plan: the modules."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        given = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a floating-point tensor, got {given}; for integers call x.float() first")
    if raw.device != x.device and "meta" not in (raw.device.type, x.device.type):
        raise ValueError(f"x is on {x.device} and the coefficients on {raw.device}; move both to one device with .to()")
    if raw.dim() == 2:
        _check_groups(x, raw.shape[0], plan.channel_dim)
    kernel = choose(x, backend)
    if torch.compiler.is_compiling():
        return reference.forward(x, raw, plan)  # plain operations: the compiler fuses them, exporters know them
    return _dispatch(x, raw, plan, kernel)


def _check_groups(x: Tensor, groups: int, channel_dim: int) -> None:
    if not -x.dim() <= channel_dim < x.dim():
        raise ValueError(f"x of shape {tuple(x.shape)} has no dimension {channel_dim} for {groups} groups of channels")
    channels = x.shape[channel_dim]
    if channels % groups:
        raise ValueError(
            f"{channels} channels (dimension {channel_dim} of {tuple(x.shape)}) do not fall into {groups} equal "
            "groups; choose a number of groups that divides them"
        )


class _Combine(torch.autograd.Function):
    """Keeps x and the raw numbers alone, and computes the bases again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, raw: Tensor, plan: Plan, kernel: Kernel) -> Tensor:
        ctx.plan, ctx.kernel = plan, kernel
        ctx.save_for_backward(x, raw)
        ctx.save_for_forward(x, raw)
        return kernel.forward(x, raw, plan)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, raw = ctx.saved_tensors
        # Where gradients of gradients are wanted, or many at once (is_grads_batched), the plain form serves: it can be
        # differentiated again, as often as one likes, and batched.
        batched = torch._C._functorch.is_legacy_batchedtensor(gradient)
        kernel = reference if torch.is_grad_enabled() or batched else ctx.kernel
        return *kernel.backward(gradient, x, raw, ctx.plan), None, None

    @staticmethod
    def jvp(ctx: Any, x_tangent: Tensor | None, raw_tangent: Tensor | None, *_: None) -> Tensor:
        x, raw = ctx.saved_tensors
        tangents = tuple(torch.zeros_like(t) if d is None else d for t, d in ((x, x_tangent), (raw, raw_tangent)))
        # The backward pass is linear in the gradient; what pulls tangents back through it pushes them forward.
        plain = functools.partial(reference.backward, x=x, raw=raw, plan=ctx.plan)
        push = torch.func.vjp(plain, torch.zeros_like(x))[1]
        tangent: Tensor = push(tangents)[0]
        return tangent


class _TransformedCombine(_Combine):
    """The same in the form that torch.func asks for, which takes three times as long to call."""

    @staticmethod
    def forward(x: Tensor, raw: Tensor, plan: Plan, kernel: Kernel) -> Tensor:  # type: ignore[override]
        return kernel.forward(x, raw, plan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Plan, Kernel], output: Tensor) -> None:
        x, raw, ctx.plan, ctx.kernel = inputs
        ctx.save_for_backward(x, raw)
        ctx.save_for_forward(x, raw)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, raw: Tensor, plan: Plan, kernel: Kernel
    ) -> tuple[Tensor, int]:
        """A batch of inputs is a longer input; a batch of coefficients is as many more groups."""
        x_dim, raw_dim = in_dims[:2]
        if x_dim is None:
            x, x_dim = x.expand(info.batch_size, *x.shape), 0
        if raw_dim is None:
            channel_dim = plan.channel_dim % (x.dim() - 1) + 1 if raw.dim() == 2 else 0
            return _dispatch(x.movedim(x_dim, 0), raw, replace(plan, channel_dim=channel_dim), kernel), 0
        raw = raw.movedim(raw_dim, 0)
        batch_dim = plan.channel_dim % (x.dim() - 1) if raw.dim() == 3 else 0
        x = x.movedim(x_dim, batch_dim)
        merged = x.flatten(batch_dim, batch_dim + 1) if raw.dim() == 3 else x
        rows = raw.reshape(-1, raw.shape[-1])
        y = _dispatch(merged, rows, replace(plan, channel_dim=batch_dim), kernel)
        return y.reshape(x.shape), batch_dim


def _dispatch(x: Tensor, raw: Tensor, plan: Plan, kernel: Kernel) -> Tensor:
    function = _TransformedCombine if torch._C._are_functorch_transforms_active() else _Combine
    result: Tensor = function.apply(x, raw, plan, kernel)  # type: ignore[no-untyped-call]
    return result
