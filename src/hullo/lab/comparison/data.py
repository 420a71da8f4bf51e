"""The data of a comparison: tensors in memory, or a DataLoader, with a validation and a test set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils.data import DataLoader

from hullo.lab.comparison.task import as_input
from hullo.lab.data.augment import draw_order
from hullo.lab.data.dataset import hold_out
from hullo.lab.distributed import World
from hullo.lab.files import checksum
from hullo.lab.run.loop import Batch

EVAL_BATCH_SIZE = 250
VAL_SHARE, TEST_SHARE = 0.15, 0.2
"""The shares of samples that are split off if no validation or test set is given."""
MIN_SAMPLES = 10

Pair = tuple[Tensor, Tensor]


@dataclass
class Data:
    """Training, validation and test data, and how they were split.

    `train`, `val` and `test` are pairs of tensors, or all three are DataLoaders.
    """

    name: str
    train: Any
    val: Any
    test: Any
    split: str
    scale: float = 1.0  # of targets that were standardized
    target: str = "the target"

    @property
    def is_stream(self) -> bool:
        return isinstance(self.train, DataLoader)

    @property
    def first(self) -> Pair | None:
        """Return some inputs, as networks take them, and targets; None if batches are not pairs of tensors."""
        batch = next(iter(self.train)) if self.is_stream else self.train
        is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(t, Tensor) for t in batch)
        return (as_input(batch[0][:8].cpu()), batch[1]) if is_pair else None

    @property
    def targets(self) -> list[Tensor]:
        """Return the targets of all parts; of DataLoaders, none."""
        return [] if self.is_stream else [part[1] for part in (self.train, self.val, self.test)]

    @property
    def batch_size(self) -> int | None:
        """Return the batch size of a DataLoader."""
        return getattr(self.train, "batch_size", None)

    def loader(self, device: torch.device) -> TensorLoader | StreamLoader:
        """Return the loader of the data on a device."""
        return StreamLoader(self, device) if self.is_stream else TensorLoader(self, device)

    def fingerprint(self) -> str:
        """Return a checksum of all tensors; of a DataLoader, the kinds of tensors in its first batches."""
        if not self.is_stream:
            parts = {f"{name}{i}": t for name in ("train", "val", "test") for i, t in enumerate(getattr(self, name))}
            shapes = str([(tensor.dtype, tensor.shape) for tensor in parts.values()])
            return checksum({name: tensor.detach().cpu().contiguous() for name, tensor in parts.items()}, shapes)
        leaves = (pytree.tree_leaves(next(iter(loader))) for loader in (self.train, self.val, self.test))
        return str([(leaf.dtype, leaf.shape) for part in leaves for leaf in part if isinstance(leaf, Tensor)])


def read_data(train: Any, val: Any, test: Any, name: str = "data") -> Data:
    """Return the data of the arguments `train`, `val` and `test`: pairs of tensors or arrays, or DataLoaders."""
    if isinstance(train, DataLoader):
        for part, given in (("train", train), ("val", val), ("test", test)):
            if not isinstance(given, DataLoader) or not hasattr(given.dataset, "__len__"):
                kind = "one without a length" if isinstance(given, DataLoader) else type(given).__name__
                raise ValueError(f"train is a DataLoader; {part} must be one of a data set with a length; got {kind}")
        return Data(name, train, val, test, "as given")
    pair, said = _read_pair(train, "train"), []
    parts = {"test": test, "val": val}
    for part, share, words in (("test", TEST_SHARE, "test"), ("val", VAL_SHARE, "validation")):
        if parts[part] is None:
            pair, parts[part] = _split(pair, share, part)
            said.append(f"{words}: {len(parts[part][1]):,} samples split off")
        else:
            parts[part] = _read_pair(parts[part], part)
        for kind, one, two in zip(("inputs", "targets"), pair, parts[part], strict=True):
            if one.shape[1:] != two.shape[1:] or one.is_floating_point() != two.is_floating_point():
                shapes = f"{one.dtype} {tuple(one.shape[1:])} and {two.dtype} {tuple(two.shape[1:])}"
                raise ValueError(f"the {kind} of train and {part} differ: {shapes} for each sample")
    return Data(name, pair, parts["val"], parts["test"], "; ".join(said) or "as given")


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
        tensor = given.detach() if isinstance(given, Tensor) else torch.from_numpy(np.asarray(given))
    except (TypeError, ValueError):
        remedy = "number classes, as by numpy.unique(names, return_inverse=True)"
        raise ValueError(f"{name} are no numbers; got {type(given).__name__}; {remedy}") from None
    if tensor.dim() == 0:
        raise ValueError(f"{name} are a single number; give one row per sample")
    if not tensor.is_floating_point():
        return tensor if tensor.dtype == torch.uint8 and tensor.dim() > 1 else tensor.long()
    if bad := len(tensor) - int(tensor.isfinite().view(len(tensor), -1).all(1).sum() if len(tensor) else 0):
        raise ValueError(f"{bad:,} of {len(tensor):,} {name} are not finite; remove or fill them")
    return tensor.float()


def _split(pair: Pair, share: float, what: str) -> tuple[Pair, Pair]:
    """Split off a share of the samples: of each class in proportion where targets are classes."""
    x, y = pair
    if len(y) < MIN_SAMPLES:
        raise ValueError(f"train has {len(y)} samples, too few to split off a part of them; give more, or {what}")
    is_classes = y.dim() == 1 and not y.is_floating_point()
    classes = y if is_classes else torch.zeros(len(y), device=y.device)
    try:
        held_out = hold_out(torch.unique(classes, return_inverse=True)[1], round(share * len(y)), seed=0)
    except ValueError:
        raise ValueError(f"train has too few samples of each class to split off a part of them; give {what}") from None
    return (x[~held_out], y[~held_out]), (x[held_out], y[held_out])


class TensorLoader:
    """Loads batches from tensors on the device; every member has the order of samples of its own seed."""

    is_shared = False

    def __init__(self, data: Data, device: torch.device) -> None:
        self.device = device
        self.x, self.y = (tensor.to(device) for tensor in data.train)
        self.sets = {name: tuple(t.to(device) for t in getattr(data, name)) for name in ("val", "test")}
        self.count = len(self.y)

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int, world: World) -> Iterator[Batch]:
        for part in torch.split(draw_order(seeds, epoch, self.count), size, 1)[start:]:
            yield part.shape[1], (part,)

    def load_batch(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        (order,) = batch
        return as_input(self.x[order]), self.y[order]

    def eval_batches(self, name: str) -> Iterator[tuple[Tensor, ...]]:
        for x, y in zip(*(torch.split(tensor, EVAL_BATCH_SIZE) for tensor in self.sets[name]), strict=True):
            yield as_input(x), y

    def load_eval(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        x, y = batch
        return x, y


class StreamLoader:
    """Loads the batches of DataLoaders, which all members share.

    A batch counts as one sample: its loss is the mean over what is in it. The random numbers of a DataLoader depend on
    the epoch alone, so that the order is the same for all candidates.
    """

    is_shared = True

    def __init__(self, data: Data, device: torch.device) -> None:
        self.device = device
        self.train, self.sets = data.train, {"val": data.val, "test": data.test}
        self.count = len(data.train)
        self._spec: Any = None

    def batches(self, seeds: Tensor, epoch: int, size: int, start: int, world: World) -> Iterator[Batch]:
        for number, batch in enumerate(self._read(self.train, epoch)):
            if number >= start:
                yield 1, batch

    def eval_batches(self, name: str) -> Iterator[tuple[Tensor, ...]]:
        yield from self._read(self.sets[name], 0)

    def _read(self, loader: Any, seed: int) -> Iterator[tuple[Tensor, ...]]:
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
