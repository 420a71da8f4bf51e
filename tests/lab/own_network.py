"""A user's network and data set, for tests in several processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

NETWORK = """
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.one, self.two = nn.Linear(in_channels, 8), nn.Linear(8, num_classes)

    def forward(self, x):
        return self.two(F.relu(self.one(x)))
"""


def make(place: Path) -> str:
    """Write the files, and return what `hullo reproduce` calls them."""
    (place / "net.py").write_text(NETWORK)
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(64, 5)), draw.integers(0, 3, 64)
    np.savez(place / "points.npz", x_train=x[:48], y_train=y[:48], x_test=x[48:], y_test=y[48:])
    return f"{place / 'net.py'}:Net/{place / 'points.npz'}"
