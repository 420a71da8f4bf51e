"""Repeated launches of a compiled kernel: by Triton's launcher in C where its version is known, else by its runner."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.backends.nvidia.driver import CudaLauncher

import hullo
from hullo.kernels import triton as kernels

TENSORS = (torch.zeros(8), torch.ones(8))


class Compiled:
    """Stand for a compiled kernel, with Triton's own launcher around a function that keeps its arguments."""

    def __init__(self) -> None:
        self.function, self.packed_metadata = 7, (4, 1)
        self.launched: list[tuple[Any, ...]] = []
        self.ran: list[tuple[Any, ...]] = []
        self.run = object.__new__(CudaLauncher)
        vars(self.run).update(
            num_ctas=1, launch_cooperative_grid=False, launch_pdl=True, launch=lambda *args: self.launched.append(args),
            global_scratch_size=0, global_scratch_align=1, profile_scratch_size=0, profile_scratch_align=1,
        )  # fmt: skip

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args: self.ran.append((grid, *args))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    monkeypatch.setattr(kernels, "current_cuda_stream", lambda device: 5)
    return Compiled()


def launch(compiled: Compiled) -> kernels._Launch:
    first: list[Any] = []
    kernel = {(3, 1, 1): lambda *args, **named: first.append(args) or compiled}
    return kernels._Launch(kernel, 0, 3, (8,), {"SIZE": 16}, {"num_warps": 4})


@pytest.mark.skipif(not kernels.DIRECT, reason="another version of Triton, whose launcher is not called directly")
def test_the_launcher_in_c_gets_what_tritons_own_launcher_gives_it(compiled: Compiled) -> None:
    run = launch(compiled)
    run(*TENSORS)
    run(*TENSORS)
    addresses = [tensor.data_ptr() for tensor in TENSORS]
    compiled.run(3, 1, 1, 5, compiled.function, compiled.packed_metadata, None, None, None, *addresses, 8, 16)
    ours, tritons = compiled.launched
    assert ours == tritons
    assert not compiled.ran


def test_other_versions_of_triton_run_the_compiled_kernel(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "DIRECT", False)
    run = launch(compiled)
    run(*TENSORS)
    run(*TENSORS)
    assert compiled.ran == [((3, 1, 1), *TENSORS, 8, 16)]
    assert not compiled.launched


def test_addresses_that_are_not_aligned_are_compiled_for_anew(compiled: Compiled) -> None:
    run = launch(compiled)
    run(*TENSORS)
    run(torch.zeros(9)[1:], TENSORS[1])
    assert not compiled.ran
    assert not compiled.launched


def test_raw_parameters_of_another_type_have_launches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    spec, x, raw = hullo.AffineHull("identity", "relu").spec, torch.zeros(8), torch.ones(2)
    single, double, again = (kernels._arrange(spec, False, row, x)[0] for row in (raw, raw.double(), raw))
    assert single is again
    assert single.forward is not double.forward  # it runs the kernel again that was compiled for its first tensors
