"""An independent implementation of base functions and their combinations: float64, no thought for speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def _exponential(alpha: float, scale: float, rate: float) -> Callable[[Tensor], Tensor]:
    return lambda x: scale * torch.where(x > 0, x, alpha * (torch.exp(x.clamp(max=0) / rate) - 1))


def _softplus(beta: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.logaddexp(torch.zeros_like(x), beta * x) / beta


def _normal(x: Tensor) -> Tensor:
    return torch.special.ndtr(x)


def _unit(f: Callable[[Tensor], Tensor], slope: float) -> Callable[[Tensor], Tensor]:
    return lambda x: (f(x) - f(torch.zeros_like(x))) / slope


def _gelu_tanh(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_SELU = _exponential(1.6732632423543772, 1.0507009873554805, 1)

CLOSED_FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x.clone(),
    "relu": lambda x: x.clamp(min=0),
    "tanh": lambda x: 1 - 2 / (torch.exp(2 * x) + 1),
    "leaky_relu": lambda x: torch.maximum(x, 0.01 * x),
    "leaky_relu(0.2)": lambda x: torch.maximum(x, 0.2 * x),
    "leaky_relu(-0.5)": lambda x: torch.where(x > 0, x, -0.5 * x),
    "leaky_relu(2)": lambda x: torch.minimum(x, 2 * x),
    "elu": _exponential(1, 1, 1),
    "elu(0.5)": _exponential(0.5, 1, 1),
    "elu(2)": _exponential(2, 1, 1),
    "celu": _exponential(1, 1, 1),
    "celu(0.3)": _exponential(0.3, 1, 0.3),
    "celu(2)": _exponential(2, 1, 2),
    "softsign": lambda x: x / (1 + x.abs()),
    "arctan": lambda x: torch.atan2(x, torch.ones_like(x)),
    "asinh": lambda x: x.sign() * torch.log(x.abs() + (x * x + 1).sqrt()),
    "sin": lambda x: torch.polar(torch.ones_like(x), x).imag,
    "hardtanh": lambda x: x.clamp(-1, 1),
    "relu6": lambda x: x.clamp(0, 6),
    "gelu": lambda x: x * _normal(x),
    "unit_gelu": lambda x: 2 * x * _normal(x),
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "unit_silu": lambda x: 2 * x / (1 + torch.exp(-x)),
    "mish": lambda x: x * torch.tanh(_softplus(1)(x)),
    "unit_mish": _unit(lambda x: x * torch.tanh(_softplus(1)(x)), 0.6),
    "softplus": _softplus(1),
    "softplus(3)": _softplus(3),
    "unit_softplus": _unit(_softplus(1), 0.5),
    "unit_softplus(3)": _unit(_softplus(3), 0.5),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "unit_sigmoid": _unit(lambda x: 1 / (1 + torch.exp(-x)), 0.25),
    "selu": _SELU,
    "unit_selu": _unit(_SELU, 1.0507009873554805),
    "erf": lambda x: 2 * _normal(math.sqrt(2) * x) - 1,
    "unit_erf": _unit(lambda x: 2 * _normal(math.sqrt(2) * x) - 1, 2 / math.sqrt(math.pi)),
    "hardswish": lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    "unit_hardswish": lambda x: 2 * x * (x / 6 + 0.5).clamp(0, 1),
    "hardsigmoid": lambda x: (x / 6 + 0.5).clamp(0, 1),
    "sin(3)": lambda x: torch.polar(torch.ones_like(x), 3 * x).imag,
    "constant": lambda x: torch.ones_like(x) + 0 * x,
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "relu3": lambda x: x.clamp(min=0) ** 3,
    "xielu_negative": lambda x: torch.where(x < 0, torch.exp(x.clamp(max=0)) - 1 - x, 0 * x),
    "snake": lambda x: x + torch.sin(x) ** 2,
    "snake(0.5)": lambda x: x + 2 * torch.sin(0.5 * x) ** 2,
}


def combine(x: Tensor, coefficients: Tensor, names: Sequence[str], channel_dim: int = 1) -> Tensor:
    """Return the combination channel by channel, in float64; differentiable."""
    x = x.double()
    values = [CLOSED_FORMS[name](x) for name in names]
    if coefficients.dim() == 1:
        return sum(c * value for c, value in zip(coefficients.double(), values, strict=True))
    each = x.shape[channel_dim] // len(coefficients)
    channels = [
        sum(c * v.select(channel_dim, k) for c, v in zip(coefficients[k // each].double(), values, strict=True))
        for k in range(x.shape[channel_dim])
    ]
    return torch.stack(channels, dim=channel_dim) if channels else torch.zeros_like(x)


def gradients(y: Tensor, inputs: Sequence[Tensor], upstream: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y, inputs, upstream.to(y.dtype))
