"""Convolutions of a population: those of K members are one convolution with K times as many groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hullo.population import kernels
from hullo.population.images import ImagesValue
from hullo.population.kernels import side_stream
from hullo.population.rules import Context, rule
from hullo.population.values import PaddedValue, Value

aten = torch.ops.aten


@rule(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.conv1d.padding, aten.conv2d.padding)
def convolve(
    context: Context,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if len(x.shape) < len(weight.shape):  # without a batch
        return NotImplemented
    y, _ = convolve_batch(context, x, weight, bias, stride, padding, dilation, groups)
    return split_channels(y, context) if len(weight.shape) == 5 else split_images(y, context, len(weight.shape) == 3)


def convolve_batch(
    context: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    *,
    stacked: bool = False,
    measured: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return images and, where `measured` and a kernel of our own computes them, moments of each channel.

    Images are (B, K*C, ...) or stacked. A first convolution may stack them if `stacked`; others follow their input.
    Where kernels are supported, sequences are images of one row.
    """
    dims = len(weight.shape) - 2
    stride, dilation = _each(stride, dims), _each(dilation, dims)
    padding = _amounts(padding, weight.shape[2:], dilation)
    if dims == 1 and kernels.support(weight.tensor) and not isinstance(padding, str):
        x, weight = as_line(x), as_line(weight)
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    fused = _convolve_fused(context, x, weight, bias, stride, padding, dilation, groups, stacked, measured)
    if fused is not None:
        return fused
    function = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(weight.shape)]
    if x.dim is None and groups == 1:  # all members' filters in one convolution
        images, all_groups = x.tensor, 1
    else:
        images, all_groups = side_by_side(x, context), context.members * groups
    if images.dim() == 4 and images.device.type == "cpu":
        images = images.contiguous(memory_format=torch.channels_last)  # in which many groups are fastest there
    filters = weight.at(0, context.members).flatten(0, 1)
    return function(images, filters, flat_parameter(bias, context), stride, padding, dilation, all_groups), None


def _convolve_fused(
    context: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    stacked: bool,
    measured: bool,
) -> tuple[Tensor, Tensor | None] | None:
    """Return images and moments by a kernel of our own; None where cuDNN is faster, or the only one."""
    if len(weight.shape) != 4 or x.dim is None or not kernels.support(weight.tensor) or len(x.shape) != 4:
        return None
    side, dtype = weight.shape[-1], kernels.working_dtype(weight.tensor)
    line = weight.shape[2] < side and x.shape[2] == 1
    stride, pad, dilation = (_square(size, line) for size in (stride, padding, dilation))
    if groups != 1 or dilation != 1 or stride is None or pad is None or (weight.shape[2] != side and not line):
        return None
    around = (pad, pad)
    if isinstance(x, PaddedValue):
        sides = x.pad
        if sides[:2] != sides[2:] or pad or line:
            return None
        x, around = x.inner, sides[:2]
    if not line and stride == 1 and around in ((0, 0), ((side - 1) / 2, (side - 1) / 2)):
        from hullo.population.kernels import input_conv

        stacked = stacked and context.members > 1 and input_conv.should_stack(weight.shape[0], dtype, weight.device)
        settings: Any = {"same": around[0] > 0, "dtype": dtype, "measured": measured, "stacked": stacked}
        if isinstance(x, ImagesValue) and input_conv.is_served(weight.shape, dtype):
            given = x.source.images, x.source.index, x.source.moves
            return input_conv.convolve(*given, *_flat_parameters(weight, bias, context), **settings)
        small = not x.tensor.requires_grad and x.tensor.numel() < 2**31
        if small and input_conv.is_tuned(weight.shape, dtype, weight.device):
            images = x.at(0, context.members)
            return input_conv.convolve(images, None, None, *_flat_parameters(weight, bias, context), **settings)
    if dtype.itemsize != 2 or context.members == 1:
        return None
    from hullo.population.kernels.convolution import convolve as convolve_members
    from hullo.population.kernels.convolution import is_served

    served = {"stride": stride, "biased": bias is not None, "stacked": x.is_stacked}
    if not is_served(weight.shape, dtype, weight.device, **served):
        return None
    images = as_images(x, context).to(dtype)
    weights = weight.tensor if weight.dim == 0 else weight.at(0, context.members)
    is_deferred = bias is None and images.requires_grad
    filters, deferred = side_stream.flatten(weights) if is_deferred else (weights.flatten(0, 1), None)
    return convolve_members(
        images,
        filters,
        flat_parameter(bias, context),
        members=context.members,
        stride=stride,
        padding=around,
        measured=measured,
        deferred=deferred,
    )


