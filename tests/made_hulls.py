"""Bases, coefficients and hulls for tests of functions and of modules."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hullo
from hullo.modules import Hull

TRIO = ("identity", "relu", "tanh")
QUARTET = ("identity", "relu", "tanh", "unit_silu")
HULLS = [
    (hull, parametrization)
    for hull in (hullo.ConvexHull, hullo.AffineHull, hullo.ConicHull, hullo.LinearHull)
    for parametrization in hull.coefficient_set.choices
]
every_hull = pytest.mark.parametrize(("hull", "parametrization"), HULLS)


def uneven(hull: type[Hull], parametrization: str, groups: int = 1, **options: Any) -> Hull:
    """Return a hull whose coefficients all differ."""
    rows = [[0.1 + 0.05 * g, 0.3, 0.6 - 0.05 * g] for g in range(groups)]
    return hull(*TRIO, parametrization=parametrization, groups=groups, init=rows[0] if groups == 1 else rows, **options)


def rows_of(groups: int | None, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return coefficients of n bases, shared by all channels or a row for each group."""
    shape = (n,) if groups is None else (groups, n)
    return torch.randn(shape, dtype=dtype)


def through_torch_save(model: nn.Module) -> nn.Module:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    loaded: nn.Module = torch.load(stream, weights_only=False)
    return loaded
