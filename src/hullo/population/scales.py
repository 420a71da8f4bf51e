"""Inner scales of a population's hulls: the scales of all members and sites in one table."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class InnerScales(nn.Module):
    """Hold a scale per row and base of a table, (K, R, N); it is one where a hull has no inner scale.

    A hull with one scale for all its bases learns the number at its first base. Scales that are not learned are stored
    in `fixed`.
    """

    raw: nn.Parameter
    fixed: Tensor
    sources: Tensor  # the column with the scale of each base; -1 if it is not learned

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.ones(*shape, dtype=torch.float64))
        self.register_buffer("fixed", torch.ones(*shape, dtype=torch.float64), persistent=False)
        self.register_buffer("sources", torch.full(tuple(shape), -1), persistent=False)

    @torch.no_grad()
    def add(self, k: int, rows: slice, columns: list[int], given: Tensor) -> None:
        """Set the scales of member k at given rows and columns: one number per row, or one for each column."""
        sources = columns if given.shape[1] > 1 else columns[:1] * len(columns)
        for column, source, scale in zip(columns, sources, given.expand(-1, len(columns)).unbind(1), strict=True):
            if given.requires_grad:
                self.raw[k, rows, source] = scale.to(self.raw)
                self.sources[k, rows, column] = source
            else:
                self.fixed[k, rows, column] = scale.to(self.fixed)

    def forward(self) -> Tensor:
        """Return the scale of every row and base."""
        return torch.where(self.sources < 0, self.fixed, self.raw.gather(-1, self.sources.clamp_min(0)))
