import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hullo.lab.data import Dataset


def numbered(labels):
    """Return a data set whose images hold their own numbers."""
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None]
    return Dataset("numbered", ("a", "b", "c"), images, torch.tensor(labels), images[:1], torch.tensor(labels[:1]))


@given(
    st.lists(st.integers(0, 2), max_size=40).flatmap(lambda more: st.permutations([*more, 0, 1, 2, 2])),
    st.data(),
    st.integers(-(2**63), 2**63 - 1),
)
def test_validation_split_is_proportional_and_complete(labels, data, seed):
    counts = torch.tensor(labels).bincount(minlength=3)
    n = data.draw(st.integers(1, len(labels) - 3))
    split = numbered(labels).split_validation(n, seed)
    each = split.val_labels.bincount(minlength=3)
    assert int(each.sum()) == n
    assert bool((each < counts).all())
    has_room = each < counts - 1
    assert bool((each + 1 > n * counts / len(labels))[has_room].all())  # the others cannot have their share
    held_out, rest = split.val_images.flatten().tolist(), split.train_images.flatten().tolist()
    assert sorted(held_out + rest) == list(range(len(labels)))
    assert held_out == sorted(held_out)
    assert rest == sorted(rest)
    assert [labels[place] for place in held_out] == split.val_labels.tolist()
    assert [labels[place] for place in rest] == split.train_labels.tolist()


def test_validation_split_never_changes():
    """Records and checkpoints depend on it."""
    assert numbered([0, 1, 2] * 8).split_validation(6, 0).val_images.flatten().tolist() == [4, 6, 10, 20, 21, 23]


def test_balanced_classes_are_split_evenly():
    split = numbered([0, 1, 2] * 4).split_validation(6, 1)
    assert split.val_labels.bincount().tolist() == [2, 2, 2]


def test_validation_split_depends_only_on_the_seed():
    dataset = numbered([0, 1, 2] * 80)
    splits = [dataset.split_validation(60, seed).val_images.flatten().tolist() for seed in (5, 6, 5)]
    assert splits[0] == splits[2] != splits[1]


def test_every_image_is_equally_likely_to_be_held_out():
    dataset = numbered([0, 1, 2] * 4)
    times = sum(
        torch.bincount(dataset.split_validation(3, seed).val_images.flatten(), minlength=12) for seed in range(2000)
    )
    assert (times - 500).abs().max() < 5 * (2000 * 3 / 16) ** 0.5


@pytest.mark.parametrize("n", [-3, 0, 10, 15])
def test_impossible_validation_split_is_rejected(n):
    with pytest.raises(ValueError, match=f"val_size={n}: .* at most 9"):
        numbered([0, 1, 2] * 4).split_validation(n, 0)


def test_own_validation_sets_are_not_split():
    tuned = numbered([0, 1, 2] * 4).split_validation(3, 0)
    with pytest.raises(ValueError, match="validation set"):
        tuned.split_validation(3, 0)


IMAGES, LABELS = torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.double(), LABELS, "torch.float64"),
        (IMAGES[:, 0], LABELS, r"torch.uint8 of shape \((2, )?3, 3\)"),
        (IMAGES, LABELS.int(), "torch.int32 labels"),
        (IMAGES, LABELS[:1], r"2 \w+ samples .*\(1,\)"),
        (IMAGES, LABELS + 1, "labels from 1 to 2; must be from 0 to 1"),
        (IMAGES, LABELS - 1, "labels from -1 to 0"),
    ],
)
def test_invalid_data_set_is_rejected(images, labels, message):
    with pytest.raises(ValueError, match=f"^odd: .*{message}"):
        Dataset("odd", ("a", "b"), images, labels, IMAGES, LABELS)
    with pytest.raises(ValueError, match=f"^odd: .*{message}"):
        Dataset("odd", ("a", "b"), IMAGES, LABELS, images, labels)


@pytest.mark.gpu
def test_to_moves_all_tensors():
    there = numbered([0, 1, 2] * 4).to("cuda")
    assert all(tensor.is_cuda for tensor in vars(there).values() if isinstance(tensor, torch.Tensor))
    split, expected = there.split_validation(6, 0), numbered([0, 1, 2] * 4).split_validation(6, 0)
    assert torch.equal(split.val_images.cpu(), expected.val_images)
