"""The data of a comparison: arrays in memory, or DataLoaders, with a validation and a test set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils.data import DataLoader

from hullo.lab.comparison.budget import spell_count
from hullo.lab.data.augment import draw_order
from hullo.lab.data.dataset import hold_out
from hullo.lab.files import checksum
from hullo.lab.run.loop import Batch

EVAL_BATCH_SIZE = 250
HELD_OUT = {"test": ("test", 0.2), "val": ("validation", 0.15)}
"""The shares of samples that are split off, one after the other, if no test or validation set is given."""

Pair = tuple[Tensor, Tensor]


@dataclass
class Data:
    """Training, validation and test data: what trainings load batches from, once they are on a device."""

    name: str
    parts: dict[str, Any]  # "train", "val" and "test"
    notes: list[str] = field(default_factory=list)  # on how they were split and cleaned
    scale: float = 1.0  # of targets that were standardized
    target: str = "the target"  # the name of what is predicted
    device: torch.device = torch.device("cpu")  # noqa: RUF009  (it is immutable)


class Arrays(Data):
    """Pairs of tensors; the seed of each member gives its order of samples."""

    is_shared = False
    batch_size: int | None = None

    @property
    def first(self) -> Pair:
        """Return some inputs, as networks take them, and their targets."""
        x, y = (tensor[:8].cpu() for tensor in self.parts["train"])
        return as_input(x), y

    @property
    def count(self) -> int:
        return len(self.parts["train"][1])

    @property
    def targets(self) -> Tensor:
        """Return the targets of all parts."""
        return torch.cat([targets for _, targets in self.parts.values()])

    def fingerprint(self) -> str:
        """Return a checksum of all tensors."""
        tensors = {f"{part}{i}": self.parts[part][i].cpu().contiguous() for part in self.parts for i in (0, 1)}
        return checksum(tensors, str([(tensor.dtype, tensor.shape) for tensor in tensors.values()]))

    def to(self, device: torch.device) -> Arrays:
        """Move the data to a device."""
        self.device = device
        self.parts = {name: tuple(tensor.to(device) for tensor in pair) for name, pair in self.parts.items()}
        return self

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int) -> Iterator[Batch]:
        for part in torch.split(draw_order(seeds, epoch, self.count), size, 1)[start:]:
            yield (part,)

    def load_batch(self, *batch: Tensor) -> Pair:
        (order,) = batch
        x, y = self.parts["train"]
        return as_input(x[order]), y[order]

    def eval_batches(self, name: str) -> Iterator[tuple[Tensor, ...]]:
        for x, y in zip(*(torch.split(tensor, EVAL_BATCH_SIZE) for tensor in self.parts[name]), strict=True):
            yield as_input(x), y

    def load_eval(self, *batch: Tensor) -> Pair:
        x, y = batch
        return x, y


class Stream(Data):
    """DataLoaders, whose batches all members share.

    A batch counts as one sample: its loss is the mean over what is in it. The random numbers of a DataLoader depend on
    the epoch alone, so that the order is the same for all candidates.
    """

    is_shared = True
    targets = None  # are not known before they are loaded
    _spec: Any = None

    @property
    def batch_size(self) -> int | None:
        size: int | None = self.parts["train"].batch_size
        return size

    @property
    def first(self) -> Pair:
        """Return some inputs, as networks take them, and their targets."""
        batch = next(iter(self.parts["train"]))
        if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not all(isinstance(t, Tensor) for t in batch):
            raise ValueError("batches are not pairs of inputs and targets; give a step of your own")
        return batch[0][:8], batch[1][:8]

    @property
    def count(self) -> int:
        return len(self.parts["train"])

    def fingerprint(self) -> str:
        """Return the kinds of tensors in the first batches."""
        leaves = (pytree.tree_leaves(next(iter(loader))) for loader in self.parts.values())
        return str([(leaf.dtype, leaf.shape) for part in leaves for leaf in part if isinstance(leaf, Tensor)])

    def to(self, device: torch.device) -> Stream:
        """Choose the device of batches."""
        self.device = device
        return self

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int) -> Iterator[Batch]:
        return islice(self._read("train", epoch), start, None)

    def eval_batches(self, name: str) -> Iterator[tuple[Tensor, ...]]:
        return self._read(name, 0)

    def _read(self, name: str, seed: int) -> Iterator[tuple[Tensor, ...]]:
        loader = self.parts[name]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for own in filter(None, (loader.generator, getattr(loader.sampler, "generator", None))):
                own.manual_seed(seed)
            for batch in loader:
                leaves, self._spec = pytree.tree_flatten(batch)
                yield tuple(leaf.to(self.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)

    def load_eval(self, *batch: Tensor) -> Any:
        """Return the batch as the DataLoader yielded it."""
        return pytree.tree_unflatten(list(batch), self._spec)

    def load_batch(self, *batch: Tensor) -> tuple[Any]:
        return (self.load_eval(*batch),)


def read_data(train: Any, val: Any, test: Any, name: str = "data") -> Arrays | Stream:
    """Return the data of the arguments `train`, `val` and `test`: pairs of tensors or arrays, or DataLoaders."""
    if not isinstance(train, DataLoader):
        return read_arrays(train, val, test, name)
    parts = {"train": train, "test": test, "val": val}
    for part, given in parts.items():
        if not isinstance(given, DataLoader):
            raise ValueError(f"train is a DataLoader, but {part} is {type(given).__name__}; give a DataLoader for each")
        if not hasattr(given.dataset, "__len__") or not len(given):
            raise ValueError(
                f"{part} has no batches, or a data set without a length; give one, and no drop_last if few"
            )
    return Stream(name, parts)


def read_arrays(train: Any, val: Any, test: Any, name: str = "data") -> Arrays:
    """Return pairs of tensors or arrays; what is missing is split off."""
    given = {"train": train, "test": test, "val": val}
    parts = {part: _read_pair(pair, part) for part, pair in given.items() if pair is not None or part == "train"}
    notes = []
    for part, (what, share) in HELD_OUT.items():
        if part not in parts:
            parts["train"], parts[part] = _split(parts["train"], share, what)
            notes.append(f"{what} data: {spell_count(len(parts[part][1]), 'sample')}, split off")
        for kind, one, two in zip(("inputs", "targets"), parts["train"], parts[part], strict=True):
            if one.shape[1:] != two.shape[1:] or one.is_floating_point() != two.is_floating_point():
                shapes = f"{one.dtype} {tuple(one.shape[1:])} and {two.dtype} {tuple(two.shape[1:])}"
                raise ValueError(f"the {kind} of train and {part} differ: {shapes} for each sample")
    return Arrays(name, parts, notes)


def _read_pair(given: Any, name: str) -> Pair:
    """Return inputs and targets as tensors."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        kind = type(given).__name__
        raise ValueError(f"{name} is {kind}; give a pair (inputs, targets) of tensors or arrays, or a DataLoader")
    x, y = (_as_tensor(item, f"{what} of {name}") for item, what in zip(given, ("inputs", "targets"), strict=True))
    if len(x) != len(y) or not len(x):
        raise ValueError(f"{name} has {len(x)} inputs and {len(y)} targets; give as many of both")
    return x, y if y.is_floating_point() else y.long()


