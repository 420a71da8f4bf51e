"""Count the memory that a population keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the memory of tensors in bytes; what they share counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


@contextmanager
def record_saved() -> Iterator[list[Tensor]]:
    """Yield a list of the tensors that operations in the block keep for their backward passes."""
    found: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        found.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def write_bytes(count: float) -> str:
    """Return a number of bytes as people write it.

    Example:
        >>> write_bytes(1536), write_bytes(3 * 2**20)
        ('1.5 KiB', '3.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
