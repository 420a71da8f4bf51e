"""Kernels of populations compile for a Hopper GPU without one, and spill no registers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kernel_registers.py"


def test_no_kernel_spills(tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    run = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, env=environment, check=True)
    header, *lines = run.stdout.splitlines()
    assert header.split()[0] == "kernel"
    assert len(lines) >= 10
    assert {line.split()[-1] for line in lines} == {"0"}
