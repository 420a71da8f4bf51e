"""Repeated launches of a compiled kernel: by our launcher in C where Triton's version is known, else by its runner."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.backends.nvidia.driver import CudaLauncher

import hullo
from hullo.kernels import launcher
from hullo.kernels import triton as kernels

TENSORS = (torch.zeros(8), torch.ones(8))


class Compiled:
    """Stand for a compiled kernel of two tensors, a number and a constant."""

    def __init__(self) -> None:
        self.function, self.packed_metadata = 7, (4, 1, 96)
        self.src = SimpleNamespace(signature={"x": "*fp32", "y": "*fp32", "n": "i32", "SIZE": "constexpr"})
        self.ran: list[tuple[Any, ...]] = []
        self.run = object.__new__(CudaLauncher)
        vars(self.run).update(global_scratch_size=0, launch_cooperative_grid=False, launch_pdl=True)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args: self.ran.append((grid, *args))


class Driver:
    """Stand for the function of CUDA that launches a kernel: it keeps its arguments, and returns a status."""

    def __init__(self) -> None:
        self.status = 0
        self.launched: list[tuple[Any, ...]] = []
        signature = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
        self.function = signature(self.launch)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value

    def launch(self, config: int, function: int, parameters: int, extra: None) -> int:
        *sizes, stream, _, attributes = struct.unpack("=7I4xQQI", ctypes.string_at(config, 52))
        addresses = (ctypes.c_void_p * 5).from_address(parameters)
        values = [ctypes.c_uint64.from_address(addresses[i] or 0).value for i in range(5)]
        self.launched.append((sizes, stream, attributes, function, values))
        return self.status


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    monkeypatch.setattr(launcher, "current_cuda_stream", lambda device: 5 + device)
    monkeypatch.setattr(launcher, "_launch_address", lambda: made.address)
    launcher._module.cache_clear()
    return made


def launch(compiled: Compiled) -> tuple[kernels._Launch, list[Any]]:
    """Return a launch of the compiled kernel, and the calls in which Triton compiles and launches it."""
    started: list[Any] = []
    kernel = {(3, 1, 1): lambda *args, **named: started.append(args) or compiled}
    return kernels._Launch(kernel, 1, 3, (8,), {"SIZE": 16}, {"num_warps": 4}), started


known = pytest.mark.skipif(not launcher.IS_KNOWN, reason="another version of Triton, whose parameters are not known")


@known
def test_a_repeated_launch_passes_tensors_and_numbers_but_no_constants(driver: Driver) -> None:
    run, started = launch(Compiled())
    for _ in range(3):
        run(*TENSORS)
    assert len(started) == 1
    addresses = [tensor.data_ptr() for tensor in TENSORS]
    scratch = [0, 0]
    assert driver.launched == [([3, 1, 1, 128, 1, 1, 96], 6, 1, 7, [*addresses, 8, *scratch])] * 2


@known
def test_triton_launches_what_cuda_refuses(driver: Driver) -> None:
    run, started = launch(Compiled())
    driver.status = 201  # no context in this thread
    run(*TENSORS)
    run(*TENSORS)
    assert len(driver.launched) == 1
    assert len(started) == 2


@pytest.mark.parametrize("is_known", [pytest.param(True, marks=known), False])
def test_addresses_that_are_not_aligned_are_compiled_for_anew(
    driver: Driver, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_known:
        monkeypatch.setattr(launcher, "_module", lambda: None)
    run, started = launch(compiled := Compiled())
    run(*TENSORS)
    run(torch.zeros(9)[1:], TENSORS[1])
    assert len(started) == 2
    assert not driver.launched
    assert not compiled.ran


@known
def test_kernels_of_more_parameters_than_a_plan_holds_are_left_to_triton(driver: Driver) -> None:
    compiled = Compiled()
    for count, is_bound in ((launcher.MOST_PARAMETERS - 4, True), (launcher.MOST_PARAMETERS - 3, False)):
        compiled.src.signature = {"x": "*fp32", "y": "*fp32"} | {f"n{i}": "i32" for i in range(count)}
        assert (launcher.bind(compiled, 3, 1, 2, [8] * count) is not None) == is_bound


def test_other_versions_of_triton_run_the_compiled_kernel(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_module", lambda: None)
    run, _ = launch(compiled := Compiled())
    run(*TENSORS)
    run(*TENSORS)
    assert compiled.ran == [((3, 1, 1), *TENSORS, 8, 16)]
    assert not driver.launched


def test_raw_parameters_of_another_type_have_launches_of_their_own() -> None:
    device = "cpu" if kernels.INTERPRETED else "cuda"
    spec = hullo.AffineHull("identity", "relu").spec
    x, raw = torch.zeros(8, device=device), torch.ones(2, device=device)
    single, double, again = (kernels._arrange(spec, False, row, x)[0] for row in (raw, raw.double(), raw))
    assert single is again
    assert single.forward is not double.forward  # it runs the kernel again that was compiled for its first tensors
