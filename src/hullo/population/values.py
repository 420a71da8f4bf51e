"""Tensors of a population: one tensor holds the values of all members, along one dimension."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor

from hullo._compat import quiet_vmap


@dataclass(eq=False)
class Value:
    """Hold one value of the members' graph for all members.

    Args:
        tensor: the values of all members.
        dim: the dimension of `tensor` that indexes the members; None if all members share one value.

    Convolutions keep images as (B, K, C, H, W), a view of (B, K*C, H, W), or stacked, (K, B, C, H, W) with channels
    last (see :mod:`hullo.population.kernels.layouts`); linear layers keep features as (K, B, F). An operation takes its
    inputs in any order of dimensions and returns the order that it computes in.
    """

    tensor: Tensor
    dim: int | None = None

    @property
    def shape(self) -> torch.Size:
        """Return the shape of one member's value."""
        if self.dim is None:
            return self.tensor.shape
        return torch.Size([*self.tensor.shape[: self.dim], *self.tensor.shape[self.dim + 1 :]])

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    @property
    def is_stacked(self) -> bool:
        """Return whether these are images of one member after the other, each with channels last."""
        has_channels = self.dim == 0 and len(self.shape) == 4 and self.shape[1] > 1
        return has_channels and self.tensor.movedim(2, -1).is_contiguous()

    def select(self, k: int) -> Tensor:
        """Return member k's value."""
        return self.tensor if self.dim is None else self.tensor.select(self.dim, k)

    def cast(self, dtype: torch.dtype) -> Value:
        """Return the value in a dtype: one copy for all users, which also add up their gradients in that dtype."""
        if dtype == self.dtype:
            return self
        found: Value | None = self._casts.get((dtype, torch.is_grad_enabled()))
        return self.keep_cast(self.tensor.to(dtype)) if found is None else found

    def keep_cast(self, tensor: Tensor) -> Value:
        """Return `tensor` as the value in its dtype, and from now on whenever that is asked for."""
        cast = self._casts[tensor.dtype, torch.is_grad_enabled()] = Value(tensor, self.dim)
        return cast

    @functools.cached_property
    def _casts(self) -> dict[tuple[torch.dtype, bool], Value]:
        return {}

    def first(self) -> Value:
        """Return the value with the members in the first dimension, if each has its own."""
        return self if self.dim in (None, 0) else Value(self.tensor.movedim(self.dim, 0), 0)

    def own(self, members: int) -> Value:
        """Return a value of which each member has its own copy."""
        return self if self.dim is not None else Value(self.at(0, members).clone(), 0)

    def at(self, dim: int, members: int) -> Tensor:
        """Return the tensor with the members in dimension `dim`; a shared value is expanded."""
        if self.dim is None:
            return self.tensor.unsqueeze(dim).expand(*self.tensor.shape[:dim], members, *self.tensor.shape[dim:])
        return self.tensor.movedim(self.dim, dim)


class PaddedValue(Value):
    """Hold images and their zero padding; a convolution reads them without creating the padded `tensor`.

    Args:
        inner: the images.
        pad: the number of zeros left, right, above and below.
    """

    def __init__(self, inner: Value, pad: tuple[int, int, int, int]) -> None:
        self.inner, self.pad, self.dim = inner, pad, inner.dim

    @functools.cached_property
    def tensor(self) -> Tensor:  # type: ignore[override]
        return F.pad(self.inner.tensor, self.pad)

    @property
    def shape(self) -> torch.Size:
        *others, height, width = self.inner.shape
        return torch.Size([*others, height + sum(self.pad[2:]), width + sum(self.pad[:2])])


def is_value(item: Any) -> bool:
    return isinstance(item, Value)


def values_in(tree: Any) -> list[Value]:
    """Return the values in nested lists, tuples and dictionaries."""
    return [item for item in pytree.tree_leaves(tree, is_leaf=is_value) if is_value(item)]


def map_values(function: Callable[[Value], Any], tree: Any) -> Any:
    """Apply a function to all values in nested lists, tuples and dictionaries."""
    return pytree.tree_map(lambda item: function(item) if is_value(item) else item, tree, is_leaf=is_value)


def wrap(tree: Any, dim: int | None) -> Any:
    """Return nested results with a value for each tensor."""
    return pytree.tree_map(lambda item: Value(item, dim) if isinstance(item, Tensor) else item, tree)


