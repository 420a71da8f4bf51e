"""Where the images of a training come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from hullo.lab import data
from hullo.lab.data import Dataset, ilsvrc2012
from hullo.lab.data.augment import draw_moves, draw_order
from hullo.lab.data.release import DataError
from hullo.lab.distributed import ALONE, World  # noqa: F401 (in an example)
from hullo.lab.networks import Task
from hullo.lab.spec.recipes import Augmentation
from hullo.lab.spec.run_spec import Spec
from hullo.population import AugmentedImages
from hullo.population.images import scale
from hullo.population.kernels import working_dtype

DEFAULT = Augmentation(flip=True, shift=0.1)
SHOWN = 250
"""Images that are evaluated at once."""


Batch = tuple[int, tuple[Tensor, ...]]


class Loader(Protocol):
    """Load batches for a training: `batches` says which images come next, `load_batch` makes images and labels of them.

    A batch is how many images there are in all processes together, and this process's part of them: a few tensors
    on the device, whose shapes depend on the number of images alone, so that `load_batch` can be part of a CUDA graph.
    """

    task: Task
    device: torch.device
    count: int  # training images per epoch
    eval_sizes: dict[str, int]  # images to evaluate on: "test", and "val" where training images are held out
    is_complete: bool  # whether these are all images of the data set
    example: Tensor  # two samples as a network sees them, on the CPU
    topk: tuple[int, ...]  # an image counts as right if its class is among as many best guesses

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int, world: World) -> Iterator[Batch]:
        """Yield an epoch's batches of `size` images, from batch `start` on."""

    def load_batch(self, *batch: Tensor) -> tuple[Tensor | AugmentedImages, Tensor]:
        """Return each member's images and labels, (K, B), or images (B, C, H, W) for all members and labels (B)."""

    def eval_batches(self, name: str, world: World) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's part of the images to evaluate on, (B, C, H, W), and their labels, (B)."""


def loader_key(spec: Spec) -> tuple[str, int, str]:
    """Return what the loader of a run depends on: the data set, held-out images and augmentation."""
    return spec.data, spec.val_size, spec.augment


def open_loader(spec: Spec, data_dir: Path | None, device: torch.device) -> Loader:
    """Open the images that a run sees."""
    if spec.data == ilsvrc2012.NAME:
        if spec.val_size:
            raise ValueError(
                f"val_size={spec.val_size}: {spec.data} is evaluated on its own validation images; leave it at 0"
            )
        return StreamingLoader(ilsvrc2012.Pack.open(ilsvrc2012.Home(data.data_root(data_dir)).packed), device)
    dataset = data.load(spec.data, data_dir, device)
    return InMemoryLoader(
        dataset.split_validation(spec.val_size, seed=0) if spec.val_size else dataset, Augmentation.parse(spec.augment)
    )


class InMemoryLoader:
    """Load from a data set that is whole on the device; every member sees the images in its own order.

    >>> from hullo.lab import data
    >>> loader = InMemoryLoader(data.load("fashion-mnist-sample"))
    >>> whole, batch = next(loader.batches(torch.tensor([0, 1]), epoch=0, size=32, start=0, world=ALONE))
    >>> images, labels = loader.load_batch(*batch)
    >>> whole, images.shape, labels.shape
    (32, torch.Size([2, 32, 1, 28, 28]), torch.Size([2, 32]))
    """

    is_complete = True
    topk: tuple[int, ...] = (1,)

    def __init__(self, dataset: Dataset, augmentation: Augmentation = DEFAULT) -> None:
        self.dataset, self.augmentation = dataset, augmentation
        if not dataset.holds_images and augmentation != Augmentation():
            raise ValueError(f"augment={augmentation}: {dataset.name} holds no images; write none")
        channels, *sides = dataset.train_images.shape[1:]
        side = sides[0] if dataset.holds_images and sides[0] == sides[1] else 0
        self.task = Task(channels, side, len(dataset.classes))
        self.example = _scaled(dataset.train_images[:2].cpu())
        self.device = dataset.train_images.device
        self.count = len(dataset.train_labels)
        self.eval_sizes = {name: len(labels) for name, (_, labels) in dataset.eval_sets.items()}

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int, world: World) -> Iterator[Batch]:
        plans = [draw_order(seeds, epoch, self.count)]
        if self.dataset.holds_images:
            sides, options = self.dataset.train_images.shape[-2:], self.augmentation
            plans.append(draw_moves(seeds, epoch, plans[0], sides, flip=options.flip, shift=options.shift))
        for parts in zip(*(torch.split(plan, size, 1)[start:] for plan in plans), strict=True):
            whole = parts[0].shape[1]
            yield whole, tuple(part[:, world.shard(whole)] for part in parts)

    def load_batch(self, *batch: Tensor) -> tuple[Tensor | AugmentedImages, Tensor]:
        order, *moves = batch
        samples, labels = self.dataset.train_images, self.dataset.train_labels[order]
        return (AugmentedImages(samples, order, *moves) if moves else samples[order]), labels

    def eval_batches(self, name: str, world: World) -> Iterator[tuple[Tensor, Tensor]]:
        own = world.shard(self.eval_sizes[name])
        images, labels = (tensor[own] for tensor in self.dataset.eval_sets[name])
        for some, named in zip(torch.split(images, SHOWN), torch.split(labels, SHOWN), strict=True):
            yield _scaled(some), named


