"""Loaders: batches of images for training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from hullo.lab import data
from hullo.lab.data import Dataset
from hullo.lab.data.augment import draw_moves, draw_order
from hullo.lab.data.ilsvrc2012.augment import CROP, center_crops, crop, draw_crops
from hullo.lab.data.ilsvrc2012.pack import Pack
from hullo.lab.data.ilsvrc2012.stream import read_ahead, to_device
from hullo.lab.data.release import DataError
from hullo.lab.networks import DataShape
from hullo.lab.run.loop import Batch, Batches
from hullo.lab.spec.recipes import STREAMED, Augmentation
from hullo.lab.spec.run_spec import Spec
from hullo.population import AugmentedImages
from hullo.population.images import scale
from hullo.population.kernels import working_dtype

DEFAULT = Augmentation(flip=True, shift=0.1)
EVAL_BATCH_SIZE = 250
"""Images per evaluation batch."""


class Loader(Batches, Protocol):
    """Interface of loaders of labeled samples; shapes of batches depend only on the number of samples."""

    task: DataShape
    eval_sizes: dict[str, int]  # images to evaluate on: "test", and perhaps "val"
    is_complete: bool  # whether the loader has all images of the data set
    example: Tensor  # two samples as inputs of a network, on the CPU
    topk: tuple[int, ...]  # the k of each top-k accuracy

    def load_batch(self, *batch: Tensor) -> tuple[Tensor | AugmentedImages, Tensor]:
        """Return each member's images and labels, (K, B), or images (B, C, H, W) for all members and labels (B)."""

    def eval_batches(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield an evaluation set: images (B, C, H, W) and labels (B)."""


def loader_key(spec: Spec) -> tuple[str, int, str]:
    """Return what the loader of a run depends on: data set, number of held-out images and augmentation."""
    return spec.data, spec.val_size, spec.augment


def open_loader(spec: Spec, data_dir: Path | None, device: torch.device) -> Loader:
    """Return the loader of a run."""
    if spec.data in STREAMED:
        if spec.val_size:
            raise ValueError(f"val_size={spec.val_size}: {spec.data} has its own validation images; val_size must be 0")
        return StreamingLoader(Pack(data.data_root(data_dir) / spec.data / "packed"), device)
    dataset = data.load(spec.data, data_dir, device)
    return InMemoryLoader(
        dataset.split_validation(spec.val_size, seed=0) if spec.val_size else dataset, Augmentation.parse(spec.augment)
    )


class InMemoryLoader:
    """Loads batches from a data set in device memory; every member has its own order of images.

    >>> from hullo.lab import data
    >>> loader = InMemoryLoader(data.load("fashion-mnist-sample"))
    >>> images, labels = loader.load_batch(*next(loader.batches(torch.tensor([0, 1]), epoch=0, size=32, start=0)))
    >>> images.shape, labels.shape
    (torch.Size([2, 32, 1, 28, 28]), torch.Size([2, 32]))
    """

    is_complete = True
    topk: tuple[int, ...] = (1,)

    def __init__(self, dataset: Dataset, augmentation: Augmentation = DEFAULT) -> None:
        self.dataset, self.augmentation = dataset, augmentation
        if not dataset.holds_images and augmentation != Augmentation():
            raise ValueError(f"augment={augmentation}: the samples of {dataset.name} are not images; give none")
        channels, *sides = dataset.train_images.shape[1:]
        side = sides[0] if dataset.holds_images and sides[0] == sides[1] else 0
        self.task = DataShape(channels, side, len(dataset.classes))
        self.example = _scale_images(dataset.train_images[:2].cpu())
        self.device = dataset.train_images.device
        self.count = len(dataset.train_labels)
        self.eval_sizes = {name: len(labels) for name, (_, labels) in dataset.eval_sets.items()}

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int) -> Iterator[Batch]:
        sequences = [draw_order(seeds, epoch, self.count)]
        if self.dataset.holds_images:
            sides, options = self.dataset.train_images.shape[-2:], self.augmentation
            sequences.append(draw_moves(seeds, epoch, sequences[0], sides, flip=options.flip, shift=options.shift))
        yield from zip(*(torch.split(sequence, size, 1)[start:] for sequence in sequences), strict=True)

    def load_batch(self, *batch: Tensor) -> tuple[Tensor | AugmentedImages, Tensor]:
        order, *moves = batch
        samples, labels = self.dataset.train_images, self.dataset.train_labels[order]
        return (AugmentedImages(samples, order, *moves) if moves else samples[order]), labels

    def eval_batches(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.dataset.eval_sets[name]
        for batch in zip(torch.split(images, EVAL_BATCH_SIZE), torch.split(labels, EVAL_BATCH_SIZE), strict=True):
            yield _scale_images(batch[0]), batch[1]


def _scale_images(samples: Tensor) -> Tensor:
    """Return images as floats from 0 to 1 in channels-last memory format, and other samples unchanged."""
    if samples.dtype != torch.uint8:
        return samples
    return scale(samples.contiguous(memory_format=torch.channels_last))


class StreamingLoader:
    """Loads batches from the pack of ILSVRC-2012 on disk, reading ahead; all members see the same images.

    With a partial pack, the classes are those of the training images, and val images of other classes are left out.
    Outputs for absent classes would get the same gradient from every image, and the first updates would overshoot.
    """

    topk: tuple[int, ...] = (1, 5)

    def __init__(self, pack: Pack, device: torch.device) -> None:
        self.device = device
        self.train, self.val = pack.images("train"), pack.images("val")
        classes = self.train.labels.bincount().nonzero().flatten()
        self.val_indices = torch.isin(self.val.labels, classes).nonzero().flatten()
        if not len(self.val_indices):
            raise DataError(f"{pack.folder}: no val image has a class of the training images; pack some that do")
        self.count, self.eval_sizes = len(self.train), {"test": len(self.val_indices)}
        self.is_complete = pack.is_complete
        released = self.train.labels, self.val.labels[self.val_indices]
        self.train_labels, self.val_labels = (torch.searchsorted(classes, labels).to(device) for labels in released)
        self.task = DataShape(3, CROP, len(classes))
        self.mean = pack.load_mean().to(device)
        self.example = torch.zeros(2, 3, CROP, CROP)

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int) -> Iterator[Batch]:
        if len(set(seeds.tolist())) > 1:
            raise ValueError(f"members that share a stream of images must have the same seed; got {seeds.tolist()}")
        (order,) = draw_order(seeds[:1], epoch, self.count)
        (crops,) = draw_crops(seeds[:1], epoch, order[None])
        indices, labels, crops = (
            torch.split(sequence, size)[start:] for sequence in (order.cpu(), self.train_labels[order], crops)
        )
        yield from zip(to_device(read_ahead(self.train, indices), self.device), labels, crops, strict=True)

    def load_batch(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        images, labels, crops = batch
        return self._crop(images, crops), labels

    def eval_batches(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        indices, labels = (torch.split(sequence, EVAL_BATCH_SIZE) for sequence in (self.val_indices, self.val_labels))
        crops = center_crops(EVAL_BATCH_SIZE, self.device)
        read = to_device(read_ahead(self.val, indices), self.device)
        for images, batch_labels in zip(read, labels, strict=True):
            yield self._crop(images, crops[: len(images)]), batch_labels

    def _crop(self, images: Tensor, crops: Tensor) -> Tensor:
        """Crop images, and return them in the dtype that the first convolution computes in."""
        return crop(images, crops, self.mean, working_dtype(self.mean))
