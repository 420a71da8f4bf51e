"""Hulls that overwrite their input, as the activations they replace did."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hullo._compat import is_eager, storage_uses, tracing_state
from hullo.modules import AffineHull, ConicHull, ConvexHull, Hull, LinearHull


class InPlace:
    """Overwrite the input, as the replaced activation did: other code may rely on it.

    If no other tensor shares the memory of the input, the input gets the memory of the result instead of a copy; the
    original values remain for the backward pass.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (PyTorch's name)
        if not torch.is_grad_enabled() and tracing_state() is None:  # a trace is checked with and without gradients
            return input.copy_(super().forward(input))  # type: ignore[misc]
        if _owns_memory(input):
            output: Tensor = _ReplaceData.apply(input, super().forward(_ShareMemory.apply(input)))  # type: ignore[misc, no-untyped-call]
            return output
        return input.copy_(super().forward(input.clone()))  # type: ignore[misc]

    def _get_name(self) -> str:  # which repr() prints
        return type(self).__mro__[2].__name__

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, inplace=True"  # type: ignore[misc]


def _owns_memory(x: Tensor) -> bool:
    """Return whether x was computed and no other tensor shares its memory."""
    if (
        torch.compiler.is_compiling()
        or type(x) is not Tensor
        or not is_eager()
        or x.grad_fn is None
        or x._is_view()
        or x.layout is not torch.strided
    ):
        return False
    return storage_uses(x) == 2  # x and this call


class _ShareMemory(torch.autograd.Function):
    """Return a new tensor with the memory of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.data

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _ReplaceData(torch.autograd.Function):
    """Give x the memory and the history of y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        x.data = y
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


class InPlaceAffineHull(InPlace, AffineHull):
    """Affine hull that overwrites its input."""


class InPlaceConvexHull(InPlace, ConvexHull):
    """Convex hull that overwrites its input."""


class InPlaceConicHull(InPlace, ConicHull):
    """Conic hull that overwrites its input."""


class InPlaceLinearHull(InPlace, LinearHull):
    """Linear hull that overwrites its input."""


_IN_PLACE: dict[type[Hull], type[Hull]] = {
    cls.__mro__[2]: cls for cls in (InPlaceAffineHull, InPlaceConvexHull, InPlaceConicHull, InPlaceLinearHull)
}


def make_in_place(hull: Hull) -> None:
    """Make a hull overwrite its input, unless it does already, as one that is shared with another site may."""
    if isinstance(hull, InPlace):
        return
    if type(hull) not in _IN_PLACE:
        kind, valid = type(hull).__name__, ", ".join(cls.__name__ for cls in _IN_PLACE)
        raise TypeError(f"a {kind} cannot overwrite its input, as the activation there does; give one of {valid}")
    hull.__class__ = _IN_PLACE[type(hull)]
