"""Compare results in 16 bits with an oracle in float64, entry by entry."""

from __future__ import annotations

import torch
from torch import Tensor

GPU = torch.cuda.is_available()
HALF_A_LAST_BIT = {torch.float32: 2.0**-20, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def assert_rounded_once(found: Tensor, exact: Tensor, what: str = "") -> None:
    """Assert that numbers were computed in float32 and rounded once, at the end.

    Functions of kernels for 16 bits are less exact than float32, and Triton's interpreter cuts bfloat16 off. A number
    that was rounded on the way is off by half a last bit of that number, which is more where others are subtracted.
    """
    size = max(1.0, exact.abs().max().item())
    torch.testing.assert_close(
        found.double().cpu(),
        exact.cpu(),
        rtol=HALF_A_LAST_BIT[found.dtype] * (1 if GPU else 2),
        atol=(1e-3 if GPU else 2e-4) * size,
        msg=lambda message: f"{what}: {message}",
    )
