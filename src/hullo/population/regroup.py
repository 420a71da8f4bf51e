"""Take the members of a tensor apart into groups and put them together again, without zeros in any derivative.

The derivative of one is the other, so that derivatives of any order take one copy each; those of PyTorch's selections
fill a tensor of the whole size with zeros for each part.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hullo._compat import is_eager


def split_members(x: Tensor, dim: int, groups: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the members of each group, by their indices in dimension `dim`, which are all of that dimension."""
    if not is_eager():
        return [x.index_select(dim, members) for members in groups]
    parts: Sequence[Tensor] = _Split.apply(dim, groups, x)
    return parts


def join_members(parts: Sequence[Tensor], dim: int, groups: Sequence[Tensor]) -> Tensor:
    """Return the tensor that :func:`split_members` takes apart."""
    if not is_eager():
        return torch.cat(list(parts), dim).index_select(dim, torch.cat(list(groups)).argsort())
    joined: Tensor = _Join.apply(dim, groups, *parts)
    return joined


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dim: int, groups: Sequence[Tensor], x: Tensor) -> tuple[Tensor, ...]:
        ctx.dim, ctx.groups = dim, groups
        return tuple(x.index_select(dim, members) for members in groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor]:
        return None, None, _Join.apply(ctx.dim, ctx.groups, *gradients)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dim: int, groups: Sequence[Tensor], *parts: Tensor) -> Tensor:
        ctx.dim, ctx.groups = dim, groups
        shape = list(parts[0].shape)
        shape[dim] = sum(map(len, groups))
        joined = parts[0].new_empty(shape)
        for members, part in zip(groups, parts, strict=True):
            joined.index_copy_(dim, members, part)
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_Split.apply(ctx.dim, ctx.groups, gradient)
