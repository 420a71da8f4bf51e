"""The activations to compare: native ones, and one hull in several implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hullo.modules import AffineHull

THREE = ("identity", "relu", "tanh")
SIX = (*THREE, "hardtanh", "unit_gelu", "unit_silu")


def plain(x: Tensor, coefficients: Tensor) -> Tensor:
    """Compute the hull directly: c1 x + c2 relu(x) + c3 tanh(x)."""
    c1, c2, c3 = _columns(coefficients, x)
    return c1 * x + c2 * torch.relu(x) + c3 * torch.tanh(x)


def stacked(x: Tensor, coefficients: Tensor) -> Tensor:
    """Compute the hull as the paper draws it: stack the outputs of the bases, then take their weighted sum."""
    first, second, third = torch.stack([x, x, x])
    values = torch.stack([first, torch.relu(second), torch.tanh(third)])
    weights = torch.stack(tuple(_columns(coefficients, x)))
    over_values = weights.reshape(3, *[1] * (values.dim() - weights.dim()), *weights.shape[1:])
    return (over_values * values).sum(0)


def _columns(coefficients: Tensor, x: Tensor) -> Sequence[Tensor]:
    """Return the coefficients of each base in a shape that broadcasts with x; channels are dimension 1."""
    rows = coefficients.to(x.dtype)
    if rows.dim() == 1:
        return rows.unbind()
    channels = rows.repeat_interleave(x.shape[1] // len(rows), dim=0)
    return [c.reshape(-1, *[1] * (x.dim() - 2)) for c in channels.unbind(-1)]


class Formula(nn.Module):
    """A module that applies a function of x and of coefficients over {identity, relu, tanh}."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], groups: int) -> None:
        super().__init__()
        self.function = function
        shape = (3,) if groups == 1 else (groups, 3)
        self.coefficients = nn.Parameter(torch.full(shape, 1 / 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.coefficients)


@dataclass(frozen=True)
class Contender:
    """An activation to measure: its label, and the function that builds it for a number of groups and channels."""

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
    """Return the label of a contender; results of another version may have unknown ones."""
    return CONTENDERS[name].label if name in CONTENDERS else name


def parse_activations(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of activations.

    >>> parse_activations("gelu,hullo")
    ('gelu', 'hullo')
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in CONTENDERS:
            raise ValueError(f"unknown activation {name!r}; available: {', '.join(CONTENDERS)}")
    return names