def _as_tensor(given: Any, name: str) -> Tensor:
    """Return floats in single precision, images as bytes, and other whole numbers in 64 bits."""
    try:
        tensor = given.detach() if isinstance(given, Tensor) else torch.from_numpy(np.atleast_1d(given))
    except (TypeError, ValueError):
        remedy = "number classes, as by numpy.unique(names, return_inverse=True)"
        raise ValueError(f"{name} are no numbers; got {type(given).__name__}; {remedy}") from None
    if not tensor.is_floating_point():
        return tensor if tensor.dtype == torch.uint8 and tensor.dim() > 1 else tensor.long()
    if bad := int((~tensor.isfinite()).sum()):
        raise ValueError(f"{bad:,} of {tensor.numel():,} numbers in the {name} are not finite; remove or fill them")
    return tensor.float()


def _split(pair: Pair, share: float, what: str) -> tuple[Pair, Pair]:
    """Split off a share of the samples: of each class in proportion where targets are classes."""
    x, y = pair
    classes = y if is_classes(y) else torch.zeros(len(y), device=y.device)
    try:
        held_out = hold_out(torch.unique(classes, return_inverse=True)[1], round(share * len(y)), seed=0)
    except ValueError:
        raise ValueError(
            f"train has {len(y)} samples, too few to split off {what} data; give more, or such data"
        ) from None
    return (x[~held_out], y[~held_out]), (x[held_out], y[held_out])


def is_classes(targets: Tensor) -> bool:
    """Return whether targets are a class for each sample."""
    return targets.dim() == 1 and not targets.is_floating_point()


def as_input(x: Tensor) -> Tensor:
    """Return samples as networks take them: images of whole numbers as floats from 0 to 1."""
    return x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x
