"""Batches of packed images in a given order, read ahead by threads.

    (order,) = draw_order(seeds, epoch, len(dataset))
    (crops,) = draw_crops(seeds, epoch, order[None])
    read = read_ahead(dataset, split_steps(order.cpu(), 256, world=world))
    for images, some in zip(to_device(read, device), split_steps(crops, 256, world=world), strict=True):
        x = crop(images, some, mean)

Order, crops and labels are fixed before reading starts, so that results do not depend on the threads.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hullo.lab.data.ilsvrc2012.decoding import SHAPE
from hullo.lab.data.ilsvrc2012.packed import PackedImages
from hullo.lab.data.ilsvrc2012.workers import available_cores
from hullo.lab.distributed import SINGLE_PROCESS, World

AHEAD = 4
"""Number of batches to read ahead."""

BEHIND = 2
"""Number of batches that a GPU may still have queued when the next is copied, so that it does not idle."""

PIECE = 16
"""Images per task of a reading thread."""


def split_steps(order: Tensor, batch: int, *, start: int = 0, world: World = SINGLE_PROCESS) -> Iterator[Tensor]:
    """Yield this process's shard of the image indices of each step, starting with step `start`.

    A step takes the next `batch` images of the order; the last step may be smaller. Labels and crops in the same order
    are split in the same way.

    Examples:
        >>> [numbers.tolist() for numbers in split_steps(torch.arange(10), 4, start=1, world=World(1, 2))]
        [[6, 7], [9]]
    """
    for first in range(start * batch, len(order), batch):
        numbers = order[first : first + batch]
        yield numbers[world.shard(len(numbers))]


def read_ahead(dataset: PackedImages, steps: Iterable[Tensor], *, workers: int | None = None) -> Iterator[Tensor]:
    """Yield the images of each step, uint8 of shape (count, 256, 256, 3), and read the next steps in the background.

    By default there is one reading thread per core.
    """
    memory = Memory()
    threads = ThreadPoolExecutor(workers or available_cores(), thread_name_prefix="read_ahead")

    def begin(numbers: Tensor) -> tuple[Tensor, list[Future[None]]]:
        images = memory.lend(len(numbers))
        pieces = zip(torch.split(images, PIECE), torch.split(numbers, PIECE), strict=True)
        return images, [threads.submit(dataset.read_into, out.numpy(), some.numpy()) for out, some in pieces]

    under_way: deque[tuple[Tensor, list[Future[None]]]] = deque()
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
    """Allocates memory for batches and reuses it, since the first touch of a page costs more than reading it.

    With a GPU, memory is pinned and reused by PyTorch's caching allocator.
    """

    def __init__(self) -> None:
        self._pinned = torch.cuda.is_available()
        self._free: list[NDArray[np.uint8]] = []

    def lend(self, count: int) -> Tensor:
        """Return memory for `count` images."""
        if self._pinned:
            return torch.empty((count, *SHAPE), dtype=torch.uint8, pin_memory=True)
        whole = self._free.pop() if self._free else np.empty((count, *SHAPE), np.uint8)
        if len(whole) < count:
            whole = np.empty((count, *SHAPE), np.uint8)
        lent = whole[:count]  # the tensor and its views refer to this array, so it is freed after the last of them
        weakref.finalize(lent, self._free.append, whole)
        return torch.from_numpy(lent)


def _finished(images: Tensor, pieces: list[Future[None]]) -> Tensor:
    for piece in pieces:
        piece.result()
    return images


def to_device(batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Yield the same batches on a device; copies to a GPU overlap with its computation.

    Python waits for a GPU that falls behind, so that batches do not accumulate in its memory.
    """
    if device.type != "cuda":
        for batch in batches:
            yield batch.to(device)
        return
    copying, here = _copying(device), torch.cuda.current_stream(device)
    used: deque[torch.cuda.Event] = deque()
    ready: Tensor | None = None
    for batch in batches:
        here.wait_stream(copying)  # for `ready`; the copy of `batch` comes after it
        with torch.cuda.stream(copying):
            copied = batch.to(device, non_blocking=True)
        copied.record_stream(here)
        if ready is not None:
            yield ready
            used.append(here.record_event(torch.cuda.Event(blocking=True)))  # type: ignore[no-untyped-call]
            if len(used) > BEHIND:
                used.popleft().synchronize()
        ready = copied
    here.wait_stream(copying)
    if ready is not None:
        yield ready


@cache
def _copying(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for copies to a device, always the same: PyTorch reuses freed memory only within a stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
