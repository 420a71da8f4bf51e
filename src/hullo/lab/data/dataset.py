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
        shape, dtype = self.train_images.shape[1:], self.train_images.dtype
        if not (dtype == torch.uint8 and len(shape) == 3) and not (dtype in (torch.float32, torch.int64) and shape):
            raise ValueError(
                f"{self.name}: images must be uint8 of shape (count, channels, height, width), other samples float32 "
                f"or int64 of shape (count, ...); got {dtype} of shape {tuple(self.train_images.shape)}"
            )
        for name, (images, labels) in {"train": (self.train_images, self.train_labels), **self.eval_sets}.items():
            if images.shape[1:] != shape or images.dtype != dtype:
                kinds = [f"{dtype} of shape {tuple(shape)}", f"{images.dtype} of shape {tuple(images.shape[1:])}"]
                raise ValueError(f"{self.name}: training and {name} samples differ: {' and '.join(kinds)}")
            if labels.dtype != torch.int64 or labels.shape != images.shape[:1] or not len(labels):
                given = f"{len(images)} {name} samples and {labels.dtype} labels of shape {tuple(labels.shape)}"
                raise ValueError(f"{self.name}: each sample needs one integer as its label; got {given}")
            low, high = (int(end) for end in labels.aminmax())
            if not 0 <= low <= high < len(self.classes):
                raise ValueError(
                    f"{self.name}: {name} labels from {low} to {high}; must be from 0 to {len(self.classes) - 1}"
                )

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
        """Hold out `n` training samples for validation, as many of each class as it has a share of the samples.

        Every class keeps a training sample. The choice depends only on the labels and the seed; both parts keep the
        order of the files.
        """
        if self.val_images is not None:
            raise ValueError(f"val_size={n}: {self.name} already has a validation set; val_size must be 0")
        labels = self.train_labels
        try:
            held_out = hold_out(labels, n, seed)
        except ValueError as error:
            raise ValueError(f"val_size={n}: {self.name} has {len(labels)} training samples; {error}") from None
        return replace(
            self,
            train_images=self.train_images[~held_out],
            train_labels=labels[~held_out],
            val_images=self.train_images[held_out],
            val_labels=labels[held_out],
        )


def hold_out(labels: Tensor, n: int, seed: int) -> Tensor:
    """Choose `n` samples, as many of each class as it has a share of them; return a mask.

    Every class keeps a sample. The choice depends only on the labels, which are counted from 0, and the seed.

    >>> hold_out(torch.tensor([0, 1, 0, 0, 1, 0]), 3, seed=0).sum()
    tensor(3)
    """
    counts = labels.bincount()
    most = int((counts - 1).clamp(min=0).sum())
    if not 0 < n <= most:
        raise ValueError(f"give at most {most}")
    quotas = _divide(n, counts)
    (shuffled,) = permute(open_streams(torch.tensor([seed], device=labels.device), Purpose.VALIDATION, 0), len(labels))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    ranks = torch.empty_like(labels)  # of each sample within its class
    ranks[by_class] = torch.arange(len(labels), device=labels.device) - (counts.cumsum(0) - counts)[labels[by_class]]
    return ranks < quotas[labels]


def _divide(n: int, counts: Tensor) -> Tensor:
    """Divide n in proportion to counts, each below its count; the largest remainders are rounded up.

    >>> _divide(4, torch.tensor([8, 1, 3])).tolist()
    [3, 0, 1]
    """
    shares = n * counts.double() / counts.sum()
    quotas = shares.long()  # below the counts, since n is below their sum
    while missing := n - int(quotas.sum()):
        remainders = (shares - quotas).where(quotas < counts - 1, -torch.inf)
        has_room = remainders.isfinite().sum()
        quotas[remainders.argsort(descending=True, stable=True)[: min(missing, int(has_room))]] += 1
    return quotas
