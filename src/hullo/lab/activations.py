"""Activations by their spelling, and the activation layers of a population, each member with its own.

A *row* says what a network's activations are: a base function such as ``relu`` or ``leaky_relu(0.2)``, which stays as
it is, or a hull such as ``convex(identity,relu)`` or ``affine(identity,relu,tanh)``, which is learned. Every row is a
point or a set in the space of coefficients over the bases of all rows, so members with different rows are one call of
`combine`: a fixed activation is a row of coefficients that never moves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hullo.bases import Base, base, names, resolve
from hullo.coefficients import way
from hullo.functional import apply
from hullo.kernels import Plan

HULLS = ("convex", "affine")


@dataclass(frozen=True)
class Row:
    """What the activations of a network are: one base function, or the hull of several, in the catalogue's order.

    >>> from hullo.lab.activations import Row
    >>> str(Row.parse("affine(tanh, identity)"))
    'affine(identity,tanh)'
    >>> str(Row.parse("leaky_relu(0.01)"))
    'leaky_relu'
    """

    kind: str
    bases: tuple[Base, ...]

    @classmethod
    def parse(cls, text: str | Row) -> Row:
        """The row of a spelling."""
        if isinstance(text, Row):
            return text
        if not isinstance(text, str):
            raise TypeError(f"an activation is spelled in text, as in 'relu'; got {text!r} of {type(text).__name__}")
        hull = re.fullmatch(rf"\s*({'|'.join(HULLS)})\s*\((.*)\)\s*", text)
        kind, inner = (hull[1], hull[2]) if hull else ("fixed", text)
        try:
            # commas between bases, not those between the parameters of one
            found = resolve(re.split(r",(?![^(]*\))", inner) if hull else [inner], strict=False)
        except ValueError as error:
            wanted = "a base function, or convex(...) or affine(...) of several, as in convex(identity,relu)"
            raise ValueError(f"{text!r} is no activation: {error}. An activation is {wanted}") from None
        return cls(kind, in_order(found))

    def __str__(self) -> str:
        spelled = ",".join(item.name for item in self.bases)
        return f"{self.kind}({spelled})" if self.learns else spelled

    @property
    def learns(self) -> bool:
        return self.kind in HULLS

    @property
    def start(self) -> dict[Base, float]:
        """The first coefficients: 1/N each in a hull.

        A fixed leaky_relu(a) is a * identity + (1 - a) * relu, and so needs no base of its own beside these.
        """
        if not self.learns and self.bases[0].name.startswith("leaky_relu"):
            slope = self.bases[0].slopes_at_zero[0]
            return {base("identity"): slope, base("relu"): 1 - slope}
        return dict.fromkeys(self.bases, 1 / len(self.bases))


def in_order(bases: Iterable[Base]) -> tuple[Base, ...]:
    """Bases once each, in the catalogue's order."""
    position = {name: i for i, name in enumerate(names())}
    return tuple(sorted(set(bases), key=lambda item: (position[item.name.partition("(")[0]], item.name)))


class Activations(nn.Module):
    """All activation layers of a population: K members with a row each, and coefficients for each of L layers.

    The raw numbers of all members and layers are one parameter of shape (K, L, N), so that keeping them in their hulls
    takes one pass a step, however deep the network is. A buffer holds them where no row learns.

    Example:
        >>> import torch
        >>> from hullo.lab.activations import Activations, Row
        >>> layers = Activations([Row.parse("relu"), Row.parse("convex(identity,tanh)")], layers=2)
        >>> [item.name for item in layers.bases]
        ['identity', 'relu', 'tanh']
        >>> layers.coefficients[1, 0]
        tensor([0.5000, 0.0000, 0.5000], grad_fn=<SelectBackward0>)
        >>> first, second = layers()
        >>> first(torch.tensor([[[-1.0]], [[-1.0]]])).flatten()
        tensor([ 0.0000, -0.8808], grad_fn=<ViewBackward0>)
    """

    raw: Tensor
    unused: Tensor
    share: Tensor
    convex: Tensor
    affine: Tensor

    def __init__(self, rows: Sequence[Row], layers: int) -> None:
        super().__init__()
        self.rows = tuple(rows)
        self.bases = in_order(item for row in rows for item in row.start)
        start = torch.tensor([[row.start.get(item, 0.0) for item in self.bases] for row in rows]).unsqueeze(1)
        raw = start.repeat(1, layers, 1)  # in all ways that are used here the raw numbers of coefficients are these
        if any(row.learns for row in rows):
            self.raw = nn.Parameter(raw)
        else:
            self.register_buffer("raw", raw)
        used = start != 0
        self.register_buffer("unused", ~used, persistent=False)
        self.register_buffer("share", used / used.sum(-1, keepdim=True), persistent=False)
        for kind in HULLS:
            chosen = torch.tensor([row.kind == kind for row in rows]).view(-1, 1, 1)
            self.register_buffer(kind, chosen, persistent=False)

    @property
    def coefficients(self) -> Tensor:
        """The coefficients of every member and layer, shape (K, L, N), over `bases`; each row is in its hull."""
        if not isinstance(self.raw, nn.Parameter):
            return self.raw
        kept: Tensor = _Kept.apply(self.raw, self.unused, self.share, self.convex, self.affine)  # type: ignore[no-untyped-call]
        return kept

    def forward(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """The activation functions, layer by layer; each takes (B, K*C, H, W) or (K, B, features)."""
        for rows in self.coefficients.transpose(0, 1).contiguous().unbind():
            yield _Layer(rows.squeeze(0), self.bases)  # one member's row serves all channels, which is faster

    def extra_repr(self) -> str:
        return f"{', '.join(dict.fromkeys(map(str, self.rows)))}; layers={self.raw.shape[1]}"


@dataclass(frozen=True)
class _Layer:
    rows: Tensor
    bases: tuple[Base, ...]

    def __call__(self, x: Tensor) -> Tensor:
        # Not `hullo.combine`, which asks for independent bases: members do not share coefficients, so what one row
        # uses may well be a combination of what others use.
        return apply(x, self.rows, Plan(self.bases, way("given"), channel_dim=1 if x.dim() == 4 else 0))


class _Kept(torch.autograd.Function):
    """Raw numbers to coefficients, each row by the way of its own hull and over the bases it uses.

    An affine row is recentred, c = r + (1 - sum r) / n, by `share`, which is 1 / n for the n bases it uses and 0 for
    the others; their raw numbers are 0 and stay so. A convex row is projected by the library's own functions: there a
    base that is not used has the raw number -inf, and the gradient +inf, against which no coefficient can move.
    """

    @staticmethod
    def forward(ctx: Any, raw: Tensor, unused: Tensor, share: Tensor, convex: Tensor, affine: Tensor) -> Tensor:
        projected = way("projection").coefficients(raw.masked_fill(unused, -torch.inf))
        ctx.save_for_backward(raw, projected, unused, share, convex, affine)
        recentred = raw + share * (1 - raw.sum(-1, keepdim=True))
        return torch.where(convex, projected, torch.where(affine, recentred, raw))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        raw, projected, unused, share, convex, affine = ctx.saved_tensors
        pulled = way("projection").pullback(raw, projected, gradient.masked_fill(unused, torch.inf))
        own = gradient.masked_fill(unused, 0.0)
        centred = own - share * own.sum(-1, keepdim=True)
        return torch.where(convex, pulled, torch.where(affine, centred, 0.0)), None, None, None, None
