"""What a kernel is told besides tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hullo.bases import Base
from hullo.coefficients import Way


@dataclass(frozen=True)
class Plan:
    """What is combined and how: everything about a call that is not a tensor."""

    bases: tuple[Base, ...]
    way: Way
    channel_dim: int


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type in which values are computed and summed: at least float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
