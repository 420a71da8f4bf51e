"""The GPU kernels of populations, in Triton; a file each, imported where one is used."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

_HAS_TRITON = importlib.util.find_spec("triton") is not None
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The types that kernels compute with."""


def support(x: Tensor) -> bool:
    """Return whether kernels support a tensor where it is; elsewhere, and in float64, plain operations do the same."""
    return x.is_cuda and x.dtype != torch.float64 and _HAS_TRITON


def processors(x: Tensor) -> int:
    """Return how many multiprocessors the device of a tensor has; a few in Triton's interpreter."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 4


def multiply(x: Tensor, y: Tensor) -> Tensor:
    """Return the products of matrices, (members, rows, columns); that of one member by the kernels for one product."""
    if len(x) == 1:
        return torch.mm(x.squeeze(0), y.squeeze(0)).unsqueeze(0)
    return torch.bmm(x, y)


def multiply_weights(x: Tensor, weight: Tensor) -> Tensor:
    """Return features (members, rows, inputs) times weights (members, inputs, outputs)."""
    if support(x) and len(x) > 1:
        from hullo.population.kernels.linear import Product, is_misaligned

        dtype = working_dtype(x)
        if is_misaligned(x, weight, dtype) or dtype == x.dtype == weight.dtype == torch.float32:
            y: Tensor = Product.apply(x.to(dtype), weight.to(dtype))  # type: ignore[no-untyped-call]
            return y
    return multiply(x, weight)


def working_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which products with x are computed: that of autocast where it is on, or its own.

    Autocast leaves float64 and complex numbers as they are.
    """
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and x.dtype in DTYPES else x.dtype
