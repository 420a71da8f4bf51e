"""Every example runs, and does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_swap_example_learns_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curves.png"
    script = EXAMPLES / "swap_transformer_and_cnn.py"
    command = [sys.executable, "-W", "error", str(script), str(picture), "--steps", "60"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    accuracies = [float(text) for text in re.findall(r"([\d.]+)% right", printed)]
    assert len(accuracies) == 2
    assert min(accuracies) > 50  # a guess is right in one case of four
    for hull in ("encoder.layers.0.activation", "encoder.layers.1.activation", "relu_1", "tanh_1"):
        assert hull in printed
