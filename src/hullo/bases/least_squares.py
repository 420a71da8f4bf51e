"""Express functions as linear combinations of others, by least squares in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hullo._compat import real_tensors

Function = Callable[[Tensor], Tensor]

_TOLERANCE = 1e-9  # on the residual at every point, relative to the largest function there


@real_tensors()
def express(targets: Sequence[Function], functions: Sequence[Function]) -> list[list[float] | None]:
    """Return each target's coefficients in linearly independent functions; None if it is not a combination of them.

    The sample points are dense near the origin and extend to 10^6; points where a function overflows are ignored.
    """
    x = _points()
    columns = torch.stack([function(x) for function in functions], dim=1)
    values = torch.stack([target(x) for target in targets], dim=1)
    finite = columns.isfinite().all(1)
    scale = columns[finite].abs().amax(1, keepdim=True).clamp_min(1)
    columns, values = columns[finite] / scale, values[finite] / scale
    values = values.nan_to_num(0.0, 0.0, 0.0)
    lengths = columns.norm(dim=0).clamp_min(1e-300)
    solutions = torch.linalg.lstsq(columns / lengths, values, driver="gelsd").solution / lengths[:, None]
    residuals = (columns @ solutions - values).abs().amax(0) / values.abs().amax(0).clamp(1e-300, 1)
    is_inside = (residuals < _TOLERANCE).tolist()
    return [solution if inside else None for solution, inside in zip(solutions.T.tolist(), is_inside, strict=True)]


def _points() -> Tensor:
    near = torch.linspace(-12.0, 12.0, 4801, dtype=torch.float64)
    far = torch.logspace(1.08, 6.0, 200, dtype=torch.float64)
    return torch.cat([-far.flip(0), near, far])
