"""The data of a comparison: tensors in memory, or a DataLoader, with a validation and a test set."""

from __future__ import annotations

import hashlib
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
from hullo.lab.distributed import World
from hullo.lab.run.loop import Batch
from hullo.population.rng import Purpose, open_streams, permute

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

    @property
    def is_stream(self) -> bool:
        return isinstance(self.train, DataLoader)

    @property
    def targets(self) -> Tensor | None:
        """Return some targets, to know their kind; None if batches are not pairs of tensors."""
        first = next(iter(self.train)) if self.is_stream else self.train
        is_pair = isinstance(first, (tuple, list)) and len(first) == 2
        return first[1] if is_pair and isinstance(first[1], Tensor) else None

    @property
    def example(self) -> Tensor | None:
        """Return some inputs of a network; None if batches are not pairs of tensors."""
        first = next(iter(self.train)) if self.is_stream else self.train
        is_pair = isinstance(first, (tuple, list)) and len(first) == 2
        return as_input(first[0][:8].cpu()) if is_pair and isinstance(first[0], Tensor) else None

    def loader(self, device: torch.device) -> TensorLoader | StreamLoader:
        """Return the loader of the data on a device."""
        return StreamLoader(self, device) if self.is_stream else TensorLoader(self, device)

    def fingerprint(self) -> str:
        """Return a digest of all tensors; of a DataLoader, of its first batches."""
        digest = hashlib.sha256()
        for part in (self.train, self.val, self.test):
            items = next(iter(part)) if isinstance(part, DataLoader) else part
            for leaf in pytree.tree_leaves(items):
                if isinstance(leaf, Tensor):
                    digest.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
                    digest.update(leaf.detach().cpu().contiguous().numpy().tobytes() if not self.is_stream else b"")
        return digest.hexdigest()


def read_data(train: Any, val: Any, test: Any, name: str = "data") -> Data:
    """Return the data of the arguments `train`, `val` and `test`: pairs of tensors or arrays, or DataLoaders."""
    if isinstance(train, DataLoader):
        for part, given in (("val", val), ("test", test)):
            if not isinstance(given, DataLoader):
                raise ValueError(f"train is a DataLoader, so {part} must be one, too; got {type(given).__name__}")
            if not hasattr(given.dataset, "__len__"):
                raise ValueError(f"the DataLoader {part} has no length; give one of a data set with a length")
        return Data(name, train, val, test, "as given")
    pair = _read_pair(train, "train")
    said = []
    if test is None:
        pair, tested = _split(pair, TEST_SHARE, 1, "test")
        said.append(f"test: {len(tested[1]):,} samples split off")
    else:
        tested = _read_pair(test, "test")
    if val is None:
        pair, held_out = _split(pair, VAL_SHARE, 0, "val")
        said.append(f"validation: {len(held_out[1]):,} samples split off")
    else:
        held_out = _read_pair(val, "val")
    for part, other in (("val", held_out), ("test", tested)):
        for kind, one, two in zip(("inputs", "targets"), pair, other, strict=True):
            if one.shape[1:] != two.shape[1:] or one.is_floating_point() != two.is_floating_point():
                shapes = f"{one.dtype} {tuple(one.shape[1:])} and {two.dtype} {tuple(two.shape[1:])}"
                raise ValueError(f"the {kind} of train and {part} differ: {shapes} for each sample")
    return Data(name, pair, held_out, tested, "; ".join(said) or "as given")


def _read_pair(given: Any, name: str) -> Pair:
    """Return inputs and targets as tensors."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ValueError(
            f"{name} is {type(given).__name__}; give a pair (inputs, targets) of tensors or arrays, or a DataLoader"
        )
    x, y = (_as_tensor(item, f"{name}[{i}]") for i, item in enumerate(given))
    if len(x) != len(y) or not len(x):
        raise ValueError(f"{name} has {len(x)} inputs and {len(y)} targets; give as many of both")
    return x, y


def _as_tensor(given: Any, name: str) -> Tensor:
    try:
        tensor = given.detach() if isinstance(given, Tensor) else torch.from_numpy(np.asarray(given))
    except (TypeError, ValueError):
        raise ValueError(f"{name} cannot be read as numbers; got {type(given).__name__}") from None
    if tensor.dim() == 0:
        raise ValueError(f"{name} is a single number; give one row per sample")
    if tensor.dtype == torch.float64:
        return tensor.float()
    is_whole = tensor.dtype != torch.uint8 and not tensor.is_floating_point()
    return tensor.long() if is_whole or (tensor.dtype == torch.uint8 and tensor.dim() == 1) else tensor


def _split(pair: Pair, share: float, seed: int, what: str) -> tuple[Pair, Pair]:
    """Split off a share of the samples: of each class in proportion where targets are classes."""
    x, y = pair
    if len(y) < MIN_SAMPLES:
        raise ValueError(f"train has {len(y)} samples, too few to split off a part of them; give {what}")
    (order,) = permute(open_streams(torch.tensor([seed]), Purpose.VALIDATION, 0), len(y))
    if y.dim() == 1 and not y.is_floating_point():
        order = order[y.cpu()[order].argsort(stable=True)]  # by class, so that every n-th sample is proportional
    held_out = torch.zeros(len(y), dtype=torch.bool)
    places = torch.arange(round(share * len(y)), dtype=torch.float64)
    held_out[order[((places + 0.5) / share).long().clamp_max(len(y) - 1)]] = True
    held_out = held_out.to(y.device)
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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(epoch)
            for number, batch in enumerate(self.train):
                if number >= start:
                    yield 1, self._flatten(batch)

    def eval_batches(self, name: str) -> Iterator[tuple[Tensor, ...]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for batch in self.sets[name]:
                yield self._flatten(batch)

    def load_batch(self, *batch: Tensor) -> Any:
        return pytree.tree_unflatten(list(batch), self._spec)

    load_eval = load_batch

    def _flatten(self, batch: Any) -> tuple[Tensor, ...]:
        leaves, self._spec = pytree.tree_flatten(batch)
        return tuple(leaf.to(self.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
