"""A data set for classification: pictures and labels, whole, on one device."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from hullo.lab.streams import Purpose, open_streams, permute


@dataclass(frozen=True, eq=False)
class Dataset:
    """Pictures as uint8 of shape (count, channels, height, width), and the number of each one's class as int64.

    Examples:
        >>> pictures, labels = torch.zeros(20, 1, 4, 4, dtype=torch.uint8), torch.arange(20) % 2
        >>> dataset = Dataset("stripes", ("up", "down"), pictures, labels, pictures[:4], labels[:4])
        >>> tuned = dataset.split_validation(6, seed=0)
        >>> tuned.train_images.shape[0], tuned.test_labels.bincount().tolist()
        (14, [3, 3])
    """

    name: str
    classes: tuple[str, ...]
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        for images, labels in ((self.train_images, self.train_labels), (self.test_images, self.test_labels)):
            if images.ndim != 4 or images.dtype != torch.uint8 or labels.dtype != torch.int64:
                raise ValueError(
                    f"{self.name}: pictures must be uint8 of shape (count, channels, height, width) and labels int64; "
                    f"got {images.dtype} of shape {tuple(images.shape)} and {labels.dtype}"
                )
            if labels.shape != images.shape[:1]:
                raise ValueError(f"{self.name}: {len(images)} pictures, but labels of shape {tuple(labels.shape)}")
            low, high = (int(end) for end in labels.aminmax())
            if not 0 <= low <= high < len(self.classes):
                raise ValueError(f"{self.name}: labels from {low} to {high}, but {len(self.classes)} classes")

    def to(self, device: str | torch.device) -> Dataset:
        """The same data set on another device."""
        tensors = (field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor))
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})

    def split_validation(self, n: int, seed: int) -> Dataset:
        """The data set whose test pictures are `n` of the training pictures, equally many of each class.

        The test pictures proper are left out, so that what is chosen by validation never saw them. Which pictures are
        taken depends on the labels and the seed alone; both parts keep the order of the files.
        """
        each, rest = divmod(n, len(self.classes))
        smallest = int(self.train_labels.bincount(minlength=len(self.classes)).min())
        if rest or not 0 < each < smallest:
            raise ValueError(
                f"{self.name}: cannot keep back {n} pictures for validation; give a multiple of {len(self.classes)} "
                f"below {len(self.classes) * smallest}"
            )
        seeds = torch.tensor([seed], device=self.train_labels.device)
        (shuffled,) = permute(open_streams(seeds, Purpose.VALIDATION, 0), len(self.train_labels))
        by_class = shuffled[self.train_labels[shuffled].argsort(stable=True)]
        starts = self.train_labels.bincount(minlength=len(self.classes)).cumsum(0).roll(1)
        starts[0] = 0
        kept_back = torch.zeros_like(self.train_labels, dtype=torch.bool)
        kept_back[by_class[starts[:, None] + torch.arange(each, device=starts.device)]] = True
        return replace(
            self,
            train_images=self.train_images[~kept_back],
            train_labels=self.train_labels[~kept_back],
            test_images=self.train_images[kept_back],
            test_labels=self.train_labels[kept_back],
        )
