"""The kernels for stride one compute the same convolution with every tile; on the CPU they run in the interpreter."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter multiplies no bfloat16

from hullo.population.kernels.row_conv import (  # noqa: E402
    Sizes,
    Tile,
    WeightTile,
    block,
    choose_tile,
    choose_weight_tile,
    convolve_rows,
    weight_gradient,
)

SIZES = {  # members, channels in and out, kernel, padding before, sizes of images and outputs
    "same": Sizes(2, 4, 6, 3, 1, (7, 5), (7, 5)),
    "valid, large kernel": Sizes(2, 5, 3, 5, 0, (9, 8), (5, 4)),
    "padded before only": Sizes(1, 16, 4, 3, 2, (5, 6), (5, 6)),
}
TILES = {  # group, taps, rows, segment, warps, stages, prefetch
    "one column": Tile(1, 1, 64, 3, 4, 1, False),
    "prefetched": Tile(1, 2, 64, 8, 4, 1, True),
    "two columns": Tile(2, 4, 64, 2, 4, 2, False),
    "four columns": Tile(4, 2, 64, 8, 4, 1, True),
}
QUICK = (  # in the interpreter
    ("same", "one column"),
    ("same", "four columns"),
    ("valid, large kernel", "prefetched"),
    ("padded before only", "two columns"),
)
WEIGHT_TILES = {  # columns, stacked, products, positions, segment, warps, stages, prefetch
    "one column": WeightTile(1, 1, 1, 64, 3, 4, 1, True),
    "two columns": WeightTile(2, 2, 2, 64, 8, 4, 2, False),
}


def draw(sizes: Sizes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images, weights, bias and a gradient of the outputs; of few digits, so that 16 bits hold them."""
    generator = torch.Generator().manual_seed(sum(sizes[:5]))
    channels, filters = sizes.members * sizes.in_channels, sizes.members * sizes.out_channels
    shapes = (
        (3, channels, *sizes.in_size),
        (filters, sizes.in_channels, sizes.kernel, sizes.kernel),
        (filters,),
        (3, filters, *sizes.out_size),
    )
    made = [torch.randint(-4, 5, shape, generator=generator).to(DEVICE, HALF) for shape in shapes]
    return tuple(t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for t in made)  # type: ignore


def plain(sizes: Sizes, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    behind = [sizes.out_size[i] - 1 + sizes.kernel - sizes.in_size[i] - sizes.padding for i in (1, 0)]
    padded = F.pad(x, (sizes.padding, behind[0], sizes.padding, behind[1]))
    return F.conv2d(padded, weight, bias, groups=sizes.members)


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [(SIZES[size], TILES[tile]) for size, tile in itertools.product(SIZES, TILES) if GPU or (size, tile) in QUICK],
)
def test_every_tile_gives_the_outputs_and_gradients_of_a_grouped_convolution(sizes: Sizes, tile: Tile) -> None:
    x, weight, bias, dy = draw(sizes)
    precise = [t.double().requires_grad_() for t in (x, weight, bias)]
    y = plain(sizes, *precise)
    dx, dweight, _ = torch.autograd.grad(y, precise, dy.double())
    assert torch.equal(convolve_rows(x, weight, bias, sizes, tile).double(), y.to(HALF).double())
    found = convolve_rows(dy, weight, None, sizes.transposed(), tile, transposed=True)
    assert torch.equal(found.double(), dx.to(HALF).double())
    for weight_tile in WEIGHT_TILES.values():
        assert torch.equal(weight_gradient(dy, x, sizes, weight_tile).double(), dweight.to(HALF).double())


@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
@pytest.mark.parametrize("channels", [(1, 64), (3, 20), (16, 16), (20, 50), (32, 33), (64, 64)])
def test_chosen_tiles_fit_in_registers_and_shared_memory(channels: tuple[int, int], kernel: int) -> None:
    sizes = Sizes(60, *channels, kernel, kernel // 2, (32, 32), (32, 32))
    for direction in (sizes, sizes.transposed()):
        tile = choose_tile(direction, torch.empty(32))
        if tile is not None:
            slices = -(-(tile.group + kernel - 1) // tile.taps)
            inner, columns = block(tile.taps * direction.in_channels), tile.group * block(direction.out_channels)
            held = tile.stages * slices if tile.stages > 1 else 1
            assert 2 * (slices * kernel * inner * columns + held * tile.rows * inner) <= 227 * 2**10
            assert kernel * tile.rows * columns <= 160 * 32 * tile.warps


def test_few_programs_split_the_rows_of_an_image_and_many_do_not() -> None:
    few, many = (Sizes(members, 16, 16, 3, 1, (32, 32), (32, 32)) for members in (1, 60))
    x = torch.empty(1)
    segments = [choose(sizes, x).segment for choose in (choose_tile, choose_weight_tile) for sizes in (few, many)]
    assert segments == [6, 32, 6, 32]
