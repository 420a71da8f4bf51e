"""Hulls that change their input, in the place of activations that do."""

from __future__ import annotations

from torch import Tensor

from hullo.modules import AffineHull, ConicHull, ConvexHull, Hull, LinearHull


class InPlace:
    """Makes a hull change its input, as the activation did that was there: other code may count on it."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (PyTorch's name)
        return input.copy_(super().forward(input.clone()))  # type: ignore[misc]  # the copy is kept for the backward


class InPlaceAffineHull(InPlace, AffineHull):
    """An affine hull that changes its input."""


class InPlaceConvexHull(InPlace, ConvexHull):
    """A convex hull that changes its input."""


class InPlaceConicHull(InPlace, ConicHull):
    """A conic hull that changes its input."""


class InPlaceLinearHull(InPlace, LinearHull):
    """A linear hull that changes its input."""


_CLASSES: dict[type[Hull], type[Hull]] = {
    cls.__mro__[2]: cls for cls in (InPlaceAffineHull, InPlaceConvexHull, InPlaceConicHull, InPlaceLinearHull)
}


def change_input(hull: Hull) -> None:
    """Make a hull change its input."""
    if isinstance(hull, InPlace):  # shared with another place
        return
    if type(hull) not in _CLASSES:
        kind, known = type(hull).__name__, ", ".join(cls.__name__ for cls in _CLASSES)
        raise TypeError(f"a {kind} cannot change its input, as the activation there does; give one of {known}")
    hull.__class__ = _CLASSES[type(hull)]
