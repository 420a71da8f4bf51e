"""Capture training steps as CUDA graphs."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from hullo.population.check import check_first_call
from hullo.population.kernels.side_stream import join
from hullo.population.population import Population

WARM_UP = 3  # steps before a capture, in which libraries choose and set up their kernels


class Stateful(Protocol):
    """Describe an object whose state a step changes: a population, or an optimizer."""

    def state_dict(self) -> dict[str, Any]: ...


def capture(step: Callable[..., Any], *stateful: Stateful, check: bool = True) -> Callable[..., Any]:
    """Return a function that takes a training step by replaying a CUDA graph; without a GPU, the step itself.

    Args:
        step: a function of tensors; it is captured for their shapes. It does the forward pass, the backward pass and
            the update, reads no tensor on the host, and returns tensors or nothing.
        stateful: the objects that the step changes, the population and the optimizer: the first call takes a few steps
            to warm up, then restores their state.
        check: whether to call :meth:`Population.check` on the inputs of the first step.

    The graph is captured at the first call; calls with tensors of other shapes run without it. The result of a call is
    overwritten by the next.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from hullo.population import SGD, Population, capture
        >>> population = Population(lambda: nn.Linear(4, 1), seeds=range(8))
        >>> optimizer = SGD(population, lr=0.1)
        >>> def step(x, y):
        ...     losses = (population(x) - y).square().flatten(1).mean(1)
        ...     optimizer.zero_grad()
        ...     losses.sum().backward()
        ...     optimizer.step()
        ...     return losses.detach()
        >>> step = capture(step, population, optimizer)
        >>> step(torch.rand(8, 16, 4), torch.rand(8, 16, 1)).shape
        torch.Size([8])
    """
    return _Captured(step, stateful, check)


class _Captured:
    def __init__(self, step: Callable[..., Any], stateful: tuple[Stateful, ...], check: bool) -> None:
        self.step, self.stateful = step, stateful
        self.unchecked = [item for item in stateful if check and isinstance(item, Population)]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.returned: Any = None

    def __call__(self, *inputs: Tensor) -> Any:
        if not inputs or not inputs[0].is_cuda:
            with self._checking():
                return self.step(*inputs)
        if self.graph is None:
            self._capture(inputs)
        if self.graph is None or [x.shape for x in inputs] != [x.shape for x in self.inputs]:
            return self.step(*inputs)
        for captured, new in zip(self.inputs, inputs, strict=True):
            captured.copy_(new)
        self.graph.replay()
        return self.returned

    def _checking(self) -> AbstractContextManager[None]:
        """Check the populations on their inputs in the first step."""
        populations, self.unchecked = self.unchecked, []
        return check_first_call(populations)

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        gc.collect()  # what a failed capture left refers to nodes of other streams
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        before = [{name: tensor.clone() for name, tensor in item.state_dict().items()} for item in self.stateful]
        device = inputs[0].device
        side = _side_stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                with self._checking():
                    self.step(*self.inputs)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with pause_collection(), torch.cuda.graph(graph, stream=side):
            try:
                self.returned = self.step(*self.inputs)
            except BaseException:
                join(device)
                raise
        self.graph = graph
        for item, saved in zip(self.stateful, before, strict=True):
            item.load_state_dict(saved)  # type: ignore[attr-defined]


@contextmanager
def pause_collection() -> Iterator[None]:
    """Collect garbage now and not within the block: a CUDA graph that is destroyed during a capture makes it fail."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all captures on a device: libraries keep memory for every stream that they have used.

    Its kernels come first: those that are deferred, see :mod:`hullo.population.kernels.side_stream`, fill what is idle.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
