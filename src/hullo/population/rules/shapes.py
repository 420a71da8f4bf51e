"""Rules for operators with dimensions as arguments. Most shift them by one: the members are dimension 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from hullo._compat import is_eager
from hullo.population.rules import Context, rule
from hullo.population.trace.export import LoweringError, at_source
from hullo.population.values import Value, call_pointwise, wrap

aten = torch.ops.aten


def _shift_dim(dim: Any) -> Any:
    """Return a dimension, or several, of one member's value as those of (K, ...)."""
    if isinstance(dim, int):
        return dim + 1 if dim >= 0 else dim
    return None if dim is None else [_shift_dim(item) for item in dim]


_DIMS = ("dim", "dim0", "dim1", "start_dim", "end_dim")
_REDUCTIONS = (aten.sum.dim_IntList, aten.amax.default)
"""Operators that reduce all dimensions where none are given."""
_PARTS = (aten.unbind.int, aten.chunk.default, aten.split.Tensor, aten.split_with_sizes.default)
"""Operators that take a tensor apart along the dimension that is their last argument."""


def _shift_dims(operator: Any) -> None:
    """Register a rule for an operator with dimensions as arguments."""
    schema = operator._schema.arguments
    positions = [i for i, argument in enumerate(schema) if argument.name in _DIMS]

    @rule(operator)
    def call(context: Context, x: Value, *args: Any, **kwargs: Any) -> Any:
        if len(x.shape) == 0:
            return NotImplemented
        given = [argument.default_value for argument in schema if not argument.kwarg_only]
        given[: len(args) + 1] = [x.at(0, context.members), *args]
        for position in positions:
            is_every = operator in _REDUCTIONS and given[position] in (None, [])
            given[position] = _shift_dim(range(len(x.shape)) if is_every else given[position])
        if operator in _PARTS and is_eager():
            return wrap(_Parts.apply(operator, *given), 0)  # type: ignore[no-untyped-call]
        return wrap(operator(*given, **kwargs), 0)


for _operator in (
    *(aten.transpose.int, aten.flatten.using_ints, aten.unflatten.int, aten.unsqueeze.default, aten.squeeze.dim),
    *(aten.select.int, aten.slice.Tensor, aten.chunk.default, aten.split.Tensor, aten.split_with_sizes.default),
    *(aten.unbind.int, aten.softmax.int, aten.log_softmax.int, aten.cumsum.default, *_REDUCTIONS),
):
    _shift_dims(_operator)


class _Parts(torch.autograd.Function):
    """Take a tensor apart; gradients that a kernel has written as parts of one tensor are not copied into another."""

    @staticmethod
    def forward(ctx: Any, operator: Any, x: Tensor, *given: Any) -> tuple[Tensor, ...]:
        ctx.dim, ctx.is_unbound = given[-1], operator is aten.unbind.int
        return tuple(operator(x, *given))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dim, one = ctx.dim, gradients[0]
        dim %= one.dim() + ctx.is_unbound
        offsets = [item.storage_offset() for item in gradients]
        if ctx.is_unbound:
            step = max(0, offsets[-1] - offsets[0]) // max(1, len(gradients) - 1)
            shape = [*one.shape[:dim], len(gradients), *one.shape[dim:]]
            strides = [*one.stride()[:dim], step, *one.stride()[dim:]]
            starts = [step * i for i in range(len(gradients))]
        else:
            sizes = [item.shape[dim] for item in gradients]
            shape, strides = [*one.shape[:dim], sum(sizes), *one.shape[dim + 1 :]], list(one.stride())
            starts = [strides[dim] * sum(sizes[:i]) for i in range(len(sizes))]
        are_neighbors = all(
            item.stride() == one.stride()
            and item.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
            and offset == offsets[0] + start
            for item, offset, start in zip(gradients, offsets, starts, strict=True)
        )
        if are_neighbors and not torch.is_grad_enabled():
            whole = one.as_strided(shape, strides)
        else:
            whole = torch.stack(gradients, dim) if ctx.is_unbound else torch.cat(gradients, dim)
        return None, whole, *[None] * (1 + (not ctx.is_unbound))


