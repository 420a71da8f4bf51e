"""The two memory layouts of a population's images, and the sizes of its convolutions; channels are last.

*Side by side*, (B, K * C, H, W): a pixel has the channels of all members, as the grouped convolutions of libraries take
them. *Stacked*, (K, B, C, H, W): each member's images are in one piece. Kernels read these faster where members have
few channels: a row of an image is then one run of memory, where it was 32 bytes per pixel with 16 channels.

Kernels for convolutions and batch norms take both, tell them apart by the number of dimensions, and return the layout
that they are given.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor


def is_stacked(x: Tensor) -> bool:
    return x.dim() == 5


def all_channels(x: Tensor) -> int:
    """Return the number of channels of all members."""
    return x.shape[0] * x.shape[2] if is_stacked(x) else x.shape[1]


def by_sample(x: Tensor) -> Tensor:
    """Return images as stacked ones, of which each sample is one."""
    return (x.flatten(0, 1) if is_stacked(x) else x).unsqueeze(1)


def channels_last(x: Tensor) -> Tensor:
    """Return images as kernels take them: themselves, or a copy."""
    each = x.movedim(-3, -1)
    height, width, channels = each.shape[-3:]
    aligned = channels * x.itemsize % 8 == x.storage_offset() * x.itemsize % 8 == 0
    if each.stride()[-3:] == (0, 0, 1) and aligned and height * width > 1:
        pixel = each[..., :1, :1, :]  # one pixel for all of an image, copied by eight bytes
        if pixel.is_contiguous():
            whole = pixel.flatten().view(torch.int64).view(*pixel.shape[:-1], -1)  # single entries have any stride
            copies = whole.expand(*each.shape[:-3], height, width, -1)
            return copies.contiguous().view(x.dtype).movedim(-1, -3)
    return each.contiguous().movedim(-1, -3)


def empty_images(x: Tensor, members: int, channels: int, size: tuple[int, int]) -> Tensor:
    """Allocate images of so many channels per member and of another size, in the layout of x."""
    batch = x.shape[-4]
    shape = (members, batch, *size, channels) if is_stacked(x) else (batch, *size, members * channels)
    return torch.empty(shape, dtype=x.dtype, device=x.device).movedim(-1, -3)


class Shape(NamedTuple):
    """Hold the sizes of a convolution; padding is (before, behind), the same for rows and columns.

    Windows are squares, or a `line` of one row, for sequences: images of one row.
    """

    members: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    padding: tuple[int, int]
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    line: bool = False

    @classmethod
    def of(cls, members: int, weight: Tensor, size: tuple[int, int], stride: int, padding: tuple[int, int]) -> Shape:
        """Return the sizes for weights (members * outputs, inputs, side or 1, side) and images of a size."""
        channels, side, line = weight.shape[1], weight.shape[3], weight.shape[2] < weight.shape[3]
        height, width = ((length + sum(padding) - side) // stride + 1 for length in size)
        out_size = (size[0] if line else height, width)
        return cls(members, channels, len(weight) // members, side, stride, padding, size, out_size, line)

    @property
    def layer(self) -> tuple[int, int, int]:
        """Return the key of the tables of settings."""
        return self.kernel, self.in_channels, self.out_channels

    def transposed(self) -> Shape:
        """Return the sizes of the convolution that computes the input's gradient, for stride one."""
        before, behind = (self.kernel - 1 - padding for padding in self.padding)
        return self._replace(
            in_channels=self.out_channels,
            out_channels=self.in_channels,
            padding=(before, behind),
            in_size=self.out_size,
            out_size=self.in_size,
        )


def block(width: int) -> int:
    """Return the power of two that holds a width; a matrix product takes at least 16."""
    return max(16, int(triton.next_power_of_2(width)))


@triton.jit
def locate_member(
    member, members, images, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, STACKED: tl.constexpr, BIG: tl.constexpr
):
    """Return where a member's first channel is, and how far a pixel is from the next, for images of PIXELS each."""
    if STACKED:
        if BIG:
            member = member.to(tl.int64)
        return member * images * (PIXELS * CHANNELS), CHANNELS
    return member * CHANNELS, members * CHANNELS
