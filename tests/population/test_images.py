"""Augmented images are those that plain PyTorch flips, pads, cuts out and normalizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hullo.population import AugmentedImages, Population

MODES = {"edge": "replicate", "zeros": "constant"}
SHIFT = 4


def shifted(image: Tensor, flip: int, down: int, right: int, padding: str) -> Tensor:
    """Return an image that PyTorch flips, pads on all sides and cuts out."""
    image = image.flip(-1) if flip else image
    padded = F.pad(image, [SHIFT] * 4, mode=MODES[padding])
    height, width = image.shape[-2:]
    return padded[:, SHIFT - down : SHIFT - down + height, SHIFT - right : SHIFT - right + width]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    padding=st.sampled_from(sorted(MODES)),
    height=st.integers(5, 9),
    width=st.integers(5, 9),
    normalized=st.booleans(),
)
def test_images_are_flipped_shifted_and_normalized(
    seed: int, padding: str, height: int, width: int, normalized: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (5, 3, height, width), generator=generator, dtype=torch.uint8)
    index = torch.randint(5, (2, 4), generator=generator)
    moves = torch.randint(-SHIFT, SHIFT + 1, (2, 4, 3), generator=generator)
    moves[..., 0] = torch.randint(2, (2, 4), generator=generator)
    mean, std = ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)) if normalized else (None, None)
    actual = AugmentedImages(images, index, moves, padding=padding, mean=mean, std=std).tensor()
    for k in range(2):
        for i in range(4):
            expected = shifted(images[index[k, i]].float() / 255, *moves[k, i].tolist(), padding=padding)
            if normalized:
                expected = (expected - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
            torch.testing.assert_close(actual[k, i], expected)


@pytest.mark.parametrize("padding", MODES)
def test_a_population_reads_them_as_a_tensor(padding: str) -> None:
    population = Population(lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten()), seeds=range(2))
    images = torch.randint(256, (5, 1, 6, 6), dtype=torch.uint8)
    moves = torch.tensor([[[1, 2, -1], [0, -2, 1]], [[0, 0, 2], [1, 1, 0]]])
    batch = AugmentedImages(images, torch.tensor([[0, 3], [4, 1]]), moves, padding=padding, mean=[0.5], std=[0.25])
    torch.testing.assert_close(population(batch), population(batch.tensor()))


def test_bad_settings_are_rejected_with_the_value() -> None:
    given_images = torch.zeros(1, 3, 4, 4).byte(), torch.zeros(1, 1).long(), torch.zeros(1, 1, 3)
    with pytest.raises(ValueError, match=r"'constant'.*'zeros'"):
        AugmentedImages(*given_images, padding="constant")
    images, index, moves = given_images
    with pytest.raises(ValueError, match=r"images of torch\.float32"):
        AugmentedImages(images.float(), index, moves)
    with pytest.raises(ValueError, match=r"moves of shape \(1, 1, 2\).*\(1, 1, 3\)"):
        AugmentedImages(images, index, moves[..., :2])
    with pytest.raises(ValueError, match=r"index of shape \(1, 1\).*2 members"):
        Population(lambda: nn.Conv2d(3, 2, 3), seeds=range(2))(AugmentedImages(*given_images))
