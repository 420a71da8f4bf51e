"""A batch for a population in one pass: from a data set of bytes to what the first convolution reads.

Each member sees its own pictures, each flipped and shifted in its own way (see :mod:`hullo.lab.data.augment`, whose
`move` and `scale` are the plain form). A program makes one line of one picture, for COLUMNS of the numbers that lie
side by side there; it reads along the line and writes across members, so both ways meet neighbours in memory.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,untyped-decorator"
# ruff: noqa: N803 (constants are in capitals, in Triton)
from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

COLUMNS = 64


def show(images: Tensor, order: Tensor, moves: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The chosen pictures, moved and scaled, side by side: (B, members * channels, height, width), channels last.

    Args:
        images: bytes of shape (count, channels, height, width).
        order: which picture each member sees, (members, B).
        moves: how it is moved, as `draw_moves` says: (members, B, 3).
        dtype: the type of the result.
    """
    members, batch = order.shape
    _, channels, height, width = images.shape
    shown = torch.empty(batch, height, width, members * channels, dtype=dtype, device=images.device)
    _launch(images, order, moves, shown, 1, 0, channels, side_by_side=True)
    return shown.permute(0, 3, 1, 2)


def patches(
    images: Tensor, order: Tensor, moves: Tensor, side: int, *, same: bool, dtype: torch.dtype = torch.float32
) -> Tensor:
    """What a convolution of side x side sees at each of its positions, (members, B * positions, numbers).

    The numbers are those of `torch.nn.functional.unfold`, channel by channel and line by line within; then a one, which
    a bias meets in a product; then zeros, to a multiple of 16. So for weights (members, numbers, outputs) laid out
    alike the convolution is one batched product.

    Args:
        images, order, moves, dtype: as in `show`.
        side: of the window, in pixels.
        same: whether zeros around the picture keep its size, as for a convolution of stride one.
    """
    members, batch = order.shape
    _, channels, height, width = images.shape
    if side % 2 == 0 and same:
        raise ValueError(f"side={side}: zeros on all sides alike keep the size for odd sides only")
    if not 1 <= side <= min(height, width):
        raise ValueError(f"side={side}: a window is from 1 pixel to the {min(height, width)} of the pictures")
    pad = side // 2 if same else 0
    numbers = 16 * triton.cdiv(channels * side**2 + 1, 16)
    positions = (height + 2 * pad - side + 1) * (width + 2 * pad - side + 1)
    cut = torch.empty(members, batch * positions, numbers, dtype=dtype, device=images.device)
    _launch(images, order, moves, cut, side, pad, numbers, side_by_side=False)
    return cut


def _launch(
    images: Tensor, order: Tensor, moves: Tensor, out: Tensor, side: int, pad: int, numbers: int, *, side_by_side: bool
) -> None:
    members, batch = order.shape
    _, channels, height, width = images.shape
    if images.dtype != torch.uint8 or not images.is_contiguous() or moves.shape != (members, batch, 3):
        raise ValueError(
            f"images are contiguous bytes and moves of shape {(members, batch, 3)}; got {images.dtype} of strides "
            f"{images.stride()} and moves of shape {tuple(moves.shape)}"
        )
    lines, across = height + 2 * pad - side + 1, width + 2 * pad - side + 1
    with torch.cuda.device_of(images):
        _show[(batch * lines, triton.cdiv(members * numbers, COLUMNS))](
            images, order, moves, out, batch, members, *order.stride(), *moves.stride(), LINES=lines, ACROSS=across,
            CHANNELS=channels, HEIGHT=height, WIDTH=width, SIDE=side, PAD=pad, NUMBERS=numbers,
            SIDE_BY_SIDE=side_by_side, LINE=triton.next_power_of_2(across), COLUMNS=COLUMNS,
        )  # fmt: skip


@triton.jit
def _show(
    images, order, moves, out, batch, members, order_member, order_b, moves_member, moves_b, moves_entry,
    LINES: tl.constexpr, ACROSS: tl.constexpr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    SIDE: tl.constexpr, PAD: tl.constexpr, NUMBERS: tl.constexpr, SIDE_BY_SIDE: tl.constexpr, LINE: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(1) * COLUMNS
    column = start + tl.arange(0, COLUMNS)[None, :]
    known = column < members * NUMBERS
    across = tl.arange(0, LINE)[:, None]
    value = look(
        images, order, moves, tl.where(known, column, 0) // NUMBERS, tl.program_id(0) // LINES,
        tl.program_id(0) % LINES, across, column % NUMBERS, known,
        order_member, order_b, moves_member, moves_b, moves_entry, CHANNELS, HEIGHT, WIDTH, SIDE, PAD,
        out.dtype.element_ty == tl.float32,
    )  # fmt: skip
    position = tl.program_id(0).to(tl.int64) * ACROSS + across
    if SIDE_BY_SIDE:
        to = position * (members * NUMBERS) + column
    else:
        to = ((column // NUMBERS).to(tl.int64) * (batch * LINES * ACROSS) + position) * NUMBERS + column % NUMBERS
    tl.store(out + to, value.to(out.dtype.element_ty), mask=known & (across < ACROSS))


@triton.jit
def look(
    images, order, moves, member, b, line, across, number, known, order_member, order_b, moves_member, moves_b,
    moves_entry, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr,
    PAD: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """What a member's windows show of its pictures b, as moved, where the windows begin at a line and a pixel across:
    the `number` counts channels and the pixels of the window, after which there is a one, then zeros."""
    picture = tl.load(order + member * order_member + b * order_b)
    move = moves + member * moves_member + b * moves_b
    flipped = tl.load(move)
    down = tl.load(move + moves_entry).to(tl.int32)
    right = tl.load(move + 2 * moves_entry).to(tl.int32)
    y = line + number % (SIDE * SIDE) // SIDE - PAD
    x = across + number % SIDE - PAD
    seen = known & (number < CHANNELS * SIDE * SIDE) & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    y = tl.minimum(tl.maximum(y - down, 0), HEIGHT - 1)
    x = tl.minimum(tl.maximum(x - right, 0), WIDTH - 1)
    x = tl.where(flipped == 1, WIDTH - 1 - x, x)
    at = ((picture * CHANNELS + number // (SIDE * SIDE)) * HEIGHT + y) * WIDTH + x
    pixel = tl.load(images + at, mask=seen, other=0).to(tl.float32)
    # A division takes ten times as long; after rounding to 16 bits a product is the same, for every byte.
    pixel = tl.div_rn(pixel, 255.0) if PRECISE else pixel * (1 / 255)
    return tl.where(number == CHANNELS * SIDE * SIDE, 1.0, pixel)
