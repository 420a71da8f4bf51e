"""Tensors that are sharded over processes (DTensor), handled without importing torch.distributed."""

from __future__ import annotations

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor."""
    return hasattr(tensor, "full_tensor")


def gather(tensor: Tensor) -> Tensor:
    """Return the whole tensor. All processes of a DTensor have to call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_like(values: Tensor, like: Tensor) -> Tensor:
    """Return values, which every process has, as a tensor that is sharded like `like`."""
    if not is_sharded(like):
        return values
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(values.to(like.device, like.dtype), mesh, placements, src_data_rank=None)