def call_shared(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function once for all members, which share its inputs and results."""
    args, kwargs = map_values(lambda value: value.tensor, (tuple(args), kwargs))
    return wrap(function(*args, **kwargs), None)


def call_pointwise(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call an elementwise function for all members at once, in the order of dimensions of its largest input."""
    values = values_in((args, kwargs))
    members = next(value.tensor.shape[value.dim] for value in values if value.dim is not None)
    most = max(len(value.shape) for value in values)
    dim = next((value.dim for value in values if value.dim is not None and len(value.shape) == most), 0)

    def align(value: Value) -> Tensor:
        """Return a tensor with as many dimensions as the largest, the members in dimension `dim`."""
        missing = [1] * (most - len(value.shape))
        if value.dim is None:
            return value.tensor.reshape([*missing, *value.shape]).unsqueeze(dim)
        if not missing:
            return value.at(dim, members)
        return value.at(0, members).reshape(members, *missing, *value.shape).movedim(0, dim)

    args, kwargs = map_values(align, (tuple(args), kwargs))
    result = function(*args, **kwargs)
    if most and len({value.dtype for value in values}) > 1:
        result = _promoted(result, values)
    return wrap(result, dim)


def _promoted(result: Tensor, values: Sequence[Value]) -> Tensor:
    """Return a result in one member's type, where a tensor without dimensions does not widen the type of others."""
    large, small = ([value.dtype for value in values if bool(value.shape) is has_dims] for has_dims in (True, False))
    if not small or result.dtype != functools.reduce(torch.promote_types, [*large, *small]):
        return result
    one, other = (functools.reduce(torch.promote_types, dtypes) for dtypes in (large, small))
    return result.to(torch.result_type(torch.empty(1, dtype=one), torch.empty((), dtype=other)))


def call_vmapped(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function for every member by :func:`torch.vmap`."""
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs), is_leaf=is_value)
    positions = [i for i, leaf in enumerate(leaves) if is_value(leaf)]
    returned: list[Any] = []  # vmap returns only tensors

    def call(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for i, tensor in zip(positions, tensors, strict=True):
            filled[i] = tensor
        own_args, own_kwargs = pytree.tree_unflatten(filled, spec)
        results, results_spec = pytree.tree_flatten(function(*own_args, **own_kwargs))
        returned[:] = [results_spec, results]
        return tuple(item for item in results if isinstance(item, Tensor))

    # rules of vmap for several inputs are often right only if the members are in the same dimension of all
    given = [leaves[i] if leaves[i].dim is None else leaves[i].first() for i in positions]
    with quiet_vmap():  # `explain` lists these calls
        tensors = iter(torch.vmap(call, in_dims=tuple(item.dim for item in given))(*(item.tensor for item in given)))
    results_spec, results = returned
    filled = [Value(next(tensors), 0) if isinstance(item, Tensor) else item for item in results]
    return pytree.tree_unflatten(filled, results_spec)


def call_looped(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], members: int) -> Any:
    """Call a function for one member after the other, and stack the results."""
    results = []
    for k in range(members):
        own_args, own_kwargs = map_values(lambda value, k=k: value.select(k), (tuple(args), kwargs))  # type: ignore[misc]
        results.append(function(*own_args, **own_kwargs))
    return wrap(pytree.tree_map(lambda *items: _merge(items), *results), 0)


def _merge(items: Sequence[Any]) -> Any:
    """Return the members' tensors as one, or the one item that all members have, which is no tensor."""
    first = items[0]
    if isinstance(first, Tensor):
        if len(shapes := {tuple(item.shape): None for item in items}) > 1:
            raise ValueError(
                f"the shape of its result depends on values: {', '.join(map(str, shapes))}; compute with masks, as in "
                "torch.where(mask, x, 0), instead of indices"
            )
        return torch.stack(list(items))
    if any(item != first for item in items[1:]):
        raise ValueError(
            f"the result is a number that differs between members, {first} and others; compute with tensors instead of "
            "numbers: without .item() and .tolist(), and with torch.gather or torch.index_select instead of an index"
        )
    return first


def copy_like(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Return a source in the shape and dtype of a target, as `aten.copy` does, but differentiably."""
    expanded: Tensor = torch.broadcast_tensors(source, target)[0]  # type: ignore[no-untyped-call]
    return expanded.to(target.dtype)
