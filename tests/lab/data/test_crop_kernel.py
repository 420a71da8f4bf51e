"""Test that the kernel crops exactly like slices; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from hullo.lab.data.ilsvrc2012 import augment  # noqa: E402
from hullo.lab.data.ilsvrc2012.crop_kernel import crop  # noqa: E402
from hullo.population import kernels  # noqa: E402


def draw(count: int, height: int, width: int, channels: int) -> tuple[Tensor, Tensor]:
    images = torch.randint(256, (count, height, width, channels), dtype=torch.uint8, device=DEVICE)
    return images, 255 * torch.rand(height, width, channels, device=DEVICE)


def sliced(images: Tensor, crops: Tensor, mean: Tensor, side: int) -> Tensor:
    """Slice by slice, in float64."""
    result = []
    for image, (flipped, top, left) in zip(images, crops.tolist(), strict=True):
        own = (image.double() - mean.double())[top : top + side, left : left + side]
        result.append(own.flip(1) if flipped else own)
    return torch.stack(result).permute(0, 3, 1, 2)


@settings(max_examples=10)
@given(st.data(), st.integers(1, 5), st.sampled_from([1, 3, 4]), st.integers(1, 60))
def test_crops_are_image_slices_minus_the_mean(data: st.DataObject, count: int, channels: int, side: int) -> None:
    height, width = (side + data.draw(st.integers(0, 9)) for _ in range(2))
    images, mean = draw(count, height, width, channels)
    place = st.tuples(st.integers(0, 1), st.integers(0, height - side), st.integers(0, width - side))
    crops = torch.tensor([data.draw(place) for _ in range(count)], device=DEVICE)
    actual = crop(images, crops, mean, side, torch.float32)
    assert actual.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(actual, sliced(images, crops, mean, side).float())


def test_bfloat16_values_are_rounded_once() -> None:
    images, mean = draw(3, 40, 40, 3)
    crops = torch.tensor([[1, 3, 7], [0, 13, 0], [1, 0, 13]], device=DEVICE)
    actual, expected = crop(images, crops, mean, 27, torch.bfloat16), sliced(images, crops, mean, 27)
    assert actual.dtype == torch.bfloat16
    if DEVICE == "cuda":
        assert torch.equal(actual, expected.float().bfloat16())
    else:  # the interpreter cuts off
        assert bool(((actual.double() - expected).abs() <= expected.abs() * 2.0**-7).all())


def test_empty_batch_gives_empty_crops() -> None:
    images, mean = draw(0, 8, 8, 3)
    assert crop(images, torch.zeros(0, 3, dtype=torch.int64), mean, 5, torch.float32).shape == (0, 3, 5, 5)


@pytest.mark.parametrize("middle", [False, True])
def test_kernel_and_reference_crops_are_identical(middle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    images, mean = draw(1, 256, 256, 3)
    crops = augment.draw_crops(torch.tensor([4], device=DEVICE), 1, torch.arange(1, device=DEVICE)[None])[0]
    if middle:
        crops = augment.center_crops(1, DEVICE)
    monkeypatch.setattr(kernels, "support", lambda x: False)
    plain = augment.crop(images, crops, mean)
    monkeypatch.setattr(kernels, "support", lambda x: True)
    monkeypatch.setattr(torch, "arange", None)  # what the plain form cannot do without
    assert torch.equal(augment.crop(images, crops, mean), plain)


@pytest.mark.gpu
def test_cuda_graph_crops_new_inputs() -> None:
    images, mean = draw(8, 256, 256, 3)
    crops = torch.zeros(8, 3, dtype=torch.int64, device=DEVICE)
    augment.crop(images, crops, mean, torch.bfloat16)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = augment.crop(images, crops, mean, torch.bfloat16)
    crops.copy_(augment.center_crops(8))
    images.copy_(255 - images)
    graph.replay()
    assert torch.equal(actual, augment.crop(images, crops, mean, torch.bfloat16))
