"""The first convolution from bytes equals one of images; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hullo.lab.data.augment import draw_moves, draw_order
from hullo.population.images import move, scale

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # which the interpreter multiplies, and the other not

from hullo.population.kernels import input_conv  # noqa: E402
from hullo.population.kernels.input_conv import convolve as convolve_measured  # noqa: E402

LAYERS = {  # channels, height, width, side, same, outputs
    "kerasnet": (3, 12, 12, 3, True, 32),
    "lenet": (3, 9, 9, 5, False, 20),
    "lenet on fashion": (1, 10, 10, 5, False, 20),
    "oblong": (2, 5, 9, 3, False, 5),
}


def convolve(*given: Any, **settings: Any) -> Tensor:
    return convolve_measured(*given, **settings)[0]


def random_layer(channels: int, height: int, width: int, side: int, same: bool, outputs: int) -> tuple[Tensor, ...]:
    """Return bytes, a part of an epoch's plan for three members with shifts of up to a fifth, weights and biases."""
    images = torch.randint(256, (20, channels, height, width), dtype=torch.uint8)
    seeds = torch.tensor([3, 4, -5])
    order = draw_order(seeds, 1, len(images))
    moves = draw_moves(seeds, 1, order, (2 * height, 2 * width))
    weight, bias = torch.randn(3 * outputs, channels, side, side), torch.randn(3 * outputs)
    return tuple(tensor.to(DEVICE) for tensor in (images, order[:, 7:12], moves[:, 7:12], weight, bias))


def plain_images(images: Tensor, order: Tensor, moves: Tensor) -> Tensor:
    return scale(move(images, order, moves)).transpose(0, 1).flatten(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 16, 16), (2, 5, 9)], ids=["gray", "colored", "oblong"])
def test_where_it_copies_it_shows_the_images_of_the_plain_form_to_the_bit(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    channels = shape[0]
    images, order, moves, *_ = random_layer(*shape, 1, False, channels)
    images[:, 0].flatten(1)[:, :256] = torch.arange(256)[: images[0, 0].numel()]  # every byte, where there is room
    weight = torch.eye(channels, device=DEVICE).repeat(3, 1)[..., None, None]
    copied = convolve(images, order, moves, weight, torch.zeros(3 * channels, device=DEVICE), same=False, dtype=dtype)
    expected = plain_images(images.cpu(), order.cpu(), moves.cpu())  # where a division is one
    assert torch.equal(copied.cpu(), expected.to(dtype))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_values_and_gradients_agree_with_a_convolution_of_images(
    layer: tuple[int, int, int, int, bool, int], layout: torch.memory_format
) -> None:
    side, same = layer[3:5]
    *batch, weight, bias = random_layer(*layer)
    leaves = [weight.contiguous(memory_format=layout).requires_grad_(), bias.requires_grad_()]
    found = convolve(*batch, *leaves, same=same)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = F.conv2d(plain_images(*batch).double(), *wide, padding=side // 2 if same else 0, groups=3)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    gradient = torch.randn_like(found)
    slopes = torch.autograd.grad(found, leaves, gradient)
    stacked = convolve(*batch, *leaves, same=same, stacked=True)
    assert stacked.movedim(2, -1).is_contiguous()
    assert torch.equal(stacked.transpose(0, 1).flatten(1, 2), found)
    own_slopes = torch.autograd.grad(stacked, leaves, gradient.unflatten(1, (3, -1)).transpose(0, 1))
    assert all(torch.equal(own, slope) for own, slope in zip(own_slopes, slopes, strict=True))
    expected_slopes = torch.autograd.grad(expected, wide, gradient.double())
    for slope, expected_slope, leaf in zip(slopes, expected_slopes, leaves, strict=True):
        torch.testing.assert_close(slope.double(), expected_slope, rtol=1e-5, atol=1e-4)
        assert slope.stride() == leaf.stride()


def test_images_that_are_a_part_of_others_are_read_as_copies_are() -> None:
    images, *others = random_layer(*LAYERS["oblong"])
    part = torch.cat([images, images.flip(0)], 1)[:, : images.shape[1]]
    assert torch.equal(convolve(part, *others, same=False), convolve(images, *others, same=False))


def test_images_that_members_share_are_read_where_they_are() -> None:
    x, weight = torch.rand(4, 2, 5, 9, device=DEVICE), torch.randn(3 * 5, 2, 3, 3, device=DEVICE)
    given = None, None, weight, None
    for shared in (x.expand(3, 4, 2, 5, 9), x.repeat(3, 2, 1, 1, 1)[:, ::2]):
        expected = convolve(shared.clone(memory_format=torch.contiguous_format), *given, same=False)
        assert torch.equal(convolve(shared, *given, same=False), expected)


def test_a_program_of_all_tiles_gives_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    *batch, weight, bias = random_layer(*LAYERS["kerasnet"])
    leaves, found = [weight.requires_grad_(), bias.requires_grad_()], []
    for processors in (input_conv.processors, lambda x: 0):
        monkeypatch.setattr(input_conv, "processors", processors)
        y = convolve(*batch, *leaves, same=True)
        found.append([y, *torch.autograd.grad(y, leaves, torch.ones_like(y))])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("moved", [True, False])
def test_16_bits_agree_to_their_rounding(moved: bool) -> None:
    *batch, weight, bias = random_layer(*LAYERS["kerasnet"])
    leaves = [weight.requires_grad_(), bias.requires_grad_()]  # float32, as under autocast
    images = scale(move(*batch)).transpose(3, 4).contiguous().transpose(3, 4)  # in any memory order
    given = (*(batch if moved else (images, None, None)), *leaves)
    found, moments = convolve_measured(*given, same=True, dtype=HALF, measured=True)
    assert moments is not None
    sums = torch.stack([found.double().sum((0, 2, 3)), found.double().square().sum((0, 2, 3))])
    torch.testing.assert_close(moments.double().sum(1), sums, rtol=1e-4, atol=1e-3)
    expected = F.conv2d(plain_images(*batch), *leaves, padding=1, groups=3)
    gradient = torch.randn_like(found)
    slopes = torch.autograd.grad(found, leaves, gradient)
    expected_slopes = torch.autograd.grad(expected, leaves, gradient.float())
    assert found.dtype == HALF
    for a, b in zip((found, *slopes), (expected, *expected_slopes), strict=True):
        assert (a.float() - b).norm() <= 2.0**-7 * b.norm()


def test_a_member_that_is_not_finite_leaves_the_others_as_they_are() -> None:
    *batch, weight, bias = random_layer(*LAYERS["oblong"])
    healthy = convolve(*batch, weight, bias, same=False)
    weight[5:10] = torch.nan
    beside = convolve(*batch, weight, bias, same=False)
    assert torch.equal(beside[:, :5], healthy[:, :5])
    assert torch.equal(beside[:, 10:], healthy[:, 10:])
    assert bool(beside[:, 5:10].isnan().all())
