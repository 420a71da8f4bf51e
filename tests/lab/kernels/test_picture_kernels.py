"""The fused pictures are those of the plain form, to the bit; on the CPU they are made in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hullo.lab.data import Dataset
from hullo.lab.data.augment import draw_moves, draw_order, move, scale
from hullo.lab.feeds import Resident

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.lab.kernels.pictures import patches, show  # noqa: E402

SHAPES = {"cifar": (3, 12, 12), "fashion": (1, 14, 14), "oblong": (2, 5, 9)}


def random_batch(channels: int, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Bytes, and a part of an epoch's plan for three members, with shifts of up to a fifth of the picture."""
    images = torch.randint(256, (20, channels, height, width), dtype=torch.uint8)
    seeds = torch.tensor([3, 4, -5])
    order = draw_order(seeds, 1, len(images))
    moves = draw_moves(seeds, 1, order, (2 * height, 2 * width))
    return images, order[:, 7:12], moves[:, 7:12]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_pictures_equal_those_of_the_plain_form(shape: tuple[int, int, int]) -> None:
    images, order, moves = random_batch(*shape)
    labels = torch.arange(20) % 2
    dataset = Dataset("noise", ("one", "other"), images, labels, images, labels)
    expected, _ = Resident(dataset).show(order, moves)
    given = [tensor.to(DEVICE) for tensor in (images, order, moves)]
    shown = show(*given)
    assert torch.equal(shown.cpu(), expected)
    assert shown.is_contiguous(memory_format=torch.channels_last)
    halves = show(*given, dtype=torch.bfloat16).cpu()
    if DEVICE == "cuda":
        assert torch.equal(halves, expected.bfloat16())
    else:  # the interpreter cuts off
        torch.testing.assert_close(halves.float(), expected, rtol=2.0**-7, atol=0.0)


@pytest.mark.parametrize(("side", "same"), [(3, True), (5, False), (1, False)])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_patches_are_unfolded_pictures_then_a_one_then_zeros(
    shape: tuple[int, int, int], side: int, same: bool
) -> None:
    images, order, moves = random_batch(*shape)
    moved = scale(move(images, order, moves))
    unfolded = F.unfold(moved.flatten(0, 1), side, padding=side // 2 if same else 0)
    expected = unfolded.unflatten(0, order.shape).transpose(2, 3).flatten(1, 2)
    cut = patches(*(tensor.to(DEVICE) for tensor in (images, order, moves)), side, same=same).cpu()
    numbers = expected.shape[-1]
    assert torch.equal(cut[..., :numbers], expected)
    assert bool((cut[..., numbers] == 1).all())
    assert bool((cut[..., numbers + 1 :] == 0).all())
    assert cut.shape[-1] % 16 == 0


def test_what_does_not_fit_is_refused_by_name() -> None:
    images, order, moves = (tensor.to(DEVICE) for tensor in random_batch(3, 8, 8))
    with pytest.raises(ValueError, match=r"moves of shape \(3, 5, 3\); got torch\.uint8 .* moves of shape \(3, 2, 3\)"):
        show(images, order, moves[:, :2])
    with pytest.raises(ValueError, match=r"got torch\.float32"):
        show(images.float(), order, moves)
    with pytest.raises(ValueError, match="side=4: zeros on all sides alike"):
        patches(images, order, moves, 4, same=True)
    with pytest.raises(ValueError, match="side=9: a window is from 1 pixel to the 8"):
        patches(images, order, moves, 9, same=False)
