"""A folder with networks and data sets of a user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from own_files import MORE, NETWORK


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a file with networks, and data sets of images, features and tokens."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NETWORK.replace("nn.LazyLinear(WIDTH)", "nn.Linear(64, WIDTH)"))
    Path("more.py").write_text(MORE)
    Path("beside.py").write_text("WIDTH = 6\n")
    draw = np.random.default_rng(0)
    labels = np.arange(24) % 3
    for name, x in {
        "images": draw.integers(0, 256, (24, 8, 8), dtype=np.uint8),
        "features": draw.normal(size=(24, 5)),
        "tokens": draw.integers(0, 16, (24, 7)),
    }.items():
        np.savez(f"{name}.npz", x_train=x[:18], y_train=labels[:18], x_test=x[18:], y_test=labels[18:])
    return tmp_path
