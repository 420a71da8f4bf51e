import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.data import load
from hullo.lab.data.augment import draw_moves, draw_order
from hullo.population.images import move, scale

SEEDS = torch.tensor([3, 1, 4, 1, 5])


def move_by_loops(image, flipped, down, right):
    channels, height, width = image.shape
    moved = torch.empty_like(image)
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                from_row = min(max(row - down, 0), height - 1)
                from_column = min(max(column - right, 0), width - 1)
                if flipped:
                    from_column = width - 1 - from_column
                moved[channel, row, column] = image[channel, from_row, from_column]
    return moved


def chi_squared(counts):
    counts = counts.double()
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


def unlikely(cells):
    """Return a bound that chi-squared of so many equally likely cells exceeds with probability 1e-6 at most."""
    return cells + 6 * (2 * cells) ** 0.5


@given(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)), st.data())
def test_images_are_flipped_then_shifted_with_repeated_edges(shape, data):
    images = torch.randint(256, (4, *shape), dtype=torch.uint8)
    indices = torch.randint(4, (2, 3))
    amount = st.integers(-8, 8)
    moves = data.draw(st.lists(st.tuples(st.integers(0, 1), amount, amount), min_size=6, max_size=6))
    moved = move(images, indices, torch.tensor(moves).reshape(2, 3, 3))
    assert moved.dtype == torch.uint8
    expected = [move_by_loops(images[index], *how) for index, how in zip(indices.flatten(), moves, strict=True)]
    assert torch.equal(moved, torch.stack(expected).reshape(2, 3, *shape))


@pytest.mark.parametrize(("height", "width", "down", "right"), [(28, 28, 2, 2), (32, 32, 3, 3), (9, 50, 0, 5)])
def test_flips_and_shifts_are_uniform_and_independent(height, width, down, right):
    moves = draw_moves(torch.tensor([0]), 0, torch.arange(200_000)[None], (height, width))[0].long()
    assert moves.amin(0).tolist() == [0, -down, -right]
    assert moves.amax(0).tolist() == [1, down, right]
    offset = moves + torch.tensor([0, down, right])
    cells = (offset[:, 0] * (2 * down + 1) + offset[:, 1]) * (2 * right + 1) + offset[:, 2]
    count = 2 * (2 * down + 1) * (2 * right + 1)
    assert chi_squared(cells.bincount(minlength=count)) < unlikely(count)


@pytest.mark.parametrize("kind", ["images", "epochs", "seeds"])
def test_augmentations_of_neighboring_images_are_independent(kind):
    indices = torch.arange(100_000)[None]
    one = draw_moves(torch.tensor([0]), 0, indices, (32, 32))[0].long()
    other = {
        "images": one.roll(1, 0),
        "epochs": draw_moves(torch.tensor([0]), 1, indices, (32, 32))[0].long(),
        "seeds": draw_moves(torch.tensor([1]), 0, indices, (32, 32))[0].long(),
    }[kind]
    assert chi_squared((one[:, 0] * 2 + other[:, 0]).bincount(minlength=4)) < unlikely(4)
    for shift in (1, 2):
        assert chi_squared(((one[:, shift] + 3) * 7 + other[:, shift] + 3).bincount(minlength=49)) < unlikely(49)


@given(st.integers(0, 4), st.integers(0, 100))
def test_member_gets_the_same_images_alone_and_in_a_population(member, epoch):
    images = load("fashion-mnist-sample").train_images[:40]

    def augmented(seeds):
        order = draw_order(seeds, epoch, len(images))
        return scale(move(images, order, draw_moves(seeds, epoch, order, (28, 28))))

    assert torch.equal(augmented(SEEDS)[member], augmented(SEEDS[member : member + 1])[0])


def test_augmentation_is_independent_of_batch_and_order():
    order = draw_order(SEEDS, 2, 64)
    whole = draw_moves(SEEDS, 2, order, (32, 32))
    batches = [draw_moves(SEEDS, 2, batch, (32, 32)) for batch in order.split(24, dim=1)]
    assert torch.equal(whole, torch.cat(batches, 1))
    in_file_order = draw_moves(SEEDS, 2, torch.arange(64).expand(5, -1), (32, 32))
    assert torch.equal(whole, in_file_order.gather(1, order[..., None].expand(-1, -1, 3)))


def test_order_and_augmentation_differ_between_epochs():
    orders = torch.stack([draw_order(SEEDS[:3], epoch, 30) for epoch in range(50)])
    assert orders.flatten(0, 1).unique(dim=0).shape[0] == 150
    moves = torch.stack([draw_moves(SEEDS[:3], epoch, torch.arange(30)[None], (32, 32)) for epoch in range(50)])
    assert moves.flatten(0, 1).flatten(1).unique(dim=0).shape[0] == 150


def test_members_may_be_the_second_dimension():
    images = torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8)
    indices, moves = torch.randint(9, (2, 4)), torch.randint(-1, 2, (2, 4, 3)).abs()
    wide = move(images, indices.T, moves.transpose(0, 1))
    assert torch.equal(wide.transpose(0, 1), move(images, indices, moves))
    assert wide.is_contiguous()


def test_pixels_are_divided_by_255_with_correct_rounding():
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(scale(every), (torch.arange(256).double() / 255).float())
    assert scale(every, torch.bfloat16).dtype == torch.bfloat16


def test_no_tensor_value_is_read_on_the_host():
    """The meta device has no values, so nothing waits for the device, and a CUDA graph can capture everything."""
    seeds, images = torch.empty(5, dtype=torch.int64, device="meta"), torch.empty(64, 3, 32, 32, device="meta")
    epoch = torch.empty((), dtype=torch.int64, device="meta")
    order = draw_order(seeds, epoch, 64)
    augmented = scale(move(images, order, draw_moves(seeds, epoch, order, (32, 32))))
    assert augmented.shape == (5, 64, 3, 32, 32)


@pytest.mark.gpu
def test_gpu_augments_like_cpu():
    images = torch.randint(256, (500, 3, 32, 32), dtype=torch.uint8)

    def augmented(device):
        seeds = SEEDS.to(device)
        order = draw_order(seeds, 7, len(images))
        return move(images.to(device), order, draw_moves(seeds, 7, order, (32, 32))).cpu()

    assert torch.equal(augmented("cuda"), augmented("cpu"))
