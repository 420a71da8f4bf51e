"""What is measured: native activations, and one hull written in every way one would write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hullo.modules import AffineHull

THREE = ("identity", "relu", "tanh")
SIX = (*THREE, "hardtanh", "unit_gelu", "unit_silu")


def plain(x: Tensor, coefficients: Tensor) -> Tensor:
    """The hull as one writes it first: c1 x + c2 relu(x) + c3 tanh(x)."""
    c1, c2, c3 = _columns(coefficients, x)
    return c1 * x + c2 * torch.relu(x) + c3 * torch.tanh(x)


def stacked(x: Tensor, coefficients: Tensor) -> Tensor:
    """The hull as the paper draws it: one copy of the layer a base, then a weighted sum over the copies."""
    first, second, third = torch.stack([x, x, x])
    values = torch.stack([first, torch.relu(second), torch.tanh(third)])
    weights = torch.stack(tuple(_columns(coefficients, x)))
    over_values = weights.reshape(3, *[1] * (values.dim() - weights.dim()), *weights.shape[1:])
    return (over_values * values).sum(0)


def _columns(coefficients: Tensor, x: Tensor) -> Sequence[Tensor]:
    """Each base's coefficients, shaped to be multiplied with x; the channels are dimension 1."""
    rows = coefficients.to(x.dtype)
    if rows.dim() == 1:
        return rows.unbind()
    channels = rows.repeat_interleave(x.shape[1] // len(rows), dim=0)
    return [c.reshape(-1, *[1] * (x.dim() - 2)) for c in channels.unbind(-1)]


class Formula(nn.Module):
    """A function of x and of coefficients over {identity, relu, tanh}, as a module."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], groups: int) -> None:
        super().__init__()
        self.function = function
        shape = (3,) if groups == 1 else (groups, 3)
        self.coefficients = nn.Parameter(torch.full(shape, 1 / 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.coefficients)


@dataclass(frozen=True)
class Contender:
    """An activation to measure: what a table calls it, and how it is built for so many groups of so many channels."""

    label: str
    build: Callable[[int, int], nn.Module]
    needs_compiler: bool = False


CONTENDERS = {
    "relu": Contender("ReLU", lambda groups, channels: nn.ReLU()),
    "gelu": Contender("GELU", lambda groups, channels: nn.GELU()),
    "prelu": Contender("PReLU", lambda groups, channels: nn.PReLU(1 if groups == 1 else channels)),
    "plain": Contender("hull, plain PyTorch", lambda groups, channels: Formula(plain, groups)),
    "stacked": Contender("hull, stacked", lambda groups, channels: Formula(stacked, groups)),
    "compiled": Contender(
        "hull, torch.compile",
        lambda groups, channels: Formula(torch.compile(plain, fullgraph=True, dynamic=False), groups),
        needs_compiler=True,
    ),
    "hullo": Contender("hull, hullo", lambda groups, channels: AffineHull(*THREE, groups=groups)),
    "hullo6": Contender("six bases, hullo", lambda groups, channels: AffineHull(*SIX, groups=groups)),
}


def label(name: str) -> str:
    """What tables and charts call a contender; rows of another version may name one that is gone."""
    return CONTENDERS[name].label if name in CONTENDERS else name


def parse_activations(text: str) -> tuple[str, ...]:
    """Names from a comma-separated list.

    >>> parse_activations("gelu,hullo")
    ('gelu', 'hullo')
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in CONTENDERS:
            raise ValueError(f"unknown activation {name!r}; available: {', '.join(CONTENDERS)}")
    return names
