"""A data set for classification: all samples and labels, on one device."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from hullo.population.rng import Purpose, open_streams, permute


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as uint8 of shape (count, channels, height, width) and their classes as int64.

    Samples that are not images are float32 or int64 of any shape (count, ...), under the same names. `val_images` are
    those of a validation set, or training images that `split_validation` holds out.

    Examples:
        >>> images, labels = torch.zeros(20, 1, 4, 4, dtype=torch.uint8), torch.arange(20) % 2
        >>> dataset = Dataset("stripes", ("up", "down"), images, labels, images[:4], labels[:4])
        >>> tuned = dataset.split_validation(6, seed=0)
        >>> {name: len(labels) for name, (_, labels) in tuned.eval_sets.items()}
        {'test': 4, 'val': 6}
    """

    name: str
    classes: tuple[str, ...]
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    val_images: Tensor | None = None
    val_labels: Tensor | None = None

    def __post_init__(self) -> None:
        for images, labels in ((self.train_images, self.train_labels), *self.eval_sets.values()):
            is_image = images.dtype == torch.uint8 and images.ndim == 4
            is_other = images.dtype in (torch.float32, torch.int64) and images.ndim >= 2
            if not (is_image or is_other) or labels.dtype != torch.int64:
                raise ValueError(
                    f"{self.name}: images must be uint8 of shape (count, channels, height, width), other samples "
                    f"float32 or int64 of shape (count, ...), and labels int64; got {images.dtype} of shape "
                    f"{tuple(images.shape)} and {labels.dtype}"
                )
            if labels.shape != images.shape[:1]:
                raise ValueError(f"{self.name}: {len(images)} images, but labels of shape {tuple(labels.shape)}")
            if not len(labels):
                raise ValueError(f"{self.name}: no images; at least one is required")
            low, high = (int(end) for end in labels.aminmax())
            if not 0 <= low <= high < len(self.classes):
                raise ValueError(f"{self.name}: labels from {low} to {high}, but {len(self.classes)} classes")

    @property
    def holds_images(self) -> bool:
        """Return whether the samples are images."""
        return self.train_images.dtype == torch.uint8

    @property
    def eval_sets(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return images and labels of the evaluation sets: "test", and perhaps "val"."""
        sets = {"test": (self.test_images, self.test_labels)}
        if self.val_images is not None and self.val_labels is not None:
            sets["val"] = (self.val_images, self.val_labels)
        return sets

    def to(self, device: str | torch.device) -> Dataset:
        """Return the same data set on another device."""
        tensors = (field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor))
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})

    def split_validation(self, n: int, seed: int) -> Dataset:
        """Hold out `n` training images for validation, the same number per class.

        The choice depends only on the labels and the seed; both parts keep the order of the files.
        """
        if self.val_images is not None:
            raise ValueError(f"val_size={n}: {self.name} has a validation set of its own; val_size must be 0")
        each, rest = divmod(n, len(self.classes))
        counts = self.train_labels.bincount(minlength=len(self.classes))
        if rest or not 0 < each < int(counts.min()):
            most = int(counts.min()) - 1
            few = f"class {self.classes[int(counts.argmin())]!r} has only {most + 1}"
            why = f"{n} is not a multiple of its {len(self.classes)} classes" if rest else few
            how = f"give a multiple of {len(self.classes)}, at most {most * len(self.classes)}" if most else "give 0"
            raise ValueError(
                f"{self.name}: cannot hold out {n} training samples, the same number of each class: {why}; {how}"
            )
        seeds = torch.tensor([seed], device=self.train_labels.device)
        (shuffled,) = permute(open_streams(seeds, Purpose.VALIDATION, 0), len(self.train_labels))
        by_class = shuffled[self.train_labels[shuffled].argsort(stable=True)]
        starts = self.train_labels.bincount(minlength=len(self.classes)).cumsum(0).roll(1)
        starts[0] = 0
        held_out = torch.zeros_like(self.train_labels, dtype=torch.bool)
        held_out[by_class[starts[:, None] + torch.arange(each, device=starts.device)]] = True
        return replace(
            self,
            train_images=self.train_images[~held_out],
            train_labels=self.train_labels[~held_out],
            val_images=self.train_images[held_out],
            val_labels=self.train_labels[held_out],
        )
