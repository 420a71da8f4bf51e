"""Batches of packed images in a given order, read ahead by threads: results do not depend on the threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from hullo.lab.data.ilsvrc2012.pack import SHAPE, PackedImages

PREFETCH = 4
"""Number of batches to read ahead."""

MAX_QUEUED = 2
"""Number of batches that may be queued on a GPU when the next is copied; fewer would let it idle."""

CHUNK = 16
"""Images per task of a reading thread."""


def read_ahead(dataset: PackedImages, steps: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the images of each step, uint8 of shape (count, 256, 256, 3), and read the next steps in the background.

    A step is given by the indices of its images.
    """
    threads = ThreadPoolExecutor(thread_name_prefix="read_ahead")

    def start_reading(indices: Tensor) -> tuple[Tensor, list[Future[None]]]:
        images = torch.empty((len(indices), *SHAPE), dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        chunks = zip(torch.split(images, CHUNK), torch.split(indices, CHUNK), strict=True)
        return images, [threads.submit(dataset.read_into, out.numpy(), part.numpy()) for out, part in chunks]

    pending: deque[tuple[Tensor, list[Future[None]]]] = deque()
    try:
        for indices in steps:
            pending.append(start_reading(indices))
            if len(pending) > PREFETCH:
                yield _wait_for(*pending.popleft())
        while pending:
            yield _wait_for(*pending.popleft())
    finally:
        threads.shutdown(cancel_futures=True)


def _wait_for(images: Tensor, chunks: list[Future[None]]) -> Tensor:
    for chunk in chunks:
        chunk.result()
    return images


def to_device(batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Yield the same batches on a device; copies to a GPU overlap with its computation.

    Python waits for a slow GPU: batches do not accumulate in its memory.
    """
    if device.type != "cuda":
        for batch in batches:
            yield batch.to(device)
        return
    copies, current = _copy_stream(device), torch.cuda.current_stream(device)
    used: deque[torch.cuda.Event] = deque()
    ready: Tensor | None = None
    for batch in batches:
        current.wait_stream(copies)  # for `ready`; the copy of `batch` comes after it
        with torch.cuda.stream(copies):
            copied = batch.to(device, non_blocking=True)
        copied.record_stream(current)
        if ready is not None:
            yield ready
            used.append(current.record_event(torch.cuda.Event(blocking=True)))  # type: ignore[no-untyped-call]
            if len(used) > MAX_QUEUED:
                used.popleft().synchronize()
        ready = copied
    current.wait_stream(copies)
    if ready is not None:
        yield ready


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for copies to a device, always the same: PyTorch reuses freed memory only within a stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
