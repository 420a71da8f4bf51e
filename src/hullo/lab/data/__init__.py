"""Data sets: fetched, verified by checksum, and loaded onto one device."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from hullo.lab.data import cifar10, fashion_mnist
from hullo.lab.data.dataset import Dataset
from hullo.lab.data.ilsvrc2012.pack import Pack
from hullo.lab.data.own_data import open_data
from hullo.lab.data.release import Copy, DataError, data_root
from hullo.lab.spec.recipes import AUGMENTATIONS, STREAMED

RELEASES = {item.name: item for item in (fashion_mnist.RELEASE, cifar10.RELEASE, fashion_mnist.SAMPLE)}
OWN: dict[str, Dataset] = {}
"""The user's data sets that are registered in this process, by name."""


def register(dataset: Dataset) -> str:
    """Register a user's data set in this process, and return its name."""
    OWN[dataset.name] = dataset
    return dataset.name


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> Copy | Pack:
    """Return a data set in a data directory, or one that is part of the package; its files may be missing."""
    if name in STREAMED:
        return Pack(data_root(data_dir) / name / "packed")
    if name not in RELEASES:
        raise ValueError(f"unknown data set {name!r}; available: {', '.join(AUGMENTATIONS)}")
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
    found = find(name, data_dir)
    if isinstance(found, Pack):
        raise ValueError(f"{name} is streamed from {found.folder}, not loaded; it has its own validation images")
    return found.load().to(device)


__all__ = ["OWN", "RELEASES", "Copy", "DataError", "Dataset", "data_root", "find", "load", "open_data", "register"]
