"""The processes that train one population together, each on its own part of every batch."""

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

PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others before it gives them up."""


@dataclass(frozen=True)
class World:
    """What one of several processes knows of the others: who it is and how many there are. Alone, all is done at once.

    >>> World().shard(10)
    slice(0, 10, None)
    >>> [World(rank, 3).shard(10) for rank in range(3)]
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and speaks to people."""
        return self.rank == 0

    def shard(self, count: int) -> slice:
        """This process's part of `count` things in a row; parts differ in size by one at most."""
        each, more = divmod(count, self.size)
        start = self.rank * each + min(self.rank, more)
        return slice(start, start + each + (self.rank < more))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of all processes' tensors."""
        if self.size > 1:
            dist.all_reduce(tensor := tensor.clone())
        return tensor

    def broadcast(self, value: T) -> T:
        """The leader's value, in every process."""
        if self.size == 1:
            return value
        told = [value]
        dist.broadcast_object_list(told, src=0)
        return told[0]


ALONE = World()


@contextmanager
def join(device: torch.device) -> Iterator[World]:
    """Join the processes that `torchrun` has started; without it, return a world of one."""
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield World(dist.get_rank(), size)
    finally:
        gc.collect()  # a network that still held the group would keep its threads alive into the interpreter's end
        dist.destroy_process_group()


def own_device(device: str | None) -> str | None:
    """The device of this process where none, or any GPU, was asked for: each process of a machine has a GPU of its own.

    >>> own_device("cpu")
    'cpu'
    """
    rank = os.environ.get("LOCAL_RANK")
    if rank is None or not torch.cuda.is_available() or device not in (None, "cuda"):
        return device
    return f"cuda:{rank}"
