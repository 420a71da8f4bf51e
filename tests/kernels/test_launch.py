"""Repeated launches of a compiled kernel, which skip what Triton does at the first one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.compiler import CompiledKernel
from triton.runtime import driver

import hullo
from hullo.kernels import triton as kernels

TENSORS = (torch.zeros(8), torch.ones(8))


class Launched:
    """A kernel of two tensors, a number and a constant, and the arguments of its launches."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.ran: list[tuple[Any, ...]] = []
        self.compiled = object.__new__(CompiledKernel)
        state = {"_run": self.run, "module": object(), "function": 7, "packed_metadata": (4, 1, 96)}
        vars(self.compiled).update(state, launch_metadata=lambda *_: None)

    def run(self, *args: Any) -> None:
        grid, rest, hooks = args[:3], args[3:6], args[9:]  # between them: what hooks are told, and the hooks
        self.ran.append((grid, rest, hooks))

    def start(self, *args: Any, **named: Any) -> CompiledKernel:
        self.started.append((args, named))
        return self.compiled


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Launched:
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    monkeypatch.setattr(kernels, "current_cuda_stream", lambda device: 5 + device)
    active = SimpleNamespace(get_current_device=lambda: 1, get_current_stream=lambda device: 5 + device)
    monkeypatch.setattr(driver, "_active", active)
    return Launched()


def launch(made: Launched) -> kernels._Launch:
    return kernels._Launch({(3,): made.start}, 1, 3, (8,), {"SIZE": 16}, {"num_warps": 4})


def test_a_repeated_launch_is_that_of_tritons_runner(made: Launched) -> None:
    run = launch(made)
    run(*TENSORS)
    assert made.started == [((*TENSORS, 8), {"SIZE": 16, "num_warps": 4})]
    assert not made.ran
    run(*TENSORS)
    made.compiled[3, 1, 1](*TENSORS, 8, 16)
    ours, tritons = made.ran
    assert ours == tritons == ((3, 1, 1), (6, 7, (4, 1, 96)), (*TENSORS, 8, 16))


def test_tensors_that_are_not_aligned_are_compiled_for_anew(made: Launched) -> None:
    run, apart = launch(made), torch.zeros(10)[2:]
    for tensors, starts in (((apart, TENSORS[1]), 1), (TENSORS, 2), ((apart, TENSORS[1]), 3), (TENSORS, 3)):
        run(*tensors)
        assert len(made.started) == starts
    assert len(made.ran) == 1


def test_raw_parameters_of_another_type_have_launches_of_their_own() -> None:
    device = "cpu" if kernels.INTERPRETED else "cuda"
    spec = hullo.AffineHull("identity", "relu").spec
    x, raw = torch.zeros(8, device=device), torch.ones(2, device=device)
    single, double, again = (kernels._arrange(spec, False, row, x)[0] for row in (raw, raw.double(), raw))
    assert single is again
    assert single.forward is not double.forward  # it runs the kernel again that was compiled for its first tensors
