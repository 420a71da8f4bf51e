"""The cases of the benchmark: activations, and inputs of some shapes, dtypes, memory formats and groups."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hullo.modules import AffineHull

THREE = ("identity", "relu", "tanh")
SIX = (*THREE, "hardtanh", "unit_gelu", "unit_silu")
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Case:
    """An input: its shape, dtype, memory format, and the number of groups of its channels (dimension 1).

    >>> str(Case((2**24,), "float32")), str(Case((32, 60, 8, 8), "float16", "channels_last", 60))
    ('2^24 float32', '32x60x8x8/60 float16 channels_last')
    """

    shape: tuple[int, ...]
    dtype: str
    layout: str = "contiguous"
    groups: int = 1

    def __str__(self) -> str:
        layout = f" {self.layout}" if len(self.shape) > 1 else ""
        return f"{spell_size(self.shape, self.groups)} {self.dtype}{layout}"

    @property
    def input_bytes(self) -> int:
        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)

    @property
    def channels(self) -> int:
        return self.shape[1] if len(self.shape) > 1 else 1

    def draw(self, device: torch.device) -> Tensor:
        """Return a random input of this case."""
        x = torch.randn(self.shape, device=device, dtype=getattr(torch, self.dtype))
        return x.to(memory_format=torch.channels_last) if self.layout == "channels_last" else x


def parse_sizes(text: str) -> list[tuple[tuple[int, ...], int]]:
    """Parse a comma-separated list of sizes: elements, powers, or shapes with groups after a slash.

    >>> parse_sizes("1000,2^18,32x60x8x8/60")
    [((1000,), 1), ((262144,), 1), ((32, 60, 8, 8), 60)]
    """
    return [_parse_size(part.strip()) for part in text.split(",")]


def _parse_size(text: str) -> tuple[tuple[int, ...], int]:
    number = r"\d+(?:\^\d+)?"
    match = re.fullmatch(rf"({number}(?:x{number})*)(?:/(\d+))?", text)
    shape = tuple(_number(part) for part in match[1].split("x")) if match else ()
    groups = int(match[2] or 1) if match else 0
    if not shape or not all(shape) or not 0 < math.prod(shape) < 2**50:
        raise ValueError(f"invalid size {text!r}; give elements (2^24), or a shape and its groups (32x60x8x8/60)")
    if groups < 1 or (groups > 1 and (len(shape) < 2 or shape[1] % groups)):
        raise ValueError(f"{text!r}: the channels (dimension 1) cannot be divided into {groups} equal groups")
    return shape, groups


def _number(text: str) -> int:
    base, _, exponent = text.partition("^")
    return int(pow(int(base), min(int(exponent or 1), 64)))


def spell_size(shape: tuple[int, ...], groups: int) -> str:
    """Return a shape as text that `parse_sizes` reads, with powers of two as such."""
    if len(shape) == 1:
        n = shape[0]
        return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else str(n)
    return "x".join(map(str, shape)) + (f"/{groups}" if groups > 1 else "")


def parse_names(text: str, known: Collection[str], kind: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names, each once.

    >>> parse_names("float32, bfloat16,float32", DTYPES, "dtype")
    ('float32', 'bfloat16')
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {kind} {name!r}; available: {', '.join(known)}")
    return names


def make_cases(sizes: Iterable[tuple[tuple[int, ...], int]], dtypes: Iterable[str]) -> list[Case]:
    """Return every size in every dtype; four-dimensional ones in both memory formats."""
    dtypes = tuple(dtypes)
    return [
        Case(shape, dtype, layout, groups)
        for shape, groups in sizes
        for dtype in dtypes
        for layout in (("contiguous", "channels_last") if len(shape) == 4 else ("contiguous",))
    ]


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


class FormulaActivation(nn.Module):
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
    "plain": Contender("hull, plain PyTorch", lambda groups, channels: FormulaActivation(plain, groups)),
    "stacked": Contender("hull, stacked", lambda groups, channels: FormulaActivation(stacked, groups)),
    "compiled": Contender(
        "hull, torch.compile",
        lambda groups, channels: FormulaActivation(torch.compile(plain, fullgraph=True, dynamic=False), groups),
        needs_compiler=True,
    ),
    "hullo": Contender("hull, hullo", lambda groups, channels: AffineHull(*THREE, groups=groups)),
    "hullo6": Contender("six bases, hullo", lambda groups, channels: AffineHull(*SIX, groups=groups)),
}


def label(name: str) -> str:
    """Return the label of a contender; results of another version may have unknown ones."""
    return CONTENDERS[name].label if name in CONTENDERS else name
