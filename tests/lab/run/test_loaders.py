"""Test that images follow each member's order, in shards that form the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tiny_command
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hullo.lab import data
from hullo.lab.data.augment import draw_order
from hullo.lab.distributed import SINGLE_PROCESS, World
from hullo.lab.run.loaders import InMemoryLoader, open_loader
from hullo.lab.spec import Spec

SPEC = Spec("lenet5", "fashion-mnist-sample", "relu")
SEEDS = torch.tensor([3, 4])
DATA = tiny_command.load("fashion-mnist-sample")


@settings(deadline=None)
@given(st.integers(1, 80), st.integers(0, 5), st.integers(1, 4))
def test_shards_of_all_processes_form_the_epoch(size: int, start: int, processes: int) -> None:
    loader = InMemoryLoader(DATA)
    parts = [list(loader.batches(SEEDS, 1, size, start, World(rank, processes))) for rank in range(processes)]
    seen = [torch.cat([batch[0] for _, batch in step], 1) for step in zip(*parts, strict=True)]
    order = draw_order(SEEDS, 1, loader.count)[:, start * size :]
    assert torch.equal(torch.cat([order[:, :0], *seen], 1), order)
    assert all(whole == together.shape[1] for (whole, _), together in zip(parts[0], seen, strict=True))


def test_images_and_labels_belong_together() -> None:
    loader = InMemoryLoader(DATA)
    ((whole, batch),) = loader.batches(SEEDS, 0, 70, 0, SINGLE_PROCESS)
    images, labels = loader.load_batch(*batch)
    assert (whole, images.shape, labels.shape) == (70, (2, 70, 1, 28, 28), (2, 70))
    shifted = images.tensor().sum((2, 3, 4))
    plain = DATA.train_images[batch[0]].sum((2, 3, 4)) / 255
    # a shift by two pixels loses little of an image's light
    assert torch.corrcoef(torch.stack([shifted.flatten(), plain.flatten()]))[0, 1] > 0.9
    assert torch.equal(labels, DATA.train_labels[batch[0]])


def test_evaluation_images_are_used_once_by_any_number_of_processes() -> None:
    loader = InMemoryLoader(DATA)
    for processes in (1, 3):
        batches = [batch for rank in range(processes) for batch in loader.eval_batches("test", World(rank, processes))]
        assert torch.equal(torch.cat([labels for _, labels in batches]), DATA.test_labels)
        assert torch.equal(torch.cat([images for images, _ in batches]), DATA.test_images / 255)


def test_held_out_images_are_evaluated_beside_test_images() -> None:
    whole = open_loader(SPEC, None, torch.device("cpu"))
    split = open_loader(replace(SPEC, val_size=600), Path("unused"), torch.device("cpu"))
    assert (whole.count, whole.eval_sizes) == (6000, {"test": 1000})
    assert (split.count, split.eval_sizes) == (5400, {"test": 1000, "val": 600})
    sample = data.load("fashion-mnist-sample")
    sources = {"test": sample.test_images, "val": sample.train_images}
    for name, source in sources.items():
        (first, *_) = split.eval_batches(name, SINGLE_PROCESS)
        known = {bytes(image) for image in source.flatten(1).numpy()}
        assert all(bytes((255 * image).round().byte().numpy()) in known for image in first[0].flatten(1))
    other = open_loader(replace(SPEC, val_size=600, seed=5), None, torch.device("cpu"))
    assert torch.equal(other.dataset.val_images, split.dataset.val_images)  # so that all seeds are compared on them
