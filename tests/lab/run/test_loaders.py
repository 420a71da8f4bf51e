"""Test that images follow each member's order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tiny_command
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hullo.lab import data
from hullo.lab.cli.settings import combine_settings
from hullo.lab.data.augment import draw_order
from hullo.lab.run.loaders import InMemoryLoader, open_loader
from hullo.lab.spec import Spec

SPEC = Spec("lenet5", "fashion-mnist-sample", "relu")
SEEDS = torch.tensor([3, 4])
DATA = tiny_command.load("fashion-mnist-sample")


@settings(deadline=None)
@given(st.integers(1, 80), st.integers(0, 5))
def test_batches_form_the_rest_of_the_epoch(size: int, start: int) -> None:
    loader = InMemoryLoader(DATA)
    seen = [batch[0] for batch in loader.batches(SEEDS, 1, size, start)]
    order = draw_order(SEEDS, 1, loader.count)[:, start * size :]
    assert torch.equal(torch.cat([order[:, :0], *seen], 1), order)
    assert all(batch.shape[1] == size for batch in seen[:-1])


def test_images_and_labels_belong_together() -> None:
    loader = InMemoryLoader(DATA)
    (batch,) = loader.batches(SEEDS, 0, 70, 0)
    images, labels = loader.load_batch(*batch)
    assert (images.shape, labels.shape) == ((2, 70, 1, 28, 28), (2, 70))
    shifted = images.tensor().sum((2, 3, 4))
    plain = DATA.train_images[batch[0]].sum((2, 3, 4)) / 255
    # a shift by two pixels loses little of an image's light
    assert torch.corrcoef(torch.stack([shifted.flatten(), plain.flatten()]))[0, 1] > 0.9
    assert torch.equal(labels, DATA.train_labels[batch[0]])


def test_evaluation_images_are_used_once() -> None:
    images, labels = map(torch.cat, zip(*InMemoryLoader(DATA).eval_batches("test"), strict=True))
    assert torch.equal(labels, DATA.test_labels)
    assert torch.equal(images, DATA.test_images / 255)


def test_a_fraction_of_held_out_images_is_rounded() -> None:
    (settings,) = combine_settings({"val_size": ["0.009"]}, SPEC.column, None)
    assert settings == {"val_size": 54}  # and 0.009 * 6000 is less


def test_held_out_images_are_evaluated_beside_test_images() -> None:
    whole = open_loader(SPEC, None, torch.device("cpu"))
    split = open_loader(replace(SPEC, val_size=600), Path("unused"), torch.device("cpu"))
    assert (whole.count, whole.eval_sizes) == (6000, {"test": 1000})
    assert (split.count, split.eval_sizes) == (5400, {"test": 1000, "val": 600})
    sample = data.load("fashion-mnist-sample")
    sources = {"test": sample.test_images, "val": sample.train_images}
    for name, source in sources.items():
        (first, *_) = split.eval_batches(name)
        known = {bytes(image) for image in source.flatten(1).numpy()}
        assert all(bytes((255 * image).round().byte().numpy()) in known for image in first[0].flatten(1))
    other = open_loader(replace(SPEC, val_size=600, seed=5), None, torch.device("cpu"))
    assert torch.equal(other.dataset.val_images, split.dataset.val_images)  # so that all seeds are compared on them