def _square(size: Any, line: bool = False) -> int | None:
    """Return the one number of a size that is the same in all dimensions; the last one of a line, None for others."""
    if isinstance(size, int):
        return size
    return int(size[-1]) if not isinstance(size, str) and (line or len(set(size)) == 1) else None


def _each(size: Any, dims: int) -> list[int]:
    """Return a size of each dimension."""
    given = [size] if isinstance(size, int) else list(size)
    return given if len(given) == dims else given * dims


def _amounts(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> Any:
    """Return the padding of each dimension, or "same" where it differs before and behind."""
    if not isinstance(padding, str):
        return _each(padding, len(kernel))
    total = [step * (size - 1) if padding == "same" else 0 for step, size in zip(dilation, kernel, strict=True)]
    return padding if any(size % 2 for size in total) else [size // 2 for size in total]


def as_line(x: Value) -> Value:
    """Return a sequence, (B, C, L), as an image of one row; an image as it is."""
    return Value(x.tensor.unsqueeze(-2), x.dim) if len(x.shape) == 3 else x


@rule(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def convolve_transposed(
    context: Context,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    dims = len(weight.shape)
    if len(x.shape) < dims:  # without a batch
        return NotImplemented
    function = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[dims]
    if groups == 1 and dims < 5 and kernels.support(weight.tensor):
        given = as_line(x), as_line(weight), bias, stride, padding, output_padding, dilation
        fused = _convolve_transposed_fused(context, *given)
        if fused is not None:
            return split_images(fused, context, line=dims == 3)
    images = side_by_side(x, context)
    filters = weight.at(0, context.members).flatten(0, 1)
    groups *= context.members
    y = function(images, filters, flat_parameter(bias, context), stride, padding, output_padding, groups, dilation)
    return split_channels(y, context)


def _convolve_transposed_fused(
    context: Context, x: Value, weight: Value, bias: Value | None, *sizes: Any
) -> Tensor | None:
    """Return images by a kernel of our own; None where cuDNN is faster, or the only one."""
    side, dtype = weight.shape[-1], kernels.working_dtype(weight.tensor)
    line = weight.shape[2] < side and x.shape[2] == 1
    stride, pad, more, dilation = (_square(size, line) for size in sizes)
    is_square = line or weight.shape[2] == side
    if x.dim is None or not is_square or dilation != 1 or stride is None or pad is None or more is None:
        return None
    if dtype.itemsize != 2 or context.members == 1:
        return None
    from hullo.population.kernels.convolution import convolve_transposed, is_for_cudnn

    if is_for_cudnn(*weight.shape[:2]):
        return None
    height, width = (stride * (size - 1) - 2 * pad + side + more for size in x.shape[2:])
    images, (filters, biases) = as_images(x, context).to(dtype), _flat_parameters(weight, bias, context)
    size = (x.shape[2] if line else height, width)
    return convolve_transposed(images, filters, biases, members=context.members, stride=stride, padding=pad, size=size)


def flat_parameter(parameter: Value | None, context: Context) -> Tensor | None:
    """Return a parameter of each channel of all members in turn."""
    return None if parameter is None else parameter.at(0, context.members).flatten()


def _flat_parameters(weight: Value, bias: Value | None, context: Context) -> tuple[Tensor, Tensor | None]:
    return weight.at(0, context.members).flatten(0, 1), flat_parameter(bias, context)


def as_images(x: Value, context: Context, *, stacked: bool | None = None) -> Tensor:
    """Return images as kernels take them, (B, K*C, H, W) or stacked; by default, stacked if they are so in memory."""
    if x.is_stacked if stacked is None else stacked:
        return x.at(0, context.members)
    each = x.at(1, context.members).permute(0, 3, 4, 1, 2)
    return each.flatten(3, 4).permute(0, 3, 1, 2)


def side_by_side(x: Value, context: Context) -> Tensor:
    """Return (B, K*C, ...) as libraries take them; a copy of stacked images has channels last, too."""
    if x.is_stacked:
        return as_images(x, context, stacked=False)
    return x.at(1, context.members).flatten(1, 2)


def split_images(y: Tensor, context: Context, line: bool = False) -> Value:
    """Return images as kernels return them, (B, K*C, H, W) or stacked, as a value; as sequences if `line`."""
    y = y.squeeze(-2) if line and y.dim() > 3 else y
    return Value(y, 0) if y.dim() == 5 - line else split_channels(y, context)


def split_channels(y: Tensor, context: Context) -> Value:
    """Return (B, K*C, ...) as the value (B, K, C, ...)."""
    return Value(torch.unflatten(y, 1, (context.members, -1)), 1)
