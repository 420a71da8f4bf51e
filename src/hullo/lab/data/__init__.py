"""Data sets: fetched, verified by checksum, and loaded onto one device."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from hullo.lab.data import cifar10, fashion_mnist, sample
from hullo.lab.data.dataset import Dataset
from hullo.lab.data.own_data import open_data
from hullo.lab.data.release import Copy, DataError, data_root

RELEASES = {module.RELEASE.name: module.RELEASE for module in (fashion_mnist, cifar10, sample)}
OWN: dict[str, Dataset] = {}
"""The user's data sets that are registered in this process, by name."""


def register(dataset: Dataset) -> str:
    """Register a user's data set in this process, and return its name."""
    OWN[dataset.name] = dataset
    return dataset.name


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> Copy:
    """Return the copy of a data set in a data directory, or the one that is part of the package."""
    if name not in RELEASES:
        raise ValueError(
            f"unknown data set {name!r}; available: {', '.join(RELEASES)}; ilsvrc2012 is read from its pack instead"
        )
    release = RELEASES[name]
    return Copy(release, Path(__file__).parent if release.address is None else data_root(data_dir))


def load(name: str, data_dir: str | os.PathLike[str] | None = None, device: str | torch.device = "cpu") -> Dataset:
    """Load a data set onto a device, from a data directory, else `HULLO_DATA`, else the user's cache.

    Examples:
        >>> dataset = load("fashion-mnist-sample")
        >>> dataset.train_images.shape, dataset.test_labels.bincount().unique()
        (torch.Size([6000, 1, 28, 28]), tensor([100]))
    """
    if name in OWN:
        return OWN[name].to(device)
    return find(name, data_dir).load().to(device)


__all__ = ["OWN", "RELEASES", "Copy", "DataError", "Dataset", "data_root", "find", "load", "open_data", "register"]