@rule(aten.mean.dim)
def mean(
    context: Context, x: Value, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Leave the members in their dimension, so that the gradient of images keeps their order in memory."""
    if x.dim is None or not x.shape or not is_eager():
        return NotImplemented
    own = [dim % len(x.shape) for dim in dims or range(len(x.shape))]
    tensor = x.tensor if dtype is None else x.tensor.to(dtype)
    y: Tensor = _Mean.apply(tensor, [dim + (dim >= x.dim) for dim in own], keepdim)  # type: ignore[no-untyped-call]
    return Value(y, x.dim if keepdim else x.dim - sum(dim < x.dim for dim in own))


class _Mean(torch.autograd.Function):
    """Compute a mean whose gradient is expanded rather than written entry by entry."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
        ctx.shape, ctx.dims = x.shape, dims
        return x.mean(dims, keepdim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        kept = [1 if dim in ctx.dims else size for dim, size in enumerate(ctx.shape)]
        count = math.prod(ctx.shape[dim] for dim in ctx.dims)
        return (gradient.reshape(kept).contiguous() / count).expand(ctx.shape), None, None


@rule(aten.masked_fill.Scalar)
def fill(context: Context, x: Value, mask: Value, number: float) -> Any:
    """Fill with a number, or with the largest of x's type: under autocast it may be one of a wider type."""
    if isinstance(number, float) and math.isfinite(number) and x.dtype.is_floating_point:
        limit = torch.finfo(x.dtype).max
        number = min(max(number, -limit), limit)
    return call_pointwise(aten.masked_fill.Scalar, (x, mask, number), {})


@rule(aten.permute.default)
def permute(context: Context, x: Value, dims: Sequence[int]) -> Value:
    """Permute the dimensions after the members'."""
    return Value(x.at(0, context.members).permute(0, *(dim % len(dims) + 1 for dim in dims)), 0)


@rule(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def reshape(context: Context, x: Value, shape: Sequence[int]) -> Value:
    return Value(x.at(0, context.members).reshape(context.members, *shape), 0)


@rule(aten.expand.default)
def expand(context: Context, x: Value, shape: Sequence[int], **kwargs: Any) -> Value:
    y = x.at(0, context.members)
    missing = [1] * (len(shape) - len(x.shape))
    return Value(y.reshape(context.members, *missing, *x.shape).expand(context.members, *shape), 0)


@rule(aten.clone.default, aten.alias.default)
def copy(context: Context, x: Value, **kwargs: Any) -> Value:
    """Return a copy; the memory format of one member's value is ignored."""
    return Value(x.tensor.clone(), x.dim)


@rule(aten.contiguous.default)
def order(context: Context, x: Value, **kwargs: Any) -> Value:
    """Return members one after the other in contiguous memory; others, such as images, keep their order."""
    one_by_one = x.dim == 0 and not kwargs and not x.is_stacked
    return Value(x.tensor.contiguous() if one_by_one else x.tensor.clone(), x.dim)


@rule(aten.cat.default)
def concatenate(context: Context, values: Sequence[Value], dim: int = 0) -> Any:
    """Concatenate with the members in the dimension of the first value that differs between members."""
    to = next(value.dim for value in values if value.dim is not None)
    if any(len(value.shape) != len(values[0].shape) for value in values):
        return NotImplemented
    dim %= len(values[0].shape)
    parts, at = [value.at(to, context.members) for value in values], dim + (dim >= to)
    if len(values[0].shape) != 4 or to > 1 or not is_eager():
        return Value(torch.cat(parts, at), to)
    order = [0, 3, 4, 1, 2] if to == 1 else [0, 1, 3, 4, 2]  # images stay in the order in which convolutions keep them
    y: Tensor = _Concatenate.apply(order.index(at), *(part.permute(order) for part in parts))  # type: ignore[no-untyped-call]
    return Value(y.permute([order.index(i) for i in range(5)]), to)


class _Concatenate(torch.autograd.Function):
    """Concatenate tensors whose gradients are contiguous; those of `torch.cat` are parts of the whole."""

    @staticmethod
    def forward(ctx: Any, dim: int, *parts: Tensor) -> Tensor:
        ctx.dim, ctx.sizes = dim, [part.shape[dim] for part in parts]
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts = zip(torch.split(gradient, ctx.sizes, ctx.dim), ctx.needs_input_grad[1:], strict=True)
        return None, *(part.contiguous() if is_needed else None for part, is_needed in parts)


@rule(aten.stack.default)
def stack(context: Context, values: Sequence[Value], dim: int = 0) -> Value:
    return Value(torch.stack([value.at(0, context.members) for value in values], _shift_dim(dim)), 0)


STRIDED = (aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default)


def call_strided(members: int, node: fx.Node, x: Value, *args: Any) -> Value:
    """Compute an operation on memory: each member's input gets the order in memory that it has in the trace."""
    *source, size, stride, offset = args if isinstance(args[-1], int) else (*args, None)
    is_shared = all(value.dim is None for value in (x, *source))
    members = 1 if is_shared else members
    traced = node.args[0].meta["val"]  # type: ignore[union-attr]
    start = 0 if offset is None else offset - traced.storage_offset()
    end = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    span = sum((n - 1) * step for n, step in zip(traced.shape, traced.stride(), strict=True))
    if span != traced.numel() - 1 or not 0 <= start <= end < traced.numel():
        raise LoweringError(f"{node.target} uses memory outside of its input{at_source(node)}; use indices instead")
    order = sorted(range(traced.dim()), key=lambda d: -traced.stride(d))
    ordered = x.at(0, members).permute(0, *(1 + d for d in order))
    memory = ordered.clone(memory_format=torch.contiguous_format) if source else ordered.contiguous()
    y = memory.as_strided((members, *size), (traced.numel(), *stride), memory.storage_offset() + start)
    if source:
        y.copy_(source[0].at(0, members))
        y = memory.permute(0, *(1 + order.index(d) for d in range(traced.dim())))
    return Value(y[0]) if is_shared else Value(y, 0)
