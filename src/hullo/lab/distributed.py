"""Data-parallel training of one population: each process trains on its shard of every batch."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)
"""Time that a process waits for the others before it fails."""


@dataclass(frozen=True)
class World:
    """The rank of this process and the number of processes; by default a single process.

    >>> World().shard(10)
    slice(0, 10, None)
    >>> [World(rank, 3).shard(10) for rank in range(3)]
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Return whether this is the process that writes files and prints."""
        return self.rank == 0

    def shard(self, count: int) -> slice:
        """Return this process's slice of `count` items; slices differ in length by at most one."""
        each, more = divmod(count, self.size)
        start = self.rank * each + min(self.rank, more)
        return slice(start, start + each + (self.rank < more))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        if self.size > 1:
            dist.all_reduce(tensor := tensor.clone())
        return tensor

    def broadcast(self, value: T) -> T:
        """Return the main process's value in every process."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


SINGLE_PROCESS = World()


@contextmanager
def join(device: torch.device) -> Iterator[World]:
    """Join the processes that `torchrun` has started; without it, return a world of one."""
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield SINGLE_PROCESS
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        yield World(dist.get_rank(), size)
    finally:
        gc.collect()  # an uncollected network that refers to the group would keep its threads alive
        dist.destroy_process_group()


def local_device(device: str | None) -> str | None:
    """Return the device of this process: under `torchrun`, the GPU of its local rank unless another device is given.

    >>> local_device("cpu")
    'cpu'
    """
    rank = os.environ.get("LOCAL_RANK")
    if rank is None or not torch.cuda.is_available() or device not in (None, "cuda"):
        return device
    return f"cuda:{rank}"
