"""Count the kernels of a step on a GPU, and compare its replay in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def count_kernels(step: Callable[[], object]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return len([event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA])


def assert_replayed(step: Callable[[], Iterable[Tensor]], expected: Iterable[Tensor]) -> None:
    """Capture a step in a CUDA graph, and compare what its replay computes, to the bit."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = step()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