def _scaled(samples: Tensor) -> Tensor:
    """Return images as numbers from 0 to 1, in memory with channels last; other samples as they are."""
    if samples.dtype != torch.uint8:
        return samples
    return scale(samples.contiguous(memory_format=torch.channels_last))


class StreamingLoader:
    """ILSVRC-2012's pack, read ahead from the disk; all members see the same images, in the order of their seed.

    In a pack of a part of the data set, classes are those that there are training images of, and val images of
    others are left out. Of outputs for others all images would say the same, and a network's first updates would add
    up to too much.
    """

    topk: tuple[int, ...] = (1, 5)

    def __init__(self, pack: ilsvrc2012.Pack, device: torch.device) -> None:
        self.device = device
        self.train, self.val = pack.images("train"), pack.images("val")
        classes = self.train.labels.bincount().nonzero().flatten()
        self.shown = torch.isin(self.val.labels, classes).nonzero().flatten()
        if not len(self.shown):
            raise DataError(f"{pack.folder}: no val image shows a class of its training images; pack some that do")
        self.count, self.eval_sizes, self.is_complete = len(self.train), {"test": len(self.shown)}, pack.is_complete
        released = self.train.labels, self.val.labels[self.shown]
        self.train_labels, self.val_labels = (torch.searchsorted(classes, labels).to(device) for labels in released)
        self.task = Task(3, ilsvrc2012.CROP, len(classes))
        self.mean = pack.mean.to(device)
        self.example = torch.zeros(2, 3, ilsvrc2012.CROP, ilsvrc2012.CROP)

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int, world: World) -> Iterator[Batch]:
        if len(set(seeds.tolist())) > 1:
            raise ValueError(f"members that see one stream have one seed; got {seeds.tolist()}")
        (order,) = draw_order(seeds[:1], epoch, self.count)
        (crops,) = ilsvrc2012.draw_crops(seeds[:1], epoch, order[None])
        numbers, *plans = (
            ilsvrc2012.split_steps(plan, size, start=start, world=world)
            for plan in (order.cpu(), self.train_labels[order], crops)
        )
        images = ilsvrc2012.to_device(ilsvrc2012.read_ahead(self.train, numbers), self.device)
        for step, batch in enumerate(zip(images, *plans, strict=True), start):
            yield min(size, self.count - step * size), batch

    def load_batch(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        images, labels, crops = batch
        return self._crop(images, crops), labels

    def eval_batches(self, name: str, world: World) -> Iterator[tuple[Tensor, Tensor]]:
        own = world.shard(self.eval_sizes[name])
        numbers, labels = (torch.split(plan[own], SHOWN) for plan in (self.shown, self.val_labels))
        crops = ilsvrc2012.centre_crops(SHOWN, self.device)
        read = ilsvrc2012.to_device(ilsvrc2012.read_ahead(self.val, numbers), self.device)
        for images, named in zip(read, labels, strict=True):
            yield self._crop(images, crops[: len(images)]), named

    def _crop(self, images: Tensor, crops: Tensor) -> Tensor:
        """Images in the type that a first convolution computes in, so that it need not make another copy."""
        return ilsvrc2012.crop(images, crops, self.mean, working_dtype(self.mean))
