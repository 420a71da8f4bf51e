import pytest
import torch

from hullo.lab.data.ilsvrc2012.augment import center_crops, crop, draw_crops

SEEDS = torch.tensor([3, 1, 4])


def crop_by_loops(image, mean, flipped, top, left):
    rows = [[image[top + r, left + c].float() - mean[top + r, left + c] for c in range(227)] for r in (0, 100, 226)]
    return torch.stack([torch.stack(row[::-1] if flipped else row) for row in rows]).permute(2, 0, 1)


def test_crop_subtracts_the_mean_before_flipping():
    images = torch.randint(256, (4, 256, 256, 3), dtype=torch.uint8)
    mean = 255 * torch.rand(256, 256, 3)
    crops = torch.tensor([[0, 0, 0], [1, 0, 29], [1, 29, 0], [0, 13, 7]])
    cropped = crop(images, crops, mean)
    assert cropped.shape == (4, 3, 227, 227)
    assert cropped.dtype == torch.float32
    for image, how, actual in zip(images, crops.tolist(), cropped, strict=True):
        assert torch.equal(actual[:, [0, 100, 226]], crop_by_loops(image, mean, *how))


def test_crops_are_channels_last_in_the_requested_dtype():
    images = torch.randint(256, (2, 256, 256, 3), dtype=torch.uint8)
    cropped = crop(images, center_crops(2), torch.zeros(256, 256, 3), torch.bfloat16)
    assert cropped.is_contiguous(memory_format=torch.channels_last)
    assert cropped.dtype == torch.bfloat16
    assert torch.equal(cropped.float(), images[:, 14:241, 14:241].permute(0, 3, 1, 2).float())  # bytes fit exactly


@pytest.mark.parametrize("what", [0, 1, 2])
def test_flips_and_positions_are_uniform(what):
    drawn = draw_crops(torch.tensor([0]), 0, torch.arange(200_000)[None])[0]
    cells = (2, 30, 30)[what]
    counts = drawn[:, what].bincount(minlength=cells).double()
    assert len(counts) == cells
    expected = counts.sum() / cells
    assert float(((counts - expected) ** 2 / expected).sum()) < cells + 6 * (2 * cells) ** 0.5


def test_crop_depends_only_on_seed_epoch_and_image():
    numbers = torch.randperm(64)
    whole = draw_crops(SEEDS, 2, numbers.expand(3, -1))
    parts = [draw_crops(SEEDS, 2, some.expand(3, -1)) for some in (numbers[:10], numbers[10:])]
    assert torch.equal(whole, torch.cat(parts, 1))
    assert torch.equal(whole[1:2], draw_crops(SEEDS[1:2], 2, numbers[None]))
    in_order = draw_crops(SEEDS, 2, torch.arange(64).expand(3, -1))
    assert torch.equal(whole, in_order[:, numbers])
    others = torch.stack([draw_crops(SEEDS, epoch, numbers.expand(3, -1)) for epoch in range(20)])
    assert others.flatten(0, 1).flatten(1).unique(dim=0).shape[0] == 60


def test_no_tensor_value_is_read_on_the_host():
    """The meta device has no values, so nothing waits for the device, and a CUDA graph can capture everything."""
    seeds, numbers = (
        torch.empty(1, dtype=torch.int64, device="meta"),
        torch.empty(1, 8, dtype=torch.int64, device="meta"),
    )
    epoch = torch.empty((), dtype=torch.int64, device="meta")
    images = torch.empty(8, 256, 256, 3, dtype=torch.uint8, device="meta")
    mean = torch.empty(256, 256, 3, device="meta")
    assert crop(images, draw_crops(seeds, epoch, numbers)[0], mean).shape == (8, 3, 227, 227)


@pytest.mark.gpu
def test_gpu_crops_like_cpu():
    images, mean = torch.randint(256, (8, 256, 256, 3), dtype=torch.uint8), 255 * torch.rand(256, 256, 3)

    def cropped(device):
        crops = draw_crops(torch.tensor([5], device=device), 1, torch.arange(8, device=device)[None])[0]
        return crop(images.to(device), crops, mean.to(device)).cpu()

    assert torch.equal(cropped("cuda"), cropped("cpu"))
