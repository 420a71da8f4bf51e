"""Tell which combination of bases a module with a few parameters of its own is, such as xIELU or PolyReLU."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from hullo._compat import real_tensors
from hullo.bases import Base, base
from hullo.surgery.isolation import isolated
from hullo.surgery.probes import points

COMBINATIONS = {
    "xielu": ("identity", "relu2", "xielu_negative"),
    "poly_relu": ("constant", "relu", "relu2", "relu3"),
}
"""The bases of activations that recent models learn; see :mod:`hullo.named`."""

MOST = 8  # parameters of such a module
_TOLERANCE = 2.0**-18  # of values and slopes: xIELU cuts off a window of 1e-6 beside the origin


@real_tensors()
def read_combination(module: nn.Module) -> tuple[str, tuple[Base, ...], tuple[float, ...]] | None:
    """Return the name, the bases and the coefficients of the combination that a module computes; None if it is none.

    A copy of the module is called in float64. Values and slopes have to be those of the combination, and a power of
    ReLU has to take part.
    """
    if not 0 < sum(parameter.numel() for parameter in module.parameters()) <= MOST:
        return None
    x = points(torch.float64)
    x = x[(x.abs() < 64) & (x.abs() > 1e-5)]
    try:
        y, slopes = _values_and_slopes(module, x, training=False)
        again, _ = _values_and_slopes(module, x, training=True)
    except Exception:  # whatever it is, it is not a function of any tensor
        return None
    if not torch.equal(y, again):
        return None
    for name, spelled in COMBINATIONS.items():
        bases = tuple(map(base, spelled))
        columns = torch.stack([item.function(x) for item in bases], dim=1)
        found = torch.linalg.lstsq(columns, y[:, None], driver="gelsd").solution[:, 0]
        expected = torch.stack([item.derivative(x) for item in bases], dim=1) @ found
        has_power = bool(
            found[[n for n, item in enumerate(bases) if item.slope_bounds[1] == math.inf]].abs().max() > 1e-6
        )
        if has_power and _agree(columns @ found, y, x) and _agree(expected, slopes, x):
            return name, bases, tuple(found.tolist())
    return None


def _values_and_slopes(module: nn.Module, x: Tensor, training: bool) -> tuple[Tensor, Tensor]:
    """Call a copy of a module, on the CPU and in float64."""
    with isolated(), torch.enable_grad():
        twin = copy.deepcopy(module).cpu().double().train(training)
        leaf = x.clone().requires_grad_()
        given = leaf * 1.0
        y = type(twin).forward(twin, given)
        (slopes,) = torch.autograd.grad(y.sum(), leaf)
        if not torch.equal(given, x) or y.shape != x.shape:
            raise ValueError("it changes its input, or returns something of another shape")
    return y.detach(), slopes


def _agree(found: Tensor, expected: Tensor, x: Tensor) -> bool:
    return bool(((found - expected).abs() <= _TOLERANCE * (expected.abs() + x.abs().clamp_max(1))).all())
