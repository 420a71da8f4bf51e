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

from hullo.kernels.triton import INTERPRETED  # noqa: E402
from hullo.population.kernels import row_conv  # noqa: E402
from hullo.population.kernels.layouts import Shape, block  # noqa: E402
from hullo.population.kernels.row_conv import (  # noqa: E402
    TILES,
    Tile,
    WeightTile,
    choose_tile,
    choose_weight_tile,
    convolve_rows,
    weight_gradient,
)

SHAPES = {  # members, channels in and out, kernel, stride, padding, shape of images and outputs
    "same": Shape(2, 4, 6, 3, 1, (1, 1), (7, 5), (7, 5)),
    "valid, large kernel": Shape(2, 5, 3, 5, 1, (0, 0), (7, 6), (3, 2)),
    "padded before only": Shape(1, 4, 4, 3, 1, (2, 0), (5, 6), (5, 6)),
}
OWN_TILES = {  # group, taps, rows, segment, warps, stages, prefetch, shifted
    "one column": Tile(1, 1, 64, 3, 4, 1, False, False),
    "prefetched": Tile(1, 2, 64, 8, 4, 1, True, False),
    "two columns": Tile(2, 4, 64, 2, 4, 2, False, False),
    "four columns": Tile(4, 2, 64, 8, 4, 1, True, False),
    "shifted": Tile(2, 2, 64, 4, 4, 1, False, True),
}
QUICK = (  # in the interpreter
    ("same", "one column"),
    ("same", "four columns"),
    ("valid, large kernel", "shifted"),
    ("padded before only", "two columns"),
)
WEIGHT_TILES = {  # group, taps, positions, segment, unroll, warps, stages
    "one column": WeightTile(1, 1, 64, 3, 1, 4, 1),
    "two columns": WeightTile(2, 4, 64, 4, 3, 4, 2),  # of two steps, the last one ends in the next segment
}


def draw(shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, weights and a gradient of the outputs: small integers, of which float32 holds every sum."""
    generator = torch.Generator().manual_seed(sum(shape[:5]) + shape.padding[0])
    channels, filters = shape.members * shape.in_channels, shape.members * shape.out_channels
    sizes = (
        (2, channels, *shape.in_size),
        (filters, shape.in_channels, shape.kernel, shape.kernel),
        (2, filters, *shape.out_size),
    )
    made = [torch.randint(-4, 5, size, generator=generator).to(DEVICE, HALF) for size in sizes]
    return tuple(tensor.contiguous(memory_format=torch.channels_last) for tensor in made)  # type: ignore[return-value]


def plain(shape: Shape, x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(F.pad(x, shape.padding * 2), weight, groups=shape.members)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        (SHAPES[size], OWN_TILES[tile])
        for size, tile in itertools.product(SHAPES, OWN_TILES)
        if GPU or (size, tile) in QUICK
    ],
)
def test_every_tile_gives_the_outputs_and_gradients_of_a_grouped_convolution(shape: Shape, tile: Tile) -> None:
    x, weight, dy = draw(shape)
    precise = [tensor.double().requires_grad_() for tensor in (x, weight)]
    y = plain(shape, *precise)
    dx, dweight = torch.autograd.grad(y, precise, dy.double())
    found, moments = convolve_rows(x, weight, shape, tile, measured=True)
    assert torch.equal(found.double(), y.to(HALF).double())
    assert moments is not None
    sums = torch.stack([found.double().sum((0, 2, 3)), found.double().square().sum((0, 2, 3))])
    assert torch.equal(moments.double().sum(1), sums)
    found, _ = convolve_rows(dy, weight, shape.transposed(), tile, transposed=True)
    assert torch.equal(found.double(), dx.to(HALF).double())
    for weight_tile in WEIGHT_TILES.values():
        assert torch.equal(weight_gradient(dy, x, shape, weight_tile).double(), dweight.to(HALF).double())


@pytest.mark.parametrize("key", TILES)
def test_tiles_fit_in_registers_and_shared_memory(key: tuple[int, int, int]) -> None:
    (kernel, inputs, outputs), tile = key, TILES[key]
    slices = -(-(tile.group + kernel - 1) // tile.taps)
    inner, columns = block(tile.taps * inputs), tile.group * block(outputs)
    held = tile.stages * slices if tile.stages > 1 else 1
    assert 2 * (slices * kernel * inner * columns + held * tile.rows * inner) <= 227 * 2**10
    assert kernel * tile.rows * columns <= 160 * 32 * tile.warps


def test_few_programs_split_the_rows_of_an_image_and_many_do_not() -> None:
    few, many = (Shape(members, 16, 16, 3, 1, (1, 1), (32, 32), (32, 32)) for members in (1, 60))
    x = torch.empty(1, 1, 1, 1)  # on the CPU, which counts as four processors
    chosen = [choose(shape, x) for choose in (choose_tile, choose_weight_tile) for shape in (few, many)]
    assert [tile.segment for tile in chosen if tile is not None] == ([4, 32, 4, 32] if INTERPRETED else [])


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU only what was measured there is served")
@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, 16, 16, 3, 1, (3, 3), (6, 6), (10, 10)),  # output rows without an input row
        Shape(2, 16, 16, 3, 1, (0, 3), (6, 6), (7, 7)),
        Shape(2, 16, 17, 3, 1, (1, 1), (6, 6), (6, 6)),
        Shape(60, 64, 64, 3, 1, (1, 1), (32, 32), (32, 32)),  # too many programs
    ],
)
def test_other_sizes_are_left_to_others(shape: Shape) -> None:
    assert choose_tile(shape, torch.empty(32, 1, 1, 1)) is None


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU there are more processors")
@pytest.mark.parametrize(("members", "chosen"), [(1, True), (3, False)])
def test_weights_of_64_channels_are_left_to_cudnn_where_there_are_many_programs(members: int, chosen: bool) -> None:
    shape = Shape(members, 64, 64, 3, 1, (1, 1), (8, 8), (8, 8))
    assert (choose_weight_tile(shape, torch.empty(32, 1, 1, 1)) is not None) is chosen


@pytest.mark.parametrize(
    ("dtype", "capability", "version", "expected"),
    [
        (torch.bfloat16, (9, 0), "3.6.0", True),
        (torch.float16, (9, 0), "3.6.0", False),
        (torch.bfloat16, (8, 0), "3.6.0", False),
        (torch.bfloat16, (9, 0), "3.7.1", False),
    ],
)
def test_only_checked_settings_are_used(
    dtype: torch.dtype, capability: tuple[int, int], version: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_conv, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(row_conv.triton, "__version__", version)
    assert row_conv.is_tuned_for(dtype, torch.device("cuda")) is expected
    assert not row_conv.is_tuned_for(dtype, torch.device("cpu"))
