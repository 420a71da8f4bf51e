"""Kernels compile for a GPU, which takes none."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiled import run_without_interpreter

pytest.importorskip("triton")
GENERATED = {"act_pool_drop": "pooled", "bias_act": "biased", "bn_act": "norm"}


SHARED = 227 * 2**10
"""Bytes of shared memory that a program may have, for compute capability 9.0."""


def test_every_kernel_compiles_for_a_gpu_on_which_it_fits_and_spills_no_registers() -> None:
    from hullo.population import kernels

    launched = run_without_interpreter(str(Path(__file__).with_name("launch_all.py")))
    modules = {module for module, _, _ in launched}
    for file in Path(kernels.__path__[0]).glob("*.py"):
        label = GENERATED.get(file.stem, f"population.kernels.{file.stem}")
        has_kernels = file.stem in GENERATED or "    tl.store(" in file.read_text()
        assert not has_kernels or any(label in module for module in modules), file.name
    assert all(stack == "0" and int(shared) <= SHARED for _, stack, shared in launched), launched
