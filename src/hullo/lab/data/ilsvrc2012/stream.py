"""Batches of packed pictures in a given order, read ahead by threads.

    order = draw_order(seeds, epoch, len(pictures))[0]
    for batch in to_device(read_ahead(pictures, split_steps(order, 256, team=team)), device):
        x = crop(batch.images, draw_crops(seeds, epoch, batch.numbers[None])[0], mean)

Which pictures come when is decided before anything is read: it depends on nothing that the threads do.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hullo.lab.data.ilsvrc2012.decoding import SHAPE
from hullo.lab.data.ilsvrc2012.packed import PackedPictures
from hullo.lab.data.ilsvrc2012.workers import available_cores
from hullo.lab.team import ALONE, Team

AHEAD = 4
"""Batches that are being read while one is in use."""

PIECE = 16
"""Pictures that a thread reads at a time."""


class Batch(NamedTuple):
    """Pictures, uint8 of shape (count, 256, 256, 3), their labels and their numbers, both int64."""

    images: Tensor
    labels: Tensor
    numbers: Tensor


def split_steps(order: Tensor, batch: int, *, start: int = 0, team: Team = ALONE) -> Iterator[Tensor]:
    """The numbers of the pictures that this process of a team sees in each step from `start` on.

    A step takes the next `batch` pictures of the order, the last one those that are left; each process its share.

    Examples:
        >>> [numbers.tolist() for numbers in split_steps(torch.arange(10), 4, start=1, team=Team(1, 2))]
        [[6, 7], [9]]
    """
    for first in range(start * batch, len(order), batch):
        numbers = order[first : first + batch]
        yield numbers[team.share(len(numbers))]


def read_ahead(pictures: PackedPictures, steps: Iterable[Tensor], *, workers: int | None = None) -> Iterator[Batch]:
    """The batch of each step in turn, read by threads, as many as there are cores, while others are in use."""
    memory = Memory()
    threads = ThreadPoolExecutor(workers or available_cores(), thread_name_prefix="read_ahead")

    def begin(numbers: Tensor) -> tuple[Batch, list[Future[None]]]:
        batch = Batch(memory.lend(len(numbers)), pictures.labels[numbers], numbers)
        pieces = zip(torch.split(batch.images, PIECE), torch.split(numbers, PIECE), strict=True)
        return batch, [threads.submit(pictures.read_into, out.numpy(), some.numpy()) for out, some in pieces]

    under_way: deque[tuple[Batch, list[Future[None]]]] = deque()
    try:
        for numbers in steps:
            under_way.append(begin(numbers))
            if len(under_way) > AHEAD:
                yield _finished(*under_way.popleft())
        while under_way:
            yield _finished(*under_way.popleft())
    finally:
        threads.shutdown(cancel_futures=True)


class Memory:
    """Memory for batches, used again once nothing refers to it: the first use of a page costs more than reading it.

    Where there is a GPU it is pinned, and PyTorch, which knows when copies from it are done, keeps it for the next.
    """

    def __init__(self) -> None:
        self._pinned = torch.cuda.is_available()
        self._free: list[NDArray[np.uint8]] = []

    def lend(self, count: int) -> Tensor:
        """Memory for so many pictures."""
        if self._pinned:
            return torch.empty((count, *SHAPE), dtype=torch.uint8, pin_memory=True)
        whole = self._free.pop() if self._free else np.empty((count, *SHAPE), np.uint8)
        if len(whole) < count:
            whole = np.empty((count, *SHAPE), np.uint8)
        lent = whole[:count]  # the tensor and all its views hold this, so it goes when the last of them does
        weakref.finalize(lent, self._free.append, whole)
        return torch.from_numpy(lent)


def _finished(batch: Batch, pieces: list[Future[None]]) -> Batch:
    for piece in pieces:
        piece.result()
    return batch


def to_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches on a device; on a GPU one is copied while the one before it is in use."""
    if device.type != "cuda":
        for batch in batches:
            yield Batch(*(tensor.to(device) for tensor in batch))
        return
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    here = torch.cuda.current_stream(device)
    ready: Batch | None = None
    for batch in batches:
        here.wait_stream(copying)  # for `ready`; the copy of `batch` comes after it
        with torch.cuda.stream(copying):
            copied = Batch(*(tensor.to(device, non_blocking=True) for tensor in batch))
        for tensor in copied:
            tensor.record_stream(here)
        if ready is not None:
            yield ready
        ready = copied
    here.wait_stream(copying)
    if ready is not None:
        yield ready
